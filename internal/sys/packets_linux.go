package sys

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Packets is a Unix socket that keeps the borders of messages and can carry a
// descriptor with each. Receive is for one goroutine at a time, and so are
// TrySend and WaitSend together; Close may come from any.
type Packets struct {
	conn *net.UnixConn
	raw  syscall.RawConn
	in   half
	out  half
}

// half is one direction: what its call is about and how it went, in one place
// that does not move, so that a call allocates nothing.
type half struct {
	wait func(fd uintptr) bool // makes the call; false: nothing to be had yet
	now  func(fd uintptr)      // the same without the answer
	msg  unix.Msghdr
	iov  unix.Iovec
	ctrl rights
	n    int
	err  error
}

// rights is a control message with one descriptor.
type rights struct {
	head unix.Cmsghdr
	fd   int32
	_    int32 // padding that the kernel counts
}

// NewPackets takes over a connected socket of the network "unixpacket".
func NewPackets(c *net.UnixConn) (*Packets, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	p := &Packets{conn: c, raw: raw}
	p.in.bind(unix.SYS_RECVMSG, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
	p.out.bind(unix.SYS_SENDMSG, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	return p, nil
}

func (h *half) bind(trap, flags uintptr) {
	h.wait = func(fd uintptr) bool { return h.call(trap, fd, flags) }
	h.now = func(fd uintptr) { h.call(trap, fd, flags) }
}

// set points h at the bytes of one message, and at the room for a descriptor.
func (h *half) set(b []byte, control bool) {
	h.iov.Base = unsafe.SliceData(b) // sound: len(b) bytes that b keeps alive, in a pointer that the collector sees
	h.iov.SetLen(len(b))
	h.msg = unix.Msghdr{Iov: &h.iov, Iovlen: 1}
	if control {
		h.msg.Control = (*byte)(unsafe.Pointer(&h.ctrl)) // sound: as long as the length set below
		h.msg.SetControllen(unix.CmsgLen(4))             // exactly one fits, and the kernel closes others
	}
}

// call makes one system call that does not wait, and reports whether there is
// nothing to wait for.
func (h *half) call(trap, fd, flags uintptr) bool {
	for {
		// Sound: the conversion is in the argument list of the call (rule 4 of
		// package unsafe); h is on the heap, and with it all that msg points to.
		n, _, e := unix.RawSyscall(trap, fd, uintptr(unsafe.Pointer(&h.msg)), flags)
		switch e {
		case 0:
			h.n, h.err = int(n), nil
		case unix.EINTR:
			continue
		case unix.EAGAIN:
			h.n, h.err = 0, ErrAgain
			return false
		default:
			h.n, h.err = 0, e
		}
		return true
	}
}

// Receive waits for a message and reads it into b. fd is the descriptor that
// came with it, now the caller's to close, or -1. The error is io.EOF once the
// peer's last message was read, ErrLong where b is too short.
func (p *Packets) Receive(b []byte) (n, fd int, err error) {
	h := &p.in
	h.set(b, true)
	if err := p.raw.Read(h.wait); err != nil {
		return 0, -1, err
	}
	if h.err != nil {
		return 0, -1, os.NewSyscallError("recvmsg", h.err)
	}
	raceReceive()
	fd = h.descriptor()
	switch {
	case h.msg.Flags&unix.MSG_TRUNC != 0:
		err = ErrLong
	case h.n == 0:
		err = io.EOF
	}
	if err != nil && fd >= 0 {
		_ = unix.Close(fd)
		fd = -1
	}
	return h.n, fd, err
}

// descriptor returns the one that was received, or -1.
func (h *half) descriptor() int {
	c := &h.ctrl
	if int(h.msg.Controllen) < unix.CmsgLen(4) || c.head.Level != unix.SOL_SOCKET || c.head.Type != unix.SCM_RIGHTS {
		return -1
	}
	return int(c.fd)
}

// message points h at a message to send.
func (h *half) message(b []byte, fd int) {
	raceSend()
	h.set(b, fd >= 0)
	h.ctrl = rights{fd: int32(fd)}
	h.ctrl.head.Level, h.ctrl.head.Type = unix.SOL_SOCKET, unix.SCM_RIGHTS
	h.ctrl.head.SetLen(unix.CmsgLen(4))
}

// TrySend sends a message, with a descriptor unless fd is -1, without waiting.
// The error is ErrAgain where the socket has no room.
func (p *Packets) TrySend(b []byte, fd int) error {
	p.out.message(b, fd)
	return p.out.sent(p.raw.Control(p.out.now))
}

// WaitSend sends a message as TrySend does, but waits for room.
func (p *Packets) WaitSend(b []byte, fd int) error {
	p.out.message(b, fd)
	return p.out.sent(p.raw.Write(p.out.wait))
}

func (h *half) sent(err error) error {
	if err == nil {
		err = h.err
	}
	if err == nil || err == ErrAgain || errors.Is(err, net.ErrClosed) {
		return err
	}
	return os.NewSyscallError("sendmsg", err)
}

// Peer returns who was at the other end when the connection was made: its
// process, 0 where that cannot be seen from here, and its effective user.
func (p *Packets) Peer() (pid, uid int, err error) {
	var cred *unix.Ucred
	cerr := p.raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err = errors.Join(cerr, err); err != nil {
		return 0, 0, os.NewSyscallError("getsockopt(SO_PEERCRED)", err)
	}
	return int(cred.Pid), int(cred.Uid), nil
}

// Close closes the socket; a Receive or WaitSend under way fails.
func (p *Packets) Close() error { return p.conn.Close() }
