package engine

import "unsafe"

// peek reads a byte. It is sound because p is a Go pointer that stays alive.
func peek(p *byte) byte { return *(*byte)(unsafe.Pointer(p)) }
