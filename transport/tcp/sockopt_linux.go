package tcp

import (
	"net"

	"golang.org/x/sys/unix"
)

// loopbackBuffer is the size of both socket buffers on loopback, where a fixed
// size above the kernel's starting value saves its slow growth. Elsewhere the
// kernel tunes them.
const loopbackBuffer = 2 << 20

// tune sets what helps a connection; nothing of it is needed, so refusals are
// ignored. TCP_NODELAY is what package net sets anyway.
func tune(c net.Conn) {
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
	if own := remote.IP.IsLoopback() || local != nil && local.IP.Equal(remote.IP); own {
		_ = tc.SetReadBuffer(loopbackBuffer)
		_ = tc.SetWriteBuffer(loopbackBuffer)
	} else if !remote.IP.IsPrivate() && !remote.IP.IsLinkLocalUnicast() {
		return // a long path: leave congestion control as the host has it
	}
	if sc, err := tc.SyscallConn(); err == nil {
		_ = sc.Control(cubic)
	}
}

// cubic asks for the congestion control that is best where the bandwidth-delay
// product is small; an unprivileged process may be refused.
func cubic(fd uintptr) {
	_ = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, "cubic")
}
