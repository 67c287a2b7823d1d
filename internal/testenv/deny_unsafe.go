//go:build linux && (amd64 || arm64)

package testenv

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// DenyAttach makes every thread of this process, for good, one whose calls of
// process_vm_readv and process_vm_writev fail with EPERM, as the filters of many
// container runtimes do.
func DenyAttach() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("give up new privileges: %w", err)
	}
	const load, equal, ret = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, unix.BPF_RET | unix.BPF_K
	filter := []unix.SockFilter{
		{Code: load, K: 0}, // the number of the system call
		{Code: equal, Jt: 1, K: unix.SYS_PROCESS_VM_READV},
		{Code: equal, Jf: 1, K: unix.SYS_PROCESS_VM_WRITEV},
		{Code: ret, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
		{Code: ret, K: unix.SECCOMP_RET_ALLOW},
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	// Sound: the kernel reads prog and the filter during the call only, and both
	// are kept by it.
	_, _, e := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(filter)
	if e != 0 {
		return fmt.Errorf("install a filter of system calls: %w", e)
	}
	return nil
}
