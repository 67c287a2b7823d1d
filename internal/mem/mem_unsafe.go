package mem

import (
	"sync/atomic"
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

// Word returns the 64-bit word at b[at:at+8], for use by several processes at
// once. at must be a multiple of 8, and so must be b's address.
func Word(b []byte, at int) *atomic.Uint64 {
	if at%8 != 0 || Addr(b)%8 != 0 {
		panic("mem: the word is not aligned")
	}
	// Sound: the eight bytes exist (the index is checked), are aligned, and an
	// atomic.Uint64 is nothing but them. Whoever keeps the pointer keeps the
	// bytes mapped.
	return (*atomic.Uint64)(unsafe.Pointer(&b[at : at+8 : at+8][0]))
}
