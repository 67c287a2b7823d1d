package listen

import "syscall"

// bindTo has a connection leave through one interface: with two on one network the
// routes alone would take the same for both. An old kernel refuses it to an
// unprivileged process, and then the routes decide.
func bindTo(c syscall.RawConn, device string) error {
	return c.Control(func(fd uintptr) {
		_ = syscall.SetsockoptString(int(fd), syscall.SOL_SOCKET, syscall.SO_BINDTODEVICE, device)
	})
}
