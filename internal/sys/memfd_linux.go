package sys

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// The seals of a memfd that Tideway uses. Each holds for ever once it is set.
const (
	SealShrink = unix.F_SEAL_SHRINK       // nobody can cut it off under a mapping
	SealGrow   = unix.F_SEAL_GROW         // its size does not change at all
	SealFuture = unix.F_SEAL_FUTURE_WRITE // no new writable mapping, those that exist stay
	SealSeals  = unix.F_SEAL_SEAL         // no more seals
)

// MostFiles is how many descriptors this process may have.
func MostFiles() uint64 {
	var limit unix.Rlimit
	_ = unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) // cannot fail: the limit exists, and so does its place
	return limit.Cur
}

// NewMemfd makes a memfd of size zero bytes with seals, and returns its
// descriptor, which is closed on exec. It has no name in any file system and
// ends with its last descriptor and mapping. The name is for /proc/PID/maps.
func NewMemfd(name string, size int64, seals int) (fd int, err error) {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_FSIZE, &limit) == nil && uint64(size) > limit.Cur {
		return -1, os.NewSyscallError("ftruncate", unix.EFBIG) // the call itself would also send SIGXFSZ
	}
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err = unix.MemfdCreate(name, flags|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // a kernel before 6.3
		fd, err = unix.MemfdCreate(name, flags)
	}
	if err != nil {
		return -1, os.NewSyscallError("memfd_create", err)
	}
	if err = unix.Ftruncate(fd, size); err != nil {
		err = os.NewSyscallError("ftruncate", err)
	} else {
		err = Seal(fd, seals)
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// Seal adds seals to a memfd.
func Seal(fd, seals int) error {
	_, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
	return os.NewSyscallError("fcntl(F_ADD_SEALS)", err)
}

// Memfd says what is behind a descriptor that somebody else has made: its size
// and its seals. It fails for everything that is no memfd of ordinary pages:
// only of those is it known that a mapping within the size, once SealShrink is
// set, never faults for a reason that the other side chooses.
func Memfd(fd int) (size int64, seals int, err error) {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return 0, 0, os.NewSyscallError("fstatfs", err)
	}
	if fs.Type != unix.TMPFS_MAGIC { // huge pages, for one, may be missing when they are touched
		return 0, 0, os.NewSyscallError("fstatfs", unix.ENOTSUP)
	}
	if seals, err = unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0); err != nil {
		return 0, 0, os.NewSyscallError("fcntl(F_GET_SEALS)", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, 0, os.NewSyscallError("fstat", err)
	}
	return st.Size, seals, nil
}

// Dup returns another descriptor for the same thing, closed on exec.
func Dup(fd int) (int, error) {
	n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	return n, os.NewSyscallError("fcntl(F_DUPFD_CLOEXEC)", err)
}

// Close closes a descriptor.
func Close(fd int) error { return os.NewSyscallError("close", unix.Close(fd)) }
