package sys

import (
	"net"

	"golang.org/x/sys/unix"
)

// loopbackBuffer is the size of both socket buffers on loopback, where a fixed
// size above the kernel's starting value saves its slow growth. Elsewhere the
// kernel tunes them.
const loopbackBuffer = 2 << 20

// unsentLimit bounds what waits in a socket without having been sent, so that
// what is urgent passes what is not up to here. It does not bound what is in
// flight.
const unsentLimit = 512 << 10

// Tune sets what helps a TCP connection that carries bulk and small requests;
// nothing of it is needed, so refusals are ignored. TCP_NODELAY is what package
// net sets anyway.
func Tune(c net.Conn) {
	tc, ok := c.(*net.TCPConn)
	if !ok {
		return
	}
	remote, ok := tc.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return
	}
	local, _ := tc.LocalAddr().(*net.TCPAddr)
	_ = tc.SetNoDelay(true)
	sc, err := tc.SyscallConn()
	if err != nil {
		return
	}
	switch own := remote.IP.IsLoopback() || local != nil && local.IP.Equal(remote.IP); {
	case own:
		_ = tc.SetReadBuffer(loopbackBuffer)
		_ = tc.SetWriteBuffer(loopbackBuffer)
		_ = sc.Control(cubic)
	case remote.IP.IsPrivate() || remote.IP.IsLinkLocalUnicast():
		_ = sc.Control(cubic)
		_ = sc.Control(limitUnsent)
	default: // a long path: congestion control as the host has it
		_ = sc.Control(limitUnsent)
	}
}

func limitUnsent(fd uintptr) {
	_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, unsentLimit)
}

// cubic asks for the congestion control that is best where the bandwidth-delay
// product is small; an unprivileged process may be refused.
func cubic(fd uintptr) {
	_ = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, "cubic")
}
