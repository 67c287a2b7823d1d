package main

import (
	"bytes"
	"testing"
)

// Any cut of a pattern is the same bytes as the whole.
func TestPatternCuts(t *testing.T) {
	k := newPattern(7, 3)
	whole := make([]byte, 300)
	k.fill(whole, 0)
	for off := range 40 {
		for n := range 40 {
			p := make([]byte, n)
			k.fill(p, uint64(off))
			if !bytes.Equal(p, whole[off:off+n]) {
				t.Fatalf("bytes [%d, %d) differ from the whole", off, off+n)
			}
			if i := k.mismatch(p, uint64(off)); i != -1 {
				t.Fatalf("mismatch of right bytes at %d", i)
			}
		}
	}
}

// One wrong byte anywhere is found, and so are bytes of another run, round or
// place, and poison.
func TestPatternMismatch(t *testing.T) {
	k := newPattern(1, 1)
	p := make([]byte, 10001)
	k.fill(p, 5)
	for _, i := range []int{0, 1, 4095, 4096, 4097, 10000} {
		p[i] ^= 0x10
		if got := k.mismatch(p, 5); got != i {
			t.Errorf("flip at %d found at %d", i, got)
		}
		p[i] ^= 0x10
	}
	for name, other := range map[string]pattern{"run": newPattern(2, 1), "round": newPattern(1, 2)} {
		other.fill(p, 5)
		if k.mismatch(p, 5) < 0 {
			t.Errorf("another %s passes", name)
		}
	}
	k.fill(p, 4096)
	if k.mismatch(p, 0) < 0 {
		t.Error("another place passes")
	}
	poison(p)
	if k.mismatch(p, 5) != 0 {
		t.Error("poison passes")
	}
	poison(nil)
	if k.mismatch(nil, 9) != -1 {
		t.Error("nothing does not pass")
	}
}
