// Package mem may use unsafe.
package mem

import "unsafe"

// Addr returns where b starts.
func Addr(b []byte) uintptr {
	// Only the number leaves; nobody turns it back into a pointer.
	return uintptr(unsafe.Pointer(unsafe.SliceData(b)))
}
