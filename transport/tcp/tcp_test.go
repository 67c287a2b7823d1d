package tcp

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/testenv"
	"github.com/tideway-io/tideway/internal/wire"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
)

var sizes = []int{0, 1, 7, 1023, 1024, 1025, 4096, 16 << 10, 16<<10 + 1, 65535, 65536, 65537, 300_001, 1<<20 - 1, 1 << 20}

// TestWriteRead moves slices of every size both ways, alone and many at once,
// with and without sums, and compares every byte and its surroundings.
func TestWriteRead(t *testing.T) {
	for _, sums := range []bool{true, false} {
		t.Run(fmt.Sprintf("sums=%t", sums), func(t *testing.T) {
			limits := defaultLimits()
			limits.Checksum = sums
			limits.Lanes = 2
			a, b := newHost(t, loopback{}, limits), newHost(t, loopback{}, limits)
			ep := a.connect(t, b)
			for _, batch := range []int{1, 3, 200} {
				writeRead(t, a, b, ep, batch)
			}
			testenv.Eventually(t, 10*time.Second, func() bool { return b.memory.pinned() == 0 }, "pins are left") // a READ may end before its target puts the pin down
			if d := a.sink.doubles(); len(d) > 0 {
				t.Errorf("slices %v completed twice", d)
			}
		})
	}
}

func writeRead(t *testing.T, a, b *host, ep *Endpoint, batch int) {
	var total int
	for i := range batch {
		total += sizes[i%len(sizes)] + 1
	}
	remote, local, back := make([]byte, total), make([]byte, total), make([]byte, total)
	pattern(local, uint64(batch))
	buf := b.memory.add(remote, segment.ReadWrite)
	base := transport.Tag(batch * 10_000)
	var writes, reads []transport.Slice
	at := 0
	for i := range batch {
		n := sizes[i%len(sizes)]
		s := transport.Slice{Op: transport.Write, Class: transport.Class(i % 3), Local: local[at : at+n], Buffer: buf, Offset: uint64(at), Tag: base + transport.Tag(i)}
		writes = append(writes, s)
		s.Op, s.Local, s.Tag = transport.Read, back[at:at+n], s.Tag+5_000
		reads = append(reads, s)
		local[at+n] = 0 // a byte between slices that nobody writes
		at += n + 1
	}
	a.post(t, ep, writes)
	wantAll(t, a, writes)
	if !bytes.Equal(remote, local) {
		t.Fatalf("batch of %d: what was written differs", batch)
	}
	a.post(t, ep, reads)
	wantAll(t, a, reads)
	if !bytes.Equal(back, local) {
		t.Fatalf("batch of %d: what was read differs", batch)
	}
}

func wantAll(t *testing.T, h *host, s []transport.Slice) {
	t.Helper()
	for i := range s {
		if c := h.sink.wait(t, s[i].Tag); c.Code != errs.OK {
			t.Fatalf("slice %d (%v, %d bytes): %v", i, s[i].Op, len(s[i].Local), c.Code)
		}
	}
}

// TestRefusals checks that what may not be done is answered with its own code,
// touches nothing, and does not disturb its neighbours in the frame.
func TestRefusals(t *testing.T) {
	a, b := newHost(t, loopback{}, defaultLimits()), newHost(t, loopback{}, defaultLimits())
	ep := a.connect(t, b)
	mem := make([]byte, 100_000)
	rw := b.memory.add(mem, segment.ReadWrite)
	ro := b.memory.add(mem, segment.RemoteRead)
	wo := b.memory.add(mem, segment.RemoteWrite)
	none := &segment.Buffer{Key: 999, Length: 10}
	gone := b.memory.add(mem, segment.ReadWrite)
	b.memory.revoke(gone.Key)
	for _, size := range []int{10, 5000, 70_000} {
		cases := []struct {
			op   transport.Op
			buf  *segment.Buffer
			off  uint64
			want errs.Code
		}{
			{transport.Write, rw, 0, errs.OK},
			{transport.Write, ro, 0, errs.Denied},
			{transport.Read, wo, 0, errs.Denied},
			{transport.Write, none, 0, errs.NotRegistered},
			{transport.Read, none, 0, errs.NotRegistered},
			{transport.Write, rw, uint64(len(mem) - size + 1), errs.OutOfRange},
			{transport.Read, rw, uint64(len(mem) - size + 1), errs.OutOfRange},
			{transport.Read, rw, ^uint64(0) - 2, errs.OutOfRange},
			{transport.Write, rw, ^uint64(0) - 2, errs.OutOfRange},
			{transport.Write, gone, 0, errs.Revoked},
			{transport.Read, gone, 0, errs.Revoked},
			{transport.Read, ro, 0, errs.OK},
			{transport.Write, wo, 0, errs.OK},
		}
		var s []transport.Slice
		tag := transport.Tag(size * 100)
		for i, c := range cases {
			s = append(s, transport.Slice{Op: c.op, Class: 1, Local: make([]byte, size), Buffer: c.buf, Offset: c.off, Tag: tag + transport.Tag(i)})
		}
		a.post(t, ep, s)
		for i, c := range cases {
			if got := a.sink.wait(t, s[i].Tag); got.Code != c.want || got.InDoubt {
				t.Errorf("%v of %d at %d of key %d: %+v, want %v", c.op, size, c.off, c.buf.Key, got, c.want)
			}
		}
	}
}

// TestMalformedSlice checks that Post refuses what no frame can carry, after the
// good ones before it.
func TestMalformedSlice(t *testing.T) {
	a, b := newHost(t, loopback{}, defaultLimits()), newHost(t, loopback{}, defaultLimits())
	ep := a.connect(t, b)
	buf := b.memory.add(make([]byte, 16), segment.ReadWrite)
	good := transport.Slice{Op: transport.Write, Local: make([]byte, 16), Buffer: buf, Tag: 1}
	for i, bad := range []transport.Slice{
		{Op: 0, Local: good.Local, Buffer: buf},
		{Op: 3, Local: good.Local, Buffer: buf},
		{Op: transport.Write, Local: good.Local},
		{Op: transport.Write, Local: good.Local, Buffer: &segment.Buffer{}},
		{Op: transport.Write, Local: good.Local, Buffer: buf, Rail: 1},
		{Op: transport.Write, Local: make([]byte, wire.MaxFrame+1), Buffer: buf},
	} {
		good.Tag = transport.Tag(i + 1)
		n, err := ep.Post([]transport.Slice{good, bad, good})
		if n != 1 || errs.Of(err) != errs.Invalid {
			t.Errorf("case %d: accepted %d, %v; want 1 and invalid", i, n, err)
		}
		a.sink.wait(t, good.Tag)
	}
}
