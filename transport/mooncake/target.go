package mooncake

import (
	"errors"
	"io"
	"net"
	"os"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/mooncake"
	"github.com/tideway-io/tideway/transport"
)

// inbound is one connection that a peer has opened.
type inbound struct {
	*stream
	t   *Transport
	out []byte // answers that wait for company

	// Guarded by t.in:
	idle   bool // between requests
	served bool // a request was served
}

// errDone ends a connection that is done with, without anything wrong.
var errDone = errors.New("done")

// serve serves a connection of which the first bytes were read. They are the
// first of a header: the wire has no greeting.
func (t *Transport) serve(first [8]byte, conn net.Conn) {
	s, err := newStream(conn)
	if err != nil {
		t.log.Warn("connection refused", "err", err)
		_ = conn.Close()
		return
	}
	s.buf = make([]byte, ahead)
	s.w = copy(s.buf, first[:])
	in := &inbound{stream: s, t: t}
	if !t.admit(in) {
		_ = conn.Close()
		return
	}
	defer t.leave(in)
	for err == nil {
		err = in.request()
	}
	if !errors.Is(err, errDone) && !errors.Is(err, io.EOF) {
		t.log.Debug("data connection ended", "peer", conn.RemoteAddr(), "err", err)
	}
}

// admit takes a connection in. Where there are too many, one makes room: of those
// that no request was served on, or else of those that stand still in one, or else
// of those that are idle, the one that has been silent for longest.
func (t *Transport) admit(in *inbound) bool {
	t.in.Lock()
	defer t.in.Unlock()
	if t.in.closed || t.in.draining {
		return false
	}
	if len(t.in.conns) >= max(t.env.Limits.MaxInbound, 1) {
		victim := t.victim()
		if victim == nil {
			return false
		}
		delete(t.in.conns, victim)
		_ = victim.conn.Close()
	}
	t.in.conns[in] = struct{}{}
	t.in.wg.Add(1)
	return true
}

// stuck is how long a request may stand still before its connection may have to
// make room.
const stuck = time.Second

// victim chooses who makes room. t.in is locked.
func (t *Transport) victim() (worst *inbound) {
	rank := func(c *inbound) int {
		switch {
		case !c.served:
			return 3
		case !c.idle && c.quiet() > stuck:
			return 2
		case c.idle:
			return 1
		}
		return 0 // at work
	}
	most := 0
	for c := range t.in.conns {
		if r := rank(c); r > most || r == most && r > 0 && c.moved.Load() < worst.moved.Load() {
			worst, most = c, r
		}
	}
	return worst
}

func (t *Transport) leave(in *inbound) {
	_ = in.conn.Close()
	t.in.Lock()
	delete(t.in.conns, in)
	t.in.Unlock()
	t.in.wg.Done()
}

// request serves one request. Answers of requests that follow each other closely
// leave together.
func (in *inbound) request() error {
	if err := in.header(); err != nil {
		return err
	}
	h := mooncake.ParseDataHeader(in.take(mooncake.DataHeaderSize))
	op := transport.Read
	if h.Write {
		op = transport.Write
	}
	pin, code := in.t.env.Memory.PinAddr(op, h.Addr, h.Size)
	if code == errs.OK {
		pin.Unpin() // each step pins anew, so that nobody waits for the peer to let go
	}
	var err error
	switch {
	case h.Size == 0 || code != errs.OK || pin.File != nil:
		return in.reject(h, code)
	case h.Write:
		err = in.store(h)
	default:
		err = in.give(h)
	}
	return err
}

// header waits for the next request. Between requests a peer may be silent for
// ever, within one for no longer than the stall limit.
func (in *inbound) header() error {
	if in.buffered() >= mooncake.DataHeaderSize {
		return nil
	}
	if err := in.flush(); err != nil {
		return err
	}
	if in.buffered() == 0 {
		if !in.rest(true) {
			return errDone
		}
		_ = in.conn.SetReadDeadline(time.Time{})
		err := in.want(1)
		if !in.rest(false) && err == nil {
			err = errDone
		}
		if err != nil {
			return err
		}
	}
	in.patience()
	return in.want(mooncake.DataHeaderSize)
}

// rest notes whether the connection is between requests; false if it is to end
// there.
func (in *inbound) rest(idle bool) bool {
	in.t.in.Lock()
	defer in.t.in.Unlock()
	in.served = in.served || idle
	in.idle = idle
	return !in.t.in.closed && !(idle && in.t.in.draining)
}

