package mem

import (
	"fmt"
	"os"
	"testing"
)

// TestFreeUnmapsEverything watches the size of the address space, so that a
// trim missed at either end shows: 500 times at least a page, at most 2 MiB.
func TestFreeUnmapsEverything(t *testing.T) {
	const times, n = 500, HugePage + 4096
	before := mapped(t)
	for range times {
		_, free, err := Alloc(n, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if err := free(); err != nil {
			t.Fatal(err)
		}
	}
	// Go's own heap may reserve a few arenas of 64 MiB meanwhile.
	if grown := mapped(t) - before; grown > times*HugePage/3 {
		t.Errorf("after %d times Alloc and free, %d MiB more are mapped", times, grown>>20)
	}
}

// mapped returns the size of the address space in bytes.
func mapped(t *testing.T) (n int) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/statm")
	if err == nil {
		_, err = fmt.Sscan(string(b), &n)
	}
	if err != nil {
		t.Fatal(err)
	}
	return n * os.Getpagesize()
}
