package sys

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// MaxRanges is how many ranges one read of another process may have.
const MaxRanges = 1024

// Ranges are pieces of another process's memory and where they go. The zero
// value is empty. It keeps its arrays, so that filling it again allocates
// nothing.
type Ranges struct {
	local  []unix.Iovec
	remote []unix.RemoteIovec
}

// Reset makes r empty and lets go of the memory that it named.
func (r *Ranges) Reset() {
	clear(r.local)
	r.local, r.remote = r.local[:0], r.remote[:0]
}

// Len returns how many pieces there are.
func (r *Ranges) Len() int { return len(r.local) }

// Add appends len(to) bytes at address from of the other process. Pieces of no
// bytes and pieces beyond the address space are the caller's to avoid.
func (r *Ranges) Add(to []byte, from uint64) {
	// Sound: SliceData points to len(to) writable bytes, in a typed pointer that
	// the collector sees for as long as r has it.
	v := unix.Iovec{Base: unsafe.SliceData(to)}
	v.SetLen(len(to))
	r.local = append(r.local, v)
	r.remote = append(r.remote, unix.RemoteIovec{Base: uintptr(from), Len: len(to)})
}

// Read copies the pieces, in order, out of process pid and returns how many
// bytes that were. It stops before the first piece that cannot be read or
// written as a whole; an error means that this was the first one.
func (r *Ranges) Read(pid int) (int, error) {
	n, err := unix.ProcessVMReadv(pid, r.local, r.remote, 0)
	if err != nil {
		return 0, os.NewSyscallError("process_vm_readv", err)
	}
	return n, nil
}
