package transporttest

import "testing"

// TestPattern: a byte is found where it is wrong, at every alignment, and
// patterns of other keys or offsets do not pass.
func TestPattern(t *testing.T) {
	const k, other = key(1), key(2)
	for off := range uint64(17) {
		for n := range 40 {
			p := make([]byte, n)
			k.fill(p, off)
			if at := k.differs(p, off); at != -1 {
				t.Fatalf("offset %d, %d bytes: its own pattern differs at %d", off, n, at)
			}
			for i := range p {
				if p[i] != k.at(off+uint64(i)) {
					t.Fatalf("offset %d, %d bytes: byte %d", off, n, i)
				}
				p[i] ^= 1
				if at := k.differs(p, off); at != i {
					t.Fatalf("offset %d, %d bytes: byte %d is wrong, found %d", off, n, i, at)
				}
				p[i] ^= 1
			}
			if n >= 16 && (k.differs(p, off+1) < 0 || k.differs(p, off+8) < 0 || other.differs(p, off) < 0) {
				t.Fatalf("offset %d, %d bytes: another pattern passes", off, n)
			}
			if neither(p, off, other, k) != -1 || n >= 16 && neither(p, off, other) < 0 {
				t.Fatalf("offset %d, %d bytes: neither is wrong", off, n)
			}
		}
	}
}
