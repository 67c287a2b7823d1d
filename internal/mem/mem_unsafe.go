package mem

import (
	"unsafe"

	"github.com/tideway-io/tideway/errs"
)

// Addr returns the address of b's first byte; 0 for nil. It stays right while b
// is kept: the collector does not move heap objects, and keeping b in an object
// is what puts its bytes on the heap. Bytes on a stack move with it.
func Addr(b []byte) uintptr {
	// Sound: only a number is made of the pointer, it is not turned back.
	return uintptr(unsafe.Pointer(unsafe.SliceData(b)))
}

// Slice returns the n bytes at addr. The caller guarantees that they are mapped,
// that they are not in Go's heap unless something else holds them, and that
// both hold until nobody uses the slice any more: nothing can check that. What
// can be checked is: errs.Invalid for address 0 and for length 0, errs.Overflow
// where the range leaves the address space.
func Slice(addr uintptr, n uint64) ([]byte, error) {
	if addr == 0 || n == 0 {
		return nil, errs.New(errs.Invalid, "use memory", "address %#x, length %d: want both above 0", addr, n)
	}
	if !contains(uint64(addr), n) {
		return nil, errs.New(errs.Overflow, "use memory", "address %#x + length %d leaves the address space", addr, n)
	}
	// Sound by the caller's guarantee; the range is not empty, does not wrap
	// and fits a slice, as checked above. The pointer is read through its
	// address because it comes from outside Go and never was a Go pointer.
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&addr))), int(n)), nil
}
