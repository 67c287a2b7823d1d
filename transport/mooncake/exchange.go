package mooncake

import (
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/mooncake"
	"github.com/tideway-io/tideway/transport"
)

// Payloads of at most copied bytes are copied behind their header, so that many
// requests leave with one system call; gathered is how much.
const (
	copied   = 16 << 10
	gathered = 64 << 10
)

// exchange is one connection's life: it sends here and receives beside, until
// either cannot go on, and settles what was under way.
func (l *lane) exchange(c *stream) {
	l.mu.Lock()
	l.mu.conn, l.mu.cause = c, nil
	closed := l.mu.closed
	l.up.Store(!closed)
	l.mu.Unlock()
	if closed {
		l.abort(errs.New(errs.Closed, "close endpoint", "closed meanwhile"))
	}
	over := make(chan struct{})
	var receiving sync.WaitGroup
	receiving.Go(func() {
		l.abort(l.receive(c))
		close(over)
	})
	s := sender{lane: l, c: c}
	for s.err == nil && s.next(over) {
	}
	receiving.Wait() // after a failed write as well: the reason may have come before
	l.settle(s.err)
}

// sender is the sending side of one connection.
type sender struct {
	*lane
	c   *stream
	out []byte
	err error
}

// next sends what there is, or waits for more; false when the connection is over.
func (s *sender) next(over <-chan struct{}) bool {
	select {
	case <-over:
		return false
	default:
	}
	long := s.gather()
	if len(s.out) == 0 {
		select {
		case <-s.wake:
			return true
		case <-over:
			return false
		}
	}
	if s.err = s.c.write(s.out); s.err == nil && long != nil {
		s.err = s.payload(long)
	}
	s.out = s.out[:0]
	return s.err == nil
}

// gather begins requests as the window allows: headers and short payloads go to
// out. It stops behind the header of a WRITE whose payload is long, and returns
// that.
func (s *sender) gather() *request {
	l := s.lane
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(s.out) < gathered && l.mu.queue.len() > 0 && l.room(l.mu.queue.front()) {
		r := l.mu.queue.pop()
		l.mu.flight.push(r)
		l.mu.flying += r.size
		s.out = mooncake.DataHeader{Size: uint64(r.size), Addr: r.addr, Write: r.write(), V2: l.e.v2}.Append(s.out)
		if r.write() && r.size > copied {
			return r
		}
		if r.write() {
			s.out = append(s.out, r.slice.Local...)
			r.sent = r.size
			s.confirm(r)
		}
		r.whole = true
	}
	return nil
}

// confirm has the WRITE of version 1, which is not answered, followed by a READ
// of its first byte: peers serve a connection in order, so that answer proves
// that the WRITE was applied.
func (s *sender) confirm(r *request) {
	if !s.e.v2 {
		s.out = mooncake.DataHeader{Size: 1, Addr: r.addr}.Append(s.out)
	}
}

// room reports whether r may be begun. Version 1 has no refusals, so what is
// under way beside a refused request could not be told from it: one at a time.
// The lock is held.
func (l *lane) room(r *request) bool {
	n := l.mu.flight.len()
	return n == 0 || l.e.v2 && n < maxFlight && l.mu.flying+r.size <= maxSent
}

// payload sends a long payload from where it lies, or from the copy that was
// made when the request was cancelled. The lane is locked during each system
// call, so that Cancel can promise that the range is not read any more.
func (s *sender) payload(r *request) error {
	for whole := false; !whole; {
		err := s.c.from(func() []byte {
			s.mu.Lock()
			if r.ended {
				return r.rest
			}
			return r.slice.Local[r.sent:]
		}, func(n int) {
			defer s.mu.Unlock()
			r.sent += n
			if r.ended {
				r.rest = r.rest[n:]
			}
			whole = r.sent == r.size
		})
		if err != nil {
			return err
		}
	}
	s.out = s.out[:0]
	s.confirm(r)
	if len(s.out) > 0 {
		if err := s.c.write(s.out); err != nil {
			return err
		}
	}
	s.mu.Lock()
	r.whole = true
	var done []transport.Completion
	if r.acked {
		done = s.lane.answered(done)
	}
	s.mu.Unlock()
	if len(done) > 0 {
		s.e.t.env.Sink.Complete(done)
	}
	return nil
}

// answered completes the request at the head, whose answer has wholly come. The
// lock is held.
func (l *lane) answered(done []transport.Completion) []transport.Completion {
	r := l.mu.flight.pop()
	l.mu.flying -= r.size
	if !r.ended {
		if r.write() {
			l.e.out.Add(uint64(r.size))
		} else {
			l.e.in.Add(uint64(r.size))
		}
		done = append(done, l.complete(r, errs.OK, nil, false))
	}
	l.recycle(r)
	return done
}

// settle ends what the connection had under way. Nothing of it is read or
// written any more.
func (l *lane) settle(sending error) {
	l.mu.Lock()
	cause := l.mu.cause
	if sending != nil && (cause == nil || errors.Is(cause, io.EOF)) {
		cause = sending
	}
	rejected := errors.Is(cause, errRejected)
	code, err := l.lost(cause)
	var done []transport.Completion
	var again []*request
	for i, r := range l.mu.flight.all() {
		switch {
		case r.ended:
			l.recycle(r)
		case rejected && i > 0: // the peer has closed without looking at it
			r.sent, r.got, r.whole = 0, 0, false
			again = append(again, r)
		default:
			begun := r.write() && (r.size <= copied || r.sent > 0) && !rejected
			done = append(done, l.complete(r, code, err, begun))
			l.recycle(r)
		}
	}
	l.mu.queue.reset(append(again, l.mu.queue.all()...))
	l.mu.flight.reset(nil)
	l.mu.flying, l.mu.conn = 0, nil
	l.up.Store(false)
	l.mu.Unlock()
	if len(done) > 0 {
		l.e.t.env.Sink.Complete(done)
	}
	if code == errs.Unresponsive { // those behind would only wait as long
		l.failQueue(err)
	}
}

