package mem

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Map maps the first n > 0 bytes of what fd stands for, shared with all others
// who map it, and returns them with the function that unmaps them; calling that
// twice is the caller's to avoid. Pages are made when they are first touched.
// With write false, writing to the bytes kills the process.
//
// Mapped bytes beyond the end of a file fault: the caller knows that the file
// has n bytes and keeps them.
func Map(fd, n int, write bool) (b []byte, unmap func() error, err error) {
	prot := unix.PROT_READ
	if write {
		prot |= unix.PROT_WRITE
	}
	p, err := unix.MmapPtr(fd, 0, nil, uintptr(n), prot, unix.MAP_SHARED)
	if err != nil {
		return nil, nil, os.NewSyscallError("mmap", err)
	}
	// Sound: [p, p+n) was mapped just now and is nobody else's. It is outside
	// Go's heap, so the collector leaves it alone.
	b = unsafe.Slice((*byte)(p), n)
	if n >= HugePage {
		_ = unix.Madvise(b, unix.MADV_HUGEPAGE) // advice only: most hosts keep shared memory on small pages
	}
	return b, func() error { return os.NewSyscallError("munmap", unix.MunmapPtr(p, uintptr(n))) }, nil
}
