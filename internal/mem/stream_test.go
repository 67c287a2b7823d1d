package mem

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
)

// TestMoveIsMemmove compares with the obvious way around the limits, at every
// alignment of both ends, and for overlaps.
func TestMoveIsMemmove(t *testing.T) {
	base := make([]byte, 3*streamTo)
	want := make([]byte, len(base))
	rng := rand.New(rand.NewChaCha8([32]byte{2}))
	for _, n := range []int{0, 1, 63, 64, 65, streamFrom - 1, streamFrom, streamFrom + 1, 100_003, streamTo - 1, streamTo} {
		for range 40 {
			from, to := rng.IntN(len(base)-n), rng.IntN(len(base)-n)
			if rng.IntN(4) == 0 {
				to = max(0, min(from+rng.IntN(257)-128, len(base)-n)) // close together
			}
			for i := range 1024 {
				base[(from+i*97)%len(base)] = byte(rng.Uint32())
			}
			copy(want, base)
			copy(want[to:to+n], want[from:from+n])
			Move(base[to:to+n], base[from:from+n])
			if !bytes.Equal(base, want) {
				t.Fatalf("Move of %d bytes from %d to %d differs from memmove", n, from, to)
			}
		}
	}
}

func BenchmarkMove(b *testing.B) {
	const region = 128 << 20
	dst, src := bytes.Repeat([]byte{1}, region), bytes.Repeat([]byte{2}, region)
	for _, n := range []int{4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20} {
		for name, move := range map[string]func(dst, src []byte){"move": Move, "copy": func(d, s []byte) { copy(d, s) }} {
			b.Run(fmt.Sprintf("%s/%dKiB", name, n>>10), func(b *testing.B) {
				b.SetBytes(int64(n))
				for at := 0; b.Loop(); at = (at + n) % region {
					move(dst[at:at+n], src[at:at+n])
				}
			})
		}
	}
}
