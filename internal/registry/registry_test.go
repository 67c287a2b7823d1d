package registry

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/testenv"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/topology"
	"github.com/tideway-io/tideway/transport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// noFile is a file that nobody touches.
type noFile struct{ transport.File }

func register(t *testing.T, r *Registry, g Registration) *Buffer {
	t.Helper()
	b, err := r.Register(t.Context(), g)
	if err != nil {
		t.Fatalf("register %q: %v", g.Name, err)
	}
	return b
}

func closed(t *testing.T, b *Buffer) {
	t.Helper()
	if err := b.Close(t.Context()); err != nil {
		t.Fatalf("close %v: %v", b, err)
	}
}

func TestRegistrationRules(t *testing.T) {
	mem := make([]byte, 1000)
	r := New(Options{})
	a := register(t, r, Registration{Name: "a", Bytes: mem[200:400], Access: segment.RemoteRead})
	register(t, r, Registration{Name: "empty", File: noFile{}})
	for name, c := range map[string]struct {
		g    Registration
		want errs.Code
		says []string
	}{
		"adjacent before":     {Registration{Bytes: mem[100:200]}, errs.OK, nil},
		"adjacent after":      {Registration{Bytes: mem[400:500]}, errs.OK, nil},
		"one byte over start": {Registration{Name: "x", Bytes: mem[199:201]}, errs.Overlap, []string{"x [0x", "a [0x"}},
		"one byte over end":   {Registration{Bytes: mem[399:401]}, errs.Overlap, []string{"(unnamed) [0x", "a [0x"}},
		"contained":           {Registration{Bytes: mem[250:300]}, errs.Overlap, nil},
		"first part":          {Registration{Name: "a", Bytes: mem[200:300], Access: segment.RemoteRead}, errs.Overlap, nil},
		"containing":          {Registration{Bytes: mem[:500]}, errs.Overlap, nil},
		"other access":        {Registration{Name: "a", Bytes: mem[200:400]}, errs.Overlap, []string{"local", "ro"}},
		"other name":          {Registration{Name: "b", Bytes: mem[200:400], Access: segment.RemoteRead}, errs.Overlap, nil},
		"other location":      {Registration{Name: "a", Bytes: mem[200:400], Access: segment.RemoteRead, Location: "cpu:1"}, errs.Overlap, nil},
		"a Free of its own":   {Registration{Name: "a", Bytes: mem[200:400], Access: segment.RemoteRead, Free: func() error { return nil }}, errs.Invalid, []string{"Free"}},
		"taken name":          {Registration{Name: "a", Bytes: mem[600:700]}, errs.Invalid, []string{`"a"`}},
		"file, taken name":    {Registration{Name: "a", File: noFile{}, Length: 5}, errs.Invalid, []string{`"a"`}},
		"file twice":          {Registration{Name: "empty", File: noFile{}}, errs.Invalid, nil},
		"no memory":           {Registration{Bytes: mem[:0]}, errs.Invalid, []string{"length 0"}},
		"address, no length":  {Registration{Addr: 4096}, errs.Invalid, []string{"length 0"}},
		"two lengths":         {Registration{Bytes: mem[800:], Length: 10}, errs.Invalid, []string{"200", "10"}},
		"nothing":             {Registration{Length: 10}, errs.Invalid, []string{"0 of"}},
		"two things":          {Registration{Bytes: mem, File: noFile{}}, errs.Invalid, []string{"2 of"}},
		"wraps around":        {Registration{Addr: math.MaxUint - 10, Length: 100}, errs.Overflow, nil},
		"huge":                {Registration{Addr: 4096, Length: math.MaxUint64}, errs.Overflow, nil},
		"huge file":           {Registration{File: noFile{}, Length: math.MaxUint64}, errs.Invalid, nil},
		"unknown access":      {Registration{Bytes: mem[800:], Access: 8}, errs.Invalid, []string{"access(8)"}},
		"bad location":        {Registration{Bytes: mem[800:], Location: "CPU0"}, errs.Invalid, []string{"CPU0"}},
		"memory in a file":    {Registration{Bytes: mem[800:], Location: topology.File}, errs.Invalid, nil},
		"file on a GPU":       {Registration{File: noFile{}, Location: "cuda:0"}, errs.Invalid, nil},
		"control characters":  {Registration{Name: "a\nb", Bytes: mem[800:]}, errs.Invalid, []string{"byte 1"}},
		"not UTF-8":           {Registration{Name: "\xff", Bytes: mem[800:]}, errs.Invalid, []string{"UTF-8"}},
		"long name":           {Registration{Name: strings.Repeat("n", MaxName+1), Bytes: mem[800:]}, errs.Invalid, []string{"1025", "1024"}},
	} {
		before := r.Len()
		b, err := r.Register(t.Context(), c.g)
		if errs.Of(err) != c.want {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		for _, s := range c.says {
			if !strings.Contains(err.Error(), s) {
				t.Errorf("%s: %q does not say %q", name, err, s)
			}
		}
		if c.want == errs.OK {
			closed(t, b)
		}
		if r.Len() != before {
			t.Errorf("%s: %d buffers are registered, want %d", name, r.Len(), before)
		}
	}
	if got := r.find(mem[200:400]); got != a {
		t.Errorf("after all that, Find gives %v, want %v", got, a)
	}
}

func TestIdenticalRegistrationsAreCounted(t *testing.T) {
	freed := 0
	r := New(Options{})
	g := Registration{Name: "a", Bytes: make([]byte, 10), Access: segment.ReadWrite, Free: func() error { freed++; return nil }}
	b := register(t, r, g)
	version := r.Version()
	g.Free = nil
	for range 2 {
		if again := register(t, r, g); again != b {
			t.Fatalf("the identical range became another buffer: %v and %v", again, b)
		}
	}
	if r.Version() != version || r.Len() != 1 {
		t.Errorf("version %d, %d buffers; want %d and 1: nothing changed", r.Version(), r.Len(), version)
	}
	closed(t, b)
	if err := b.TryClose(); err != nil {
		t.Errorf("TryClose with a reference left: %v", err)
	}
	if p, code := r.Pin(transport.Write, b.Desc().Key, 0, 10); code != errs.OK {
		t.Errorf("with one reference left: %v", code)
	} else {
		p.Unpin()
	}
	for range 3 { // the last one, and two too many
		closed(t, b)
	}
	if freed != 1 || r.Len() != 0 {
		t.Errorf("freed %d times, %d buffers left; want 1 and 0", freed, r.Len())
	}
	if again := register(t, r, g); again == b || again.Desc().Key == b.Desc().Key {
		t.Error("a new registration has the key of a closed one")
	}
}

func TestPinEveryEdge(t *testing.T) {
	const size = 65537
	mem := make([]byte, size)
	r := New(Options{})
	b := register(t, r, Registration{Bytes: mem, Access: segment.ReadWrite})
	edges := []uint64{0, 1, 4095, 4096, 4097, 65535, 65536, size, size + 1, size + 2, math.MaxInt64, math.MaxUint64 - size, math.MaxUint64 - 1, math.MaxUint64}
	for _, off := range edges {
		for _, n := range edges {
			want := errs.OK
			if off > size || n > size || off+n > size { // small enough not to wrap
				want = errs.OutOfRange
			}
			p, code := r.Pin(transport.Read, b.Desc().Key, off, n)
			if code != want || code == errs.OK && (uint64(len(p.Bytes)) != n || n > 0 && &p.Bytes[0] != &mem[off]) {
				t.Errorf("Pin(%d, %d): %v, %d bytes; want %v", off, n, code, len(p.Bytes), want)
			}
			p.Unpin()
			addr := b.Desc().Addr + off
			if off > size { // then the address is in no buffer, or wraps into another place
				continue
			}
			p, code = r.PinAddr(transport.Read, addr, n)
			if code != want || code == errs.OK && uint64(len(p.Bytes)) != n {
				t.Errorf("PinAddr(start+%d, %d): %v, %d bytes; want %v", off, n, code, len(p.Bytes), want)
			}
			p.Unpin()
		}
	}
	if pins, uses := b.Held(); pins != 0 || uses != 0 {
		t.Errorf("%d pins and %d uses are left", pins, uses)
	}
}

func TestPinRefusals(t *testing.T) {
	mem := make([]byte, 400)
	r := New(Options{Rand: func() uint64 { return 1000 }})
	lo := register(t, r, Registration{Bytes: mem[:100]}).Desc()
	ro := register(t, r, Registration{Bytes: mem[100:200], Access: segment.RemoteRead}).Desc()
	wo := register(t, r, Registration{Bytes: mem[200:300], Access: segment.RemoteWrite}).Desc()
	gone := register(t, r, Registration{Bytes: mem[300:], Access: segment.ReadWrite})
	closed(t, gone)
	for _, c := range []struct {
		op   transport.Op
		key  segment.Key
		addr uint64
		want errs.Code
		at   errs.Code // by address
	}{
		{transport.Read, lo.Key, lo.Addr, errs.Denied, errs.Denied},
		{transport.Write, lo.Key, lo.Addr, errs.Denied, errs.Denied},
		{transport.Read, ro.Key, ro.Addr, errs.OK, errs.OK},
		{transport.Write, ro.Key, ro.Addr, errs.Denied, errs.Denied},
		{transport.Read, wo.Key, wo.Addr, errs.Denied, errs.Denied},
		{transport.Write, wo.Key, wo.Addr, errs.OK, errs.OK},
		{0, ro.Key, ro.Addr, errs.Invalid, errs.Invalid},
		{3, wo.Key, wo.Addr, errs.Invalid, errs.Invalid},
		{transport.Read, gone.Desc().Key, gone.Desc().Addr + 1, errs.Revoked, errs.NotRegistered},
		{transport.Read, 0, 0, errs.NotRegistered, errs.NotRegistered},
		{transport.Read, 999, math.MaxUint64, errs.NotRegistered, errs.NotRegistered},
		{transport.Read, 1004, lo.Addr - 1, errs.NotRegistered, errs.NotRegistered},
	} {
		if p, code := r.Pin(c.op, c.key, 0, 10); code != c.want {
			t.Errorf("Pin(%v, key %d): %v, want %v", c.op, c.key, code, c.want)
		} else {
			p.Unpin()
		}
		if p, code := r.PinAddr(c.op, c.addr, 10); code != c.at {
			t.Errorf("PinAddr(%v, %#x): %v, want %v", c.op, c.addr, code, c.at)
		} else {
			p.Unpin()
		}
	}
	if p, code := r.PinAddr(transport.Read, ro.Addr+50, 100); code != errs.OutOfRange {
		t.Errorf("a range over two adjacent buffers: %v %v, want out of range", code, p)
	}
	want := Refused{Denied: 8, OutOfRange: 1, Revoked: 1, NotRegistered: 7}
	if diff := cmp.Diff(want, r.Refused()); diff != "" {
		t.Errorf("counted (-want +got):\n%s", diff)
	}
}

func TestTablesAreBounded(t *testing.T) {
	mem := make([]byte, 100)
	r := New(Options{MaxBuffers: 3})
	var last *Buffer
	for i := range 3 {
		last = register(t, r, Registration{Bytes: mem[i : i+1]})
	}
	if _, err := r.Register(t.Context(), Registration{Bytes: mem[50:]}); !errors.Is(err, errs.ErrOverloaded) {
		t.Errorf("the fourth of three: %v, want ErrOverloaded", err)
	}
	register(t, r, Registration{Bytes: mem[2:3]}) // identical to the last: takes no place
	closed(t, last)
	closed(t, last)
	register(t, r, Registration{Bytes: mem[50:]})

	r = New(Options{Rand: func() uint64 { return math.MaxUint32 }})
	r.keys.next.Store(maxKeys - 1)
	b := register(t, r, Registration{Bytes: mem[:1], Access: segment.RemoteRead})
	if p, code := r.Pin(transport.Read, b.Desc().Key, 0, 1); code != errs.OK {
		t.Errorf("the last key %d: %v", b.Desc().Key, code)
	} else {
		p.Unpin()
	}
	if _, err := r.Register(t.Context(), Registration{Bytes: mem[1:]}); !errors.Is(err, errs.ErrOverloaded) {
		t.Errorf("with all keys used: %v, want ErrOverloaded", err)
	}
}

// TestRegisterRaces has 16 goroutines register and close ranges that collide in
// every way. The table must stay free of overlaps and end empty.
func TestRegisterRaces(t *testing.T) {
	var attached sync.Map
	r := New(Options{
		Attach: func(_ context.Context, b *segment.Buffer) (map[string][]byte, error) {
			if _, twice := attached.LoadOrStore(b.Key, true); twice {
				t.Errorf("key %d was attached twice", b.Key)
			}
			return map[string][]byte{"tcp": {1}}, nil
		},
		Detach: func(b *segment.Buffer) error {
			if _, was := attached.LoadAndDelete(b.Key); !was {
				t.Errorf("key %d was detached without being attached", b.Key)
			}
			return nil
		},
	})
	mem := make([]byte, 64)
	var wg sync.WaitGroup
	for g := range 16 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(7, uint64(g)))
			for range 500 {
				from := rng.IntN(len(mem))
				to := from + 1 + rng.IntN(min(8, len(mem)-from))
				b, err := r.Register(t.Context(), Registration{Bytes: mem[from:to], Access: segment.ReadWrite})
				if err != nil {
					if code := errs.Of(err); code != errs.Overlap && code != errs.Busy {
						t.Errorf("register: %v", err)
					}
					continue
				}
				if len(b.Desc().Attrs) != 1 {
					t.Error("Register returned before Attach did")
				}
				if p, code := r.Pin(transport.Write, b.Desc().Key, 0, uint64(to-from)); code != errs.OK {
					t.Errorf("pin of a buffer that we hold: %v", code)
				} else {
					p.Unpin()
				}
				disjoint(t, r)
				if err := b.Close(t.Context()); err != nil {
					t.Errorf("close: %v", err)
				}
			}
		})
	}
	wg.Wait()
	if n := r.Len(); n != 0 {
		t.Errorf("%d buffers are left", n)
	}
	attached.Range(func(key, _ any) bool { t.Errorf("key %v was not detached", key); return true })
}