// errRejected is the peer's refusal of the request at the head.
var errRejected = errors.New("status 1")

// lost is what the end of a connection means for the requests on it.
func (l *lane) lost(cause error) (errs.Code, error) {
	e := l.e.failed("wire", errs.New(errs.LaneLost, "wire", "the peer closed the connection with requests on it; so do peers that refuse a request of version 1"))
	e.Retryable = true
	switch code := errs.Of(cause); {
	case cause == nil || errors.Is(cause, io.EOF):
	case errors.Is(cause, errRejected):
		e = l.e.failed("apply", errs.New(errs.Stale, "apply",
			"the peer knows no buffer that holds the range: it was unregistered, does not allow this, or the peer restarted; fetch the descriptor again"))
	case code == errs.Internal: // the connection's own error
		e.Detail, e.Err = "", cause
	default:
		e = l.e.failed("wire", cause)
		e.Retryable = code == errs.Unresponsive
	}
	return e.Reason, e
}

// receiver is the receiving side of one connection.
type receiver struct {
	*lane
	c    *stream
	done []transport.Completion // not yet delivered
}

// receive takes answers until the connection ends, and says why it has.
func (l *lane) receive(c *stream) error {
	r := receiver{lane: l, c: c}
	for {
		if err := r.answer(); err != nil {
			r.flush()
			return err
		}
		if len(r.done) >= 64 {
			r.flush()
		}
	}
}

// flush delivers completions and has the room that they leave used.
func (v *receiver) flush() {
	v.nudge()
	if len(v.done) > 0 {
		v.e.t.env.Sink.Complete(v.done)
		v.done = v.done[:0]
	}
}

// answer takes the answer to one request.
func (v *receiver) answer() error {
	l, c, head := v.lane, v.c, 1
	if l.e.v2 {
		head = mooncake.StatusSize
	}
	if c.buffered() < head {
		if err := v.patiently(func() error { return c.wantOf(head, v.ahead(head)) }); err != nil {
			return err
		}
	}
	l.mu.Lock()
	r := l.mu.flight.front()
	l.mu.Unlock()
	if r == nil || r.acked {
		return errs.New(errs.Invalid, "receive", "the peer sent bytes that nobody asked for")
	}
	switch {
	case l.e.v2:
		status, ok := mooncake.ParseStatus(c.take(head))
		if !ok {
			return errs.New(errs.Invalid, "receive", "no status in the answer: the peer speaks version 1, and its descriptor says 2; fetch it again")
		}
		if status != mooncake.StatusOK {
			return errRejected
		}
	case r.write():
		c.take(head) // the byte that was asked for behind it
	}
	if !r.write() {
		if err := v.fill(r); err != nil {
			return err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !r.whole {
		r.acked = true
		return nil
	}
	v.done = l.answered(v.done)
	return nil
}

// ahead is how much may be read ahead of an answer whose head has that size: not
// the payload of a long READ, which goes where it belongs without a copy.
func (v *receiver) ahead(head int) int {
	v.mu.Lock()
	defer v.mu.Unlock()
	if r := v.mu.flight.front(); r != nil && !r.write() && r.size > copied {
		return head
	}
	return ahead
}

// fill takes the payload of a READ: into the local range, unless it was
// cancelled. The lane is locked during each copy and system call.
func (v *receiver) fill(r *request) error {
	for r.got < r.size {
		if n := min(v.c.buffered(), r.size-r.got); n > 0 {
			p := v.c.take(n)
			v.mu.Lock()
			if !r.ended {
				copy(r.slice.Local[r.got:], p)
			}
			v.mu.Unlock()
			r.got += n
			continue
		}
		read := v.direct
		if v.ended(r) || r.size-r.got <= copied {
			read = func(r *request) error { return v.need(min(r.size-r.got, ahead)) }
		}
		if err := read(r); err != nil {
			return err
		}
	}
	return nil
}

func (v *receiver) ended(r *request) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return r.ended
}

// direct reads from the socket into the local range once.
func (v *receiver) direct(r *request) error {
	return v.patiently(func() error {
		return v.c.into(func() []byte {
			v.mu.Lock()
			if r.ended {
				v.mu.Unlock()
				return nil
			}
			return r.slice.Local[r.got:]
		}, func(n int) {
			r.got += n
			v.mu.Unlock()
		})
	})
}

// need reads ahead until there are n bytes.
func (v *receiver) need(n int) error {
	if v.c.buffered() >= n {
		return nil
	}
	return v.patiently(func() error { return v.c.want(n) })
}

// patiently repeats a read for as long as the peer moves bytes one way or the
// other within the limit, or owes nothing.
func (v *receiver) patiently(read func() error) error {
	v.flush()
	c, limit := v.c, v.e.t.opts.StatusTimeout
	for {
		_ = c.conn.SetReadDeadline(time.Now().Add(max(limit-c.quiet(), limit/16)))
		err := read()
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
		v.mu.Lock()
		idle := v.mu.flight.len() == 0
		v.mu.Unlock()
		switch {
		case idle:
			c.progress()
			c.strike = false
		case c.quiet() < limit:
		case !c.strike: // perhaps it is this process that stood still
			c.strike = true
		default:
			return errs.New(errs.Unresponsive, "wire", "the peer was silent for %v with requests outstanding", limit)
		}
	}
}
