//go:build !linux

package mem

import "os"

// alloc takes n > 0 bytes from Go's heap, which does not move them.
func alloc(n int) (b []byte, release func() error, err error) {
	align := os.Getpagesize()
	if n >= HugePage {
		align = HugePage
	}
	b = make([]byte, n+align)
	head := -int(Addr(b)) & (align - 1)
	return b[head : head+n : head+n], func() error { return nil }, nil
}

func prefault(b []byte) error {
	for i := 0; i < len(b); i += os.Getpagesize() {
		b[i] = 0
	}
	return nil
}