// disjoint checks what is published.
func disjoint(t *testing.T, r *Registry) {
	bufs := r.Published().Buffers
	for i := 1; i < len(bufs); i++ {
		if a, b := bufs[i-1], bufs[i]; a.Addr+a.Length > b.Addr {
			t.Errorf("[%#x, +%d) and [%#x, +%d) overlap", a.Addr, a.Length, b.Addr, b.Length)
		}
	}
}

func TestPublished(t *testing.T) {
	mem := make([]byte, 1000)
	r := New(Options{Attach: func(context.Context, *segment.Buffer) (map[string][]byte, error) {
		return map[string][]byte{"shm": []byte("fd")}, nil
	}})
	register(t, r, Registration{Name: "z", Bytes: mem[500:600], Access: segment.RemoteRead, Location: "cpu:1"})
	register(t, r, Registration{Name: "hidden", Bytes: mem[300:400]})
	file := Registration{Name: "f2", File: noFile{}, Length: 7, Access: segment.RemoteRead, Source: segment.Source{Size: 7, Inode: 3}}
	register(t, r, file)
	file.Name = "f1"
	b := register(t, r, file)
	register(t, r, Registration{Bytes: mem[:10], Access: segment.ReadWrite})

	p := r.Published()
	d := segment.Desc{Buffers: append([]segment.Buffer(nil), p.Buffers...)}
	d.Seal()
	if diff := cmp.Diff(d.Buffers, p.Buffers); diff != "" {
		t.Errorf("not as Seal sorts (-seal +published):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]int{"f1": 0, "f2": 1, "z": 3}, p.Lookup); diff != "" {
		t.Errorf("lookup (-want +got):\n%s", diff)
	}
	if got := p.Buffers[3]; got.Location != "cpu:1" || string(got.Attrs["shm"]) != "fd" || got.Key == 0 {
		t.Errorf("published as %+v", got)
	}
	if r.Published() != p {
		t.Error("the same version was built again")
	}
	version := r.Version()
	register(t, r, Registration{Bytes: mem[700:800]})
	if r.Version() != version {
		t.Error("a local-only buffer changed the version that peers see")
	}
	closed(t, b)
	if q := r.Published(); q.Version <= p.Version || len(q.Buffers) != 3 || len(p.Buffers) != 4 {
		t.Errorf("after a close: version %d, %d buffers; the old version has %d", q.Version, len(q.Buffers), len(p.Buffers))
	}
	got := r.Inspect(3)
	if len(got) != 3 || got[0].Name != "f2" || got[1].Access != "rw" || got[2].Name != "hidden" || len(r.Inspect(100)) != 5 {
		t.Errorf("Inspect(3) = %+v", got)
	}
}

func TestFind(t *testing.T) {
	mem := make([]byte, 100)
	r := New(Options{})
	if r.find(mem) != nil || r.find(nil) != nil {
		t.Error("an empty registry finds something")
	}
	a := register(t, r, Registration{Name: "a", Bytes: mem[10:20]})
	b := register(t, r, Registration{Name: "b", Bytes: mem[20:30]})
	if f := register(t, r, Registration{Name: "f", File: noFile{}, Length: 5}); f.File() == nil || f.Bytes() != nil {
		t.Error("a file is no file")
	}
	for _, c := range []struct {
		from, to int
		want     *Buffer
	}{{10, 20, a}, {19, 20, a}, {20, 21, b}, {19, 21, nil}, {9, 11, nil}, {29, 31, nil}, {15, 15, nil}, {50, 60, nil}} {
		if got := r.find(mem[c.from:c.to]); got != c.want {
			t.Errorf("Find [%d:%d) = %v, want %v", c.from, c.to, got, c.want)
		}
	}
	if &b.Bytes()[0] != &mem[20] || cap(b.Bytes()) != 10 {
		t.Error("Bytes are not the ones registered")
	}
}

// TestManyBuffers is a large engine's number of small buffers, registered in no
// order. Were anything quadratic, it would not end in a test's time.
func TestManyBuffers(t *testing.T) {
	const size = 16
	n := 100_000
	if testenv.Race {
		n /= 5
	}
	mem := make([]byte, n*size)
	r := New(Options{})
	bufs := make([]*Buffer, n)
	for _, i := range rand.New(rand.NewPCG(1, 1)).Perm(n) {
		bufs[i] = register(t, r, Registration{Name: fmt.Sprint(i), Bytes: mem[i*size:][:size], Access: segment.RemoteRead})
	}
	if got := len(r.Published().Buffers); got != n {
		t.Fatalf("%d buffers are published", got)
	}
	for i, b := range bufs {
		if got := r.find(mem[i*size:][:size]); got != b {
			t.Fatalf("Find(%d) = %v", i, got)
		}
	}
	if err := r.Close(t.Context()); err != nil || r.Len() != 0 {
		t.Errorf("Close: %v, %d buffers left", err, r.Len())
	}
	if len(r.mu.order.runs) != 0 || len(r.mu.names) != 0 {
		t.Errorf("%d runs and %d names are left", len(r.mu.order.runs), len(r.mu.names))
	}
}

func TestPinAllocatesNothing(t *testing.T) {
	r := New(Options{})
	b := register(t, r, Registration{Bytes: make([]byte, 4096), Access: segment.ReadWrite}).Desc()
	if n := testing.AllocsPerRun(100, func() {
		p, _ := r.Pin(transport.Write, b.Key, 0, 4096)
		p.Unpin()
		p, _ = r.PinAddr(transport.Write, b.Addr, 4096)
		p.Unpin()
		_, _ = r.Pin(transport.Write, b.Key, 1, 4096)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkRegister(b *testing.B) {
	mem := make([]byte, 1<<20)
	for b.Loop() { // one op is 100,000 registrations and one descriptor
		r := New(Options{})
		for i := range 100_000 {
			if _, err := r.Register(b.Context(), Registration{Bytes: mem[i*10 : i*10+10], Access: segment.RemoteRead}); err != nil {
				b.Fatal(err)
			}
		}
		r.Published()
	}
}

func BenchmarkPin(b *testing.B) {
	r := New(Options{})
	mem := make([]byte, 1<<20)
	var bufs []*segment.Buffer
	for i := range 100_000 {
		buf, err := r.Register(b.Context(), Registration{Bytes: mem[i*10 : i*10+10], Access: segment.RemoteRead})
		if err != nil {
			b.Fatal(err)
		}
		bufs = append(bufs, buf.Desc())
	}
	b.Run("key", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			p, _ := r.Pin(transport.Read, bufs[i*7919%len(bufs)].Key, 0, 10)
			p.Unpin()
		}
	})
	b.Run("one key", func(b *testing.B) {
		for b.Loop() {
			p, _ := r.Pin(transport.Read, bufs[5].Key, 0, 10)
			p.Unpin()
		}
	})
	b.Run("addr", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			p, _ := r.PinAddr(transport.Read, bufs[i*7919%len(bufs)].Addr, 10)
			p.Unpin()
		}
	})
}