// patience allows the peer one stall limit from now.
func (in *inbound) patience() {
	_ = in.conn.SetDeadline(time.Now().Add(in.t.env.Limits.StallTimeout))
}

func (in *inbound) flush() error {
	if len(in.out) == 0 {
		return nil
	}
	in.patience()
	err := in.write(in.out)
	in.out = in.out[:0]
	return err
}

// answer appends a status where the version has one.
func (in *inbound) answer(h mooncake.DataHeader, s mooncake.Status) {
	if h.V2 {
		in.out = s.Append(in.out)
	}
}

// lingerTimeout is how long a refused peer may go on sending before it is cut
// off: a reset might take the status from it.
const lingerTimeout = time.Second

// reject refuses a request and ends the connection, which is the wire's way.
func (in *inbound) reject(h mooncake.DataHeader, code errs.Code) error {
	in.answer(h, mooncake.StatusRejected)
	if err := in.flush(); err != nil {
		return err
	}
	if half, ok := in.conn.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
		_ = in.conn.SetReadDeadline(time.Now().Add(lingerTimeout))
		_, _ = io.Copy(io.Discard, io.LimitReader(in.conn, 64<<20))
	}
	in.t.log.Debug("request refused", "peer", in.conn.RemoteAddr(), "addr", h.Addr, "size", h.Size, "write", h.Write, "why", code)
	return errDone
}

// store takes the payload of a WRITE and acknowledges it when it is applied. What
// comes after the buffer was taken back is dropped, and refused at the end.
func (in *inbound) store(h mooncake.DataHeader) error {
	code := errs.OK
	for got := uint64(0); got < h.Size; {
		n := min(uint64(in.buffered()), h.Size-got)
		switch {
		case n > 0:
			p := in.take(int(n))
			if pin, now := in.t.env.Memory.PinAddr(transport.Write, h.Addr+got, n); now == errs.OK {
				copy(pin.Bytes, p)
				pin.Unpin()
			} else {
				code = now
			}
			got += n
		case len(in.out) > 0: // answers do not wait for a payload
			if err := in.flush(); err != nil {
				return err
			}
		case code != errs.OK || h.Size-got <= copied:
			in.patience()
			if err := in.want(1); err != nil {
				return err
			}
		default:
			m, now, err := in.direct(h.Addr+got, h.Size-got)
			if err != nil {
				return err
			}
			got, code = got+uint64(m), now
		}
	}
	if code != errs.OK {
		return in.reject(h, code)
	}
	in.answer(h, mooncake.StatusOK)
	return nil
}

// direct reads from the socket into memory once, pinned for the system call.
func (in *inbound) direct(addr, left uint64) (n int, code errs.Code, err error) {
	in.patience()
	var pin transport.Pin
	err = in.into(func() []byte {
		if pin, code = in.t.env.Memory.PinAddr(transport.Write, addr, min(left, step)); code != errs.OK {
			return nil
		}
		return pin.Bytes
	}, func(m int) {
		pin.Unpin()
		n = m
	})
	return n, code, err
}

// give sends the status and the payload of a READ. A short payload is copied
// behind its status, a long one sent from where it lies; if its buffer is taken
// back meanwhile the connection ends, as there is no other way to say it.
func (in *inbound) give(h mooncake.DataHeader) error {
	if h.Size <= gathered {
		pin, code := in.t.env.Memory.PinAddr(transport.Read, h.Addr, h.Size)
		if code != errs.OK {
			return in.reject(h, code)
		}
		in.answer(h, mooncake.StatusOK)
		in.out = append(in.out, pin.Bytes...)
		pin.Unpin()
		if len(in.out) >= gathered {
			return in.flush()
		}
		return nil
	}
	in.answer(h, mooncake.StatusOK)
	if err := in.flush(); err != nil {
		return err
	}
	for sent := uint64(0); sent < h.Size; {
		in.patience()
		code, n := errs.OK, 0
		var pin transport.Pin
		err := in.from(func() []byte {
			if pin, code = in.t.env.Memory.PinAddr(transport.Read, h.Addr+sent, min(h.Size-sent, sendStep)); code != errs.OK {
				return nil
			}
			return pin.Bytes
		}, func(m int) {
			pin.Unpin()
			n = m
		})
		if code != errs.OK {
			return errs.New(code, "serve read", "the buffer was taken back after %d of %d bytes", sent, h.Size)
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return errs.New(errs.Unresponsive, "serve read", "the peer reads nothing")
		}
		if err != nil {
			return err
		}
		sent += uint64(n)
	}
	return nil
}
