package tcp

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxIovecs is IOV_MAX of Linux: pieces in one call at most.
const maxIovecs = 1024

// iovecs is the kernel's form of a list of ranges, kept between calls so that
// none allocates.
type iovecs struct{ v []unix.Iovec }

// call makes one readv or writev on a descriptor that does not block, again
// after EINTR, and returns the bytes moved. At most maxIovecs ranges are given
// to the kernel. Nothing points to the ranges any more when it returns.
//
// It is a raw call: the scheduler is not told, which is right for a call that
// copies at most about 1 MiB and never sleeps.
func (x *iovecs) call(trap uintptr, fd int, ranges [][]byte) (int, syscall.Errno) {
	v := x.v[:0]
	for _, b := range ranges {
		if len(b) == 0 {
			continue
		}
		if len(v) == maxIovecs {
			break
		}
		// Sound: SliceData points to len(b) readable (and for readv writable)
		// bytes that the caller keeps reachable, in a typed pointer that the
		// collector sees.
		v = append(v, unix.Iovec{Base: unsafe.SliceData(b)})
		v[len(v)-1].SetLen(len(b))
	}
	x.v = v
	for {
		// Sound: the conversion is in the argument list of the call (rule 4 of
		// package unsafe), the array is on the heap and x.v keeps it alive.
		n, _, e := unix.RawSyscall(trap, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(v))), uintptr(len(v)))
		if e == unix.EINTR {
			continue
		}
		clear(v)
		if e != 0 {
			return 0, e
		}
		return int(n), 0
	}
}
