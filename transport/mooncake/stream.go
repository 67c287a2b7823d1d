package mooncake

import (
	"errors"
	"io"
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/sys"
)

// step is how many bytes of memory one system call moves, so that whoever holds
// them needs them for some ten microseconds only.
const step = 256 << 10

// sendStep is step for sending: the call returns sooner, as it waits for nobody's
// bytes, and a peer that waits for more is woken less often.
const sendStep = 512 << 10

// stream is a connection whose payload goes between the socket and memory
// without a copy, by system calls that do not block. Waiting is the netpoller's.
type stream struct {
	conn   net.Conn
	raw    syscall.RawConn
	buf    []byte       // what was read ahead and not yet taken is buf[r:w]
	r, w   int          //
	moved  atomic.Int64 // when bytes moved last, Unix nanoseconds
	strike bool         // the deadline passed once already
}

// ahead is how much is read ahead: headers, answers and short payloads.
const ahead = 64 << 10

func newStream(c net.Conn) (*stream, error) {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return nil, errs.New(errs.Unsupported, "open connection", "a %T has no descriptor; want plain TCP connections", c)
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return nil, &errs.Error{Op: "open connection", Reason: errs.LaneLost, Err: err}
	}
	sys.Tune(c)
	s := &stream{conn: c, raw: raw}
	s.progress()
	return s, nil
}

func (s *stream) progress() { s.moved.Store(time.Now().UnixNano()) }

// quiet is for how long no bytes have moved either way.
func (s *stream) quiet() time.Duration { return time.Duration(time.Now().UnixNano() - s.moved.Load()) }

// buffered returns how many bytes are read ahead.
func (s *stream) buffered() int { return s.w - s.r }

// want reads until n bytes are read ahead, n at most ahead. The caller has set
// the deadline.
func (s *stream) want(n int) error { return s.wantOf(n, ahead) }

// wantOf is want that reads no more than most bytes ahead: what follows is long
// and need not be copied.
func (s *stream) wantOf(n, most int) error {
	if s.buffered() >= n {
		return nil
	}
	if s.buf == nil {
		s.buf = make([]byte, ahead)
	}
	if s.r > 0 {
		s.w = copy(s.buf, s.buf[s.r:s.w])
		s.r = 0
	}
	for s.w < n {
		m, err := s.conn.Read(s.buf[s.w:max(n, most)])
		if m > 0 {
			s.progress()
			s.strike = false
		}
		s.w += m
		if err != nil && s.w < n {
			return err
		}
	}
	return nil
}

// take returns the next n bytes of those read ahead.
func (s *stream) take(n int) []byte {
	p := s.buf[s.r : s.r+n]
	s.r += n
	return p
}

// into makes one read from the socket into what dst returns, when there are
// bytes. dst is called each time anew, right before the system call, and done
// right after it; both are called without a wait between. An empty dst ends it.
func (s *stream) into(dst func() []byte, done func(n int)) error {
	var failed error
	err := s.raw.Read(func(fd uintptr) bool {
		p := dst()
		if len(p) == 0 {
			return true
		}
		n, err := again(unix.Read, int(fd), p[:min(len(p), step)])
		done(n)
		if n > 0 {
			s.progress()
			s.strike = false
		}
		if n == 0 && err == nil {
			err = io.EOF
		}
		if err != nil && !errors.Is(err, unix.EAGAIN) {
			failed = err
		}
		return !errors.Is(err, unix.EAGAIN)
	})
	return errors.Join(err, failed)
}

// from is into for writing.
func (s *stream) from(src func() []byte, done func(n int)) error {
	var failed error
	err := s.raw.Write(func(fd uintptr) bool {
		p := src()
		if len(p) == 0 {
			return true
		}
		n, err := again(send, int(fd), p[:min(len(p), sendStep)])
		done(n)
		if n > 0 {
			s.progress()
		}
		if err != nil && !errors.Is(err, unix.EAGAIN) {
			failed = err
		}
		return !errors.Is(err, unix.EAGAIN)
	})
	return errors.Join(err, failed)
}

// again makes a call, repeated while a signal interrupts it; n is never negative.
func again(call func(int, []byte) (int, error), fd int, p []byte) (int, error) {
	for {
		n, err := call(fd, p)
		if err != unix.EINTR {
			return max(n, 0), err
		}
	}
}

// write sends p, a few kilobytes of our own.
func (s *stream) write(p []byte) error {
	_, err := s.conn.Write(p)
	if err == nil {
		s.progress()
	}
	return err
}
