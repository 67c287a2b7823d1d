package registry

import (
	"context"
	"testing"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
)

// plain is the registry as anybody would write it first: a list.
type plain struct {
	all []*entry
}

type entry struct {
	name     string
	from, to int // in the arena
	access   segment.Access
	refs     int
	pins     []transport.Pin
	got      *Buffer
}

func (m *plain) register(name string, from, to int, access segment.Access) (*entry, errs.Code) {
	for _, e := range m.all {
		if e.from == from && e.to == to && e.name == name && e.access == access {
			e.refs++
			return e, errs.OK
		}
	}
	for _, e := range m.all {
		if from < e.to && e.from < to {
			return nil, errs.Overlap
		}
	}
	for _, e := range m.all {
		if name != "" && e.name == name {
			return nil, errs.Invalid
		}
	}
	e := &entry{name: name, from: from, to: to, access: access, refs: 1}
	m.all = append(m.all, e)
	return e, errs.OK
}

func (m *plain) pin(op transport.Op, e *entry, off, n int) errs.Code {
	switch {
	case op == transport.Read && e.access&segment.RemoteRead == 0, op == transport.Write && e.access&segment.RemoteWrite == 0:
		return errs.Denied
	case off+n > e.to-e.from:
		return errs.OutOfRange
	}
	return errs.OK
}

func (m *plain) tryClose(e *entry) errs.Code {
	if e.refs == 1 && len(e.pins) > 0 {
		return errs.Busy
	}
	if e.refs--; e.refs == 0 {
		for i := range m.all {
			if m.all[i] == e {
				m.all = append(m.all[:i], m.all[i+1:]...)
				break
			}
		}
	}
	return errs.OK
}

// FuzzRegistry plays the same calls to the registry and to the list. Four bytes
// are one call.
func FuzzRegistry(f *testing.F) {
	f.Add([]byte{0, 0, 8, 3, 0, 8, 8, 7, 0, 4, 8, 3, 2, 0, 1, 3, 1, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0})
	f.Add([]byte{0, 0, 8, 3, 0, 0, 8, 3, 1, 0, 0, 0, 2, 0, 0, 9, 1, 0, 0, 0, 0, 0, 9, 3, 4, 3, 2, 0})
	f.Fuzz(func(t *testing.T, script []byte) {
		arena := make([]byte, 64)
		r, m := New(Options{}), &plain{}
		for ; len(script) >= 4; script = script[4:] {
			play(t, r, m, arena, script[0]%5, int(script[1]), int(script[2]), int(script[3]))
		}
		published := 0
		for _, e := range m.all {
			if e.access != segment.LocalOnly {
				published++
			}
			for i := range e.pins {
				e.pins[i].Unpin()
			}
		}
		if got := len(r.Published().Buffers); got != published || r.Len() != len(m.all) {
			t.Errorf("%d registered, %d published; want %d and %d", r.Len(), got, len(m.all), published)
		}
		if err := r.Close(context.Background()); err != nil || r.Len() != 0 {
			t.Errorf("Close: %v, %d left", err, r.Len())
		}
	})
}

func play(t *testing.T, r *Registry, m *plain, arena []byte, call byte, a, b, c int) {
	if call == 0 {
		from := a % len(arena)
		to := from + 1 + b%(len(arena)-from)
		name := []string{"", "", "x", "y"}[c>>2%4]
		e, want := m.register(name, from, to, segment.Access(c%4))
		got, err := r.Register(context.Background(), Registration{Name: name, Bytes: arena[from:to], Access: segment.Access(c % 4)})
		if errs.Of(err) != want || want == errs.OK && e.got != nil && got != e.got {
			t.Fatalf("register %q [%d, %d): %v, want %v", name, from, to, err, want)
		}
		if want == errs.OK {
			e.got = got
		}
		return
	}
	if len(m.all) == 0 {
		return
	}
	e := m.all[a%len(m.all)]
	switch call {
	case 1:
		if want, err := m.tryClose(e), e.got.TryClose(); errs.Of(err) != want {
			t.Fatalf("close %v: %v, want %v", e.got, err, want)
		}
		if e.refs > 0 {
			return
		}
		if _, code := r.Pin(transport.Read, e.got.Desc().Key, 0, 0); code != errs.Revoked {
			t.Fatalf("pin of the closed %v: %v", e.got, code)
		}
	case 2, 3:
		op, off, n := transport.Op(1+c%2), b%70, (c>>1)%70
		want := m.pin(op, e, off, n)
		p, code := r.Pin(op, e.got.Desc().Key, uint64(off), uint64(n))
		if code != want || code == errs.OK && n > 0 && &p.Bytes[0] != &arena[e.from+off] {
			t.Fatalf("pin %v [%d, +%d) of %v: %v, want %v", op, off, n, e.got, code, want)
		}
		if call == 2 && code == errs.OK {
			e.pins = append(e.pins, p)
		} else {
			p.Unpin()
		}
	case 4:
		if n := len(e.pins); n > 0 {
			e.pins[n-1].Unpin()
			e.pins = e.pins[:n-1]
		}
		from := b % len(arena)
		to := from + 1 + c%(len(arena)-from)
		var want *Buffer
		for _, e := range m.all {
			if from >= e.from && to <= e.to {
				want = e.got
			}
		}
		if got := r.find(arena[from:to]); got != want {
			t.Fatalf("find [%d, %d): %v, want %v", from, to, got, want)
		}
	}
}
