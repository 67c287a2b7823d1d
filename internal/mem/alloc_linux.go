package mem

import (
	"errors"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// alloc maps n > 0 bytes of anonymous memory.
func alloc(n int) (b []byte, release func() error, err error) {
	page := os.Getpagesize()
	size := uintptr((n + page - 1) &^ (page - 1))
	slack := uintptr(0)
	if n >= HugePage {
		slack = HugePage
	}
	const prot, flags = unix.PROT_READ | unix.PROT_WRITE, unix.MAP_PRIVATE | unix.MAP_ANON
	base, err := unix.MmapPtr(-1, 0, nil, size+slack, prot, flags)
	if err != nil {
		return nil, nil, os.NewSyscallError("mmap", err)
	}
	if slack > 0 {
		base = align(base, size, slack)
	}
	// Sound: [base, base+size) was mapped just now, is nobody else's, and
	// n <= size. It is outside Go's heap, so the collector leaves it alone.
	b = unsafe.Slice((*byte)(base), n)
	if slack > 0 {
		// Advice only: kernels without huge pages serve small ones.
		_ = unix.Madvise(unsafe.Slice((*byte)(base), size), unix.MADV_HUGEPAGE)
	}
	return b, func() error { return os.NewSyscallError("munmap", unix.MunmapPtr(base, size)) }, nil
}

// align gives back what a mapping of size+slack bytes at base has before the
// first multiple of slack and after its size, and returns where it then starts.
func align(base unsafe.Pointer, size, slack uintptr) unsafe.Pointer {
	head := -uintptr(base) & (slack - 1)
	start := unsafe.Add(base, head) // sound: head < slack, so it stays inside the mapping
	// A trim that fails leaves address space mapped that nobody touches.
	if head > 0 {
		_ = unix.MunmapPtr(base, head)
	}
	_ = unix.MunmapPtr(unsafe.Add(start, size), slack-head) // slack-head > 0, ends with the mapping
	return start
}

// prefault makes the pages of b, by the kernel's own loop where it has one.
func prefault(b []byte) error {
	err := unix.Madvise(b, unix.MADV_POPULATE_WRITE)
	if !errors.Is(err, unix.EINVAL) {
		return os.NewSyscallError("madvise", err)
	}
	for i := 0; i < len(b); i += os.Getpagesize() { // a kernel before 5.14
		b[i] = 0
	}
	return nil
}
