package mem

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
)

// TestMoveIsMemmove compares with the obvious way around the limits, at every
// alignment of both ends, for overlaps, to places that are new and known.
func TestMoveIsMemmove(t *testing.T) {
	const most = 1 << 20
	base := make([]byte, 3*most)
	want := make([]byte, len(base))
	rng := rand.New(rand.NewChaCha8([32]byte{2}))
	var m Mover
	for _, n := range []int{0, 1, 63, 64, 65, streamFrom - 1, streamFrom, streamFrom + 1, 100_003, most - 1, most} {
		for range 40 {
			from, to := rng.IntN(len(base)-n), rng.IntN(len(base)-n)
			if rng.IntN(4) == 0 {
				to = max(0, min(from+rng.IntN(257)-128, len(base)-n)) // close together
			}
			for range 2 {
				for i := range 1024 {
					base[(from+i*97)%len(base)] = byte(rng.Uint32())
				}
				copy(want, base)
				copy(want[to:to+n], want[from:from+n])
				m.Move(base[to:to+n], base[from:from+n])
				if !bytes.Equal(base, want) {
					t.Fatalf("Move of %d bytes from %d to %d differs from memmove", n, from, to)
				}
			}
		}
	}
}

// TestAround is the rule: what is short, or was written lately, goes through the
// caches.
func TestAround(t *testing.T) {
	for _, c := range []struct {
		n    int
		age  uint64
		want bool
	}{
		{64, 1 << 42, false}, {streamFrom - 1, 1 << 42, false}, {streamFrom, 1 << 42, true}, {1 << 20, 1 << 42, true},
		{streamFrom, streamFrom, false}, {64 << 10, warm, false}, {64 << 10, warm + 1024, true}, {1 << 20, 1 << 20, true},
	} {
		if got := around(c.n, c.age); got != c.want {
			t.Errorf("%d bytes, age %d: around the caches %t, want %t", c.n, c.age, got, c.want)
		}
	}
}

// TestAge walks working sets of several sizes twice: every destination of one that
// fits is known the second time, and how long ago it was.
func TestAge(t *testing.T) {
	for _, c := range []struct{ span, n int }{{64 << 10, 64 << 10}, {256 << 10, 64 << 10}, {256 << 10, 16 << 10}, {2 << 20, 64 << 10}, {4 << 20, 1 << 20}} {
		var m Mover
		area := make([]byte, c.span)
		known := 0
		for round := range 2 {
			for at := 0; at < c.span; at += c.n {
				age := m.age(area[at : at+c.n])
				switch {
				case age == uint64(c.span):
					known++
				case age != 1<<42 || round == 0 && known > 0:
					t.Errorf("%d of %d bytes: age %d", c.n, c.span, age)
				}
			}
		}
		// Two of few places may share a slot by chance; of them neither is known.
		if of := c.span / c.n; known > of || known < of/2 {
			t.Errorf("%d of %d bytes: %d of %d places are known", c.n, c.span, known, of)
		}
	}
}

func BenchmarkMove(b *testing.B) {
	const region = 128 << 20
	dst, src := bytes.Repeat([]byte{1}, region), bytes.Repeat([]byte{2}, region)
	for _, span := range []int{256 << 10, 2 << 20, region} {
		for _, n := range []int{4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20} {
			var m Mover
			for name, move := range map[string]func(dst, src []byte){"move": m.Move, "copy": func(d, s []byte) { copy(d, s) }} {
				b.Run(fmt.Sprintf("%dKiB/%s/%dKiB", span>>10, name, n>>10), func(b *testing.B) {
					b.SetBytes(int64(n))
					for at := 0; b.Loop(); at = (at + n) % max(span, n) {
						move(dst[at:at+n], src[at:at+n])
					}
				})
			}
		}
	}
}
