package segment

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestAccessText(t *testing.T) {
	for a, want := range map[Access]string{LocalOnly: "local", RemoteRead: "ro", RemoteWrite: "wo", ReadWrite: "rw"} {
		if a.String() != want {
			t.Errorf("%d prints as %q, want %q", uint8(a), a, want)
		}
		if got, err := ParseAccess(want); got != a || err != nil {
			t.Errorf("ParseAccess(%q) = %v, %v", want, got, err)
		}
	}
	var zero Access
	if zero != LocalOnly {
		t.Error("the zero access lets peers in")
	}
	for _, s := range []string{"", "RW", "r", "access(4)", Access(4).String()} {
		if a, err := ParseAccess(s); err == nil || a != LocalOnly {
			t.Errorf("ParseAccess(%q) = %v, %v; want local and an error", s, a, err)
		}
	}
	if got := Incarnation(0xab).String(); got != "00000000000000ab" {
		t.Errorf("an incarnation prints as %q", got)
	}
}

func TestSealSortsAndFindsByName(t *testing.T) {
	d := Desc{Transports: []string{"tcp", "shm"}, Buffers: []Buffer{
		{Name: "c", Addr: 300, Length: 10}, {Addr: 200, Length: 10}, {Name: "z"}, {Name: "b", Addr: 100, Length: 10}, {Name: "a"},
	}}
	d.Seal()
	if diff := cmp.Diff(map[string]int{"a": 0, "z": 1, "b": 2, "c": 4}, d.Lookup); diff != "" {
		t.Errorf("lookup (-want +got):\n%s", diff)
	}
	for name := range d.Lookup {
		if b := d.ByName(name); b == nil || b.Name != name {
			t.Errorf("ByName(%q) = %+v", name, b)
		}
	}
	if d.ByName("") != nil || d.ByName("d") != nil || (&Desc{}).ByName("a") != nil {
		t.Error("a name that nobody has is found")
	}
	if !d.Has("shm") || d.Has("rdma") || d.Has("") {
		t.Errorf("Has is wrong about %v", d.Transports)
	}
}

// TestByAddr compares with looking at every buffer, around every edge.
func TestByAddr(t *testing.T) {
	d := Desc{Buffers: []Buffer{{Name: "file", Length: 1 << 40}, {Name: "last", Addr: math.MaxUint64 - 99, Length: 99}}}
	rng := rand.New(rand.NewPCG(1, 1))
	at := uint64(1000)
	for range 50 {
		at += rng.Uint64N(3) * 10 // some are adjacent
		n := 1 + rng.Uint64N(100)
		d.Buffers = append(d.Buffers, Buffer{Addr: at, Length: n})
		at += n
	}
	d.Seal()
	var edges []uint64
	for _, b := range d.Buffers {
		edges = append(edges, b.Addr-1, b.Addr, b.Addr+1, b.Addr+b.Length-1, b.Addr+b.Length, b.Addr+b.Length+1)
	}
	for _, addr := range edges {
		for _, n := range []uint64{1, 2, 10, 99, 100, 1 << 40, math.MaxUint64} {
			var want *Buffer
			for i := range d.Buffers {
				b := &d.Buffers[i]
				if b.Addr != 0 && addr >= b.Addr && addr-b.Addr <= b.Length && n <= b.Length-(addr-b.Addr) {
					want = b
				}
			}
			if got := d.ByAddr(addr, n); got != want {
				t.Errorf("ByAddr(%d, %d) = %+v, want %+v", addr, n, got, want)
			}
		}
	}
	if b := d.ByAddr(1, 0); b != nil {
		t.Errorf("no bytes below all buffers are in %+v", b)
	}
}

func TestSplitTarget(t *testing.T) {
	for in, want := range map[string][3]any{
		"10.0.0.1:7777/weights":     {"10.0.0.1:7777", "weights", true},
		"[::1]:7777/dir/model.bin":  {"[::1]:7777", "dir/model.bin", true},
		"host:1/":                   {"host:1", "", true},
		"host:1":                    {"host:1", "", false},
		"a segment in a store/name": {"a segment in a store", "name", true},
	} {
		addr, name, ok := SplitTarget(in)
		if got := [3]any{addr, name, ok}; got != want {
			t.Errorf("SplitTarget(%q) = %v, want %v", in, got, want)
		}
	}
}
