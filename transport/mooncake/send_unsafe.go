package mooncake

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// send is unix.Write, but tells the race detector nothing. That would be told
// after the call, when the peer may have the bytes and whoever it told already
// be writing the next ones; the memory that a READ sends is its owner's to
// change at any time.
func send(fd int, p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	// Sound: p is not empty and is kept alive by the caller's reference for as long
	// as the call takes; the kernel reads len(p) bytes and keeps no pointer.
	n, _, e := syscall.Syscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)))
	if e != 0 {
		return 0, e
	}
	return int(n), nil
}
