package tcp

import (
	"errors"
	"io"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tideway-io/tideway/errs"
)

// errAgain says that a link can move no bytes now; its wait functions tell when.
var errAgain = errors.New("not now")

// link is the connection under a lane, as a descriptor that never blocks.
// readv and writev are called only from inside the functions given to bind, so
// that a closed descriptor's number is never somebody else's connection.
type link interface {
	// bind sets what waitRead, waitWrite, now and poll call. It is called once,
	// first.
	bind(readable, writable func() bool, now, poll func())
	// waitRead calls readable at once and whenever bytes may have come, until
	// it returns true (then nil) or the link is closed.
	waitRead() error
	// waitWrite does the same with writable and room in the socket.
	waitWrite() error
	// now calls the third function once, or fails if the link is closed.
	now() error
	// poll calls the fourth function once, or fails if the link is closed.
	poll() error
	// hush has bytes that arrive wake nobody, or ends that; the end of the stream
	// and many bytes still do. Its end is like an arrival if there are bytes. It
	// is false where that cannot be had. It is called where readv is.
	hush(on bool) bool
	// readv fills to in order; errAgain, or io.EOF after the peer's last byte.
	readv(to [][]byte) (int, error)
	// writev sends from in order, perhaps only a part; errAgain if nothing.
	writev(from [][]byte) (int, error)
	// stop makes the wait functions return, now and from now on. It does not
	// wait, and may be called from inside them.
	stop()
	// Close waits until no function given to bind is running.
	Close() error
}

// newLink takes over a connection. One that is a link already is used as it is.
func newLink(c net.Conn) (link, error) {
	if k, ok := c.(link); ok {
		return k, nil
	}
	sc, ok := c.(syscall.Conn)
	if !ok {
		return nil, errs.New(errs.Unsupported, "open lane", "a %T has no descriptor; Env.Dial and Env.Accept must give plain TCP connections", c)
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return nil, &errs.Error{Op: "open lane", Reason: errs.LaneLost, Err: err}
	}
	k := &fdLink{conn: c, raw: raw}
	if err := raw.Control(func(fd uintptr) { k.fd = int(fd) }); err != nil {
		return nil, &errs.Error{Op: "open lane", Reason: errs.LaneLost, Err: err}
	}
	return k, nil
}

// fdLink is a link over a socket that the netpoller watches.
type fdLink struct {
	conn    net.Conn
	raw     syscall.RawConn
	fd      int // valid only while raw holds a reference, that is inside the callbacks
	onRead  func(uintptr) bool
	onWrite func(uintptr) bool
	onNow   func(uintptr)
	onPoll  func(uintptr)
	rvec    iovecs // used by the reader alone
	wvec    iovecs // used by the holder of the lane's baton alone
}

func (k *fdLink) bind(readable, writable func() bool, now, poll func()) {
	k.onRead = func(uintptr) bool { return readable() }
	k.onWrite = func(uintptr) bool { return writable() }
	k.onNow = func(uintptr) { now() }
	k.onPoll = func(uintptr) { poll() }
}

func (k *fdLink) waitRead() error  { return k.raw.Read(k.onRead) }
func (k *fdLink) waitWrite() error { return k.raw.Write(k.onWrite) }
func (k *fdLink) now() error       { return k.raw.Control(k.onNow) }
func (k *fdLink) poll() error      { return k.raw.Control(k.onPoll) }
func (k *fdLink) stop()            { _ = k.conn.SetDeadline(time.Unix(1, 0)) }
func (k *fdLink) Close() error     { return k.conn.Close() }

// hushMark is how many bytes wake the netpoller all the same while a link is
// hushed.
const hushMark = 1 << 20

// hush raises the socket's low-water mark: the netpoller's descriptor set is not
// told of what stays below it, so no thread of this process gets up for bytes
// that somebody who does not sleep will take anyway. When the mark is lowered the
// kernel tells of what is there (since Linux 4.18).
func (k *fdLink) hush(on bool) bool {
	mark := 1
	if on {
		mark = hushMark
	}
	return unix.SetsockoptInt(k.fd, unix.SOL_SOCKET, unix.SO_RCVLOWAT, mark) == nil
}

func (k *fdLink) readv(to [][]byte) (int, error) {
	n, e := k.rvec.call(unix.SYS_READV, k.fd, to)
	raceReceive()
	if e == 0 && n == 0 {
		return 0, io.EOF
	}
	return n, errnoErr(e)
}

func (k *fdLink) writev(from [][]byte) (int, error) {
	raceSend()
	n, e := k.wvec.call(unix.SYS_WRITEV, k.fd, from)
	return n, errnoErr(e)
}

func errnoErr(e syscall.Errno) error {
	switch e {
	case 0:
		return nil
	case unix.EAGAIN:
		return errAgain
	}
	return e
}
