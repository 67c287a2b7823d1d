package memory

import (
	"sync"
	"sync/atomic"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/mem"
	"github.com/tideway-io/tideway/topology"
	"github.com/tideway-io/tideway/transport"
)

const (
	// inlineSlice is the longest slice that Post copies itself: some 25 µs.
	inlineSlice = 256 << 10
	// inlinePost is how much one Post copies itself: some 200 µs, so that its
	// caller is soon back at its own work.
	inlinePost = 1 << 20
	// flushAt is how many completions are delivered at once.
	flushAt = 64
)

// endpoint joins two engines of one process, or one with itself.
type endpoint struct {
	from, to *Transport

	inFlight, bytesIn, bytesOut atomic.Uint64

	mu struct {
		sync.Mutex
		closed bool
		inside int       // calls of Post and jobs that have not ended
		idle   sync.Cond // inside became 0 after closed
		live   []*job    // queued or running
		spare  []*job    // ended, to be used again
	}
}

var (
	_ transport.Canceler = (*endpoint)(nil)
	_ transport.Observer = (*endpoint)(nil)
)

// results gathers what one Post did itself.
type results struct {
	n       int
	in, out uint64 // bytes moved, as counted by RailState
	done    [flushAt]transport.Completion
}

// Rails implements transport.Endpoint.
func (e *endpoint) Rails() []transport.Rail { return []transport.Rail{{Local: Name, Remote: Name}} }

// Post implements transport.Endpoint.
func (e *endpoint) Post(s []transport.Slice) (n int, err error) {
	if err := e.enter(); err != nil {
		return 0, err
	}
	out, _ := e.from.results.Get().(*results)
	if out == nil {
		out = new(results)
	}
	budget := inlinePost
	for n < len(s) && err == nil {
		switch size := len(s[n].Local); {
		case !valid(&s[n]):
			err = refuse(errs.Invalid, "post", "op %v, rail %d, buffer given: %t; want read or write, rail 0, a buffer", s[n].Op, s[n].Rail, s[n].Buffer != nil)
			continue
		case size <= min(inlineSlice, budget) && s[n].Buffer.Location != topology.File:
			budget -= size
			e.add(out, &s[n])
			took, bytes := e.follow(out, s[n:], budget)
			n, budget = n+took, budget-bytes
		default:
			if err = e.queue(&s[n]); err != nil {
				continue
			}
		}
		n++
	}
	e.flush(out)
	e.from.results.Put(out)
	e.leave()
	return n, err
}

// valid says whether a slice can be tried at all.
func valid(s *transport.Slice) bool {
	return (s.Op == transport.Read || s.Op == transport.Write) && s.Rail == 0 && s.Buffer != nil
}

// refuse makes an error of Post or Connect.
func refuse(reason errs.Code, op, format string, args ...any) *errs.Error {
	e := errs.New(reason, op, format, args...)
	e.Transport, e.Stage = Name, op
	e.Retryable = reason == errs.Overloaded || reason == errs.Restarted
	return e
}

// enter counts a Post in, at both ends.
func (e *endpoint) enter() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.mu.closed {
		return refuse(errs.Closed, "post", "the endpoint is closed: connect again")
	}
	if code := e.to.in.enter(); code != errs.OK {
		return refuse(code, "post", "the engine at the other end is shutting down or gone: open the segment again")
	}
	e.mu.inside++
	return nil
}

// leave undoes enter.
func (e *endpoint) leave() {
	e.to.in.leave()
	e.mu.Lock()
	e.mu.inside--
	if e.mu.closed && e.mu.inside == 0 {
		e.mu.idle.Broadcast()
	}
	e.mu.Unlock()
}

// add does one slice and keeps its completion for flush.
func (e *endpoint) add(out *results, s *transport.Slice) {
	c := e.move(s, nil)
	in, sent := moved(s, c.Code)
	out.in, out.out = out.in+in, out.out+sent
	out.done[out.n] = c
	if out.n++; out.n == flushAt {
		e.flush(out)
	}
}

// follow does those behind the first of s, just done well, that lie in the same
// buffer and go the same way: all of them under one pin of what they span, which
// is held no longer than for one step.
func (e *endpoint) follow(out *results, s []transport.Slice, budget int) (n, bytes int) {
	first := &s[0]
	if out.n == 0 || out.done[out.n-1].Code != errs.OK {
		return 0, 0
	}
	some := s[1:min(len(s), 1+flushAt-out.n)]
	from, to := first.Offset, first.Offset
	for ; n < len(some); n++ {
		c, end := &some[n], some[n].Offset+uint64(len(some[n].Local))
		if c.Buffer != first.Buffer || c.Op != first.Op || c.Rail != 0 || end < c.Offset || len(c.Local) > inlineSlice || bytes+len(c.Local) > min(budget, mem.Step) {
			break
		}
		from, to, bytes = min(from, c.Offset), max(to, end), bytes+len(c.Local)
	}
	if n == 0 || e.stopped(nil) != errs.OK {
		return 0, 0
	}
	pin, code := e.pin(first, from-first.Offset, to-from)
	if code != errs.OK || pin.File != nil {
		pin.Unpin()
		return 0, 0 // each by itself will tell which it is
	}
	for i := range some[:n] {
		c := &some[i]
		if remote := pin.Bytes[c.Offset-from:]; c.Op == transport.Read {
			copy(c.Local, remote)
		} else {
			copy(remote, c.Local)
		}
		out.done[out.n].Tag = c.Tag
		out.n++
	}
	pin.Unpin()
	if first.Op == transport.Read {
		out.in += uint64(bytes)
	} else {
		out.out += uint64(bytes)
	}
	if out.n == flushAt {
		e.flush(out)
	}
	return n, bytes
}

// moved returns what a slice that ended with code adds to RailState.
func moved(s *transport.Slice, code errs.Code) (in, out uint64) {
	switch {
	case code != errs.OK:
		return 0, 0
	case s.Op == transport.Read:
		return uint64(len(s.Local)), 0
	}
	return 0, uint64(len(s.Local))
}

// flush delivers what add has kept.
func (e *endpoint) flush(out *results) {
	if out.n == 0 {
		return
	}
	e.bytesIn.Add(out.in)
	e.bytesOut.Add(out.out)
	e.from.env.Sink.Complete(out.done[:out.n])
	clear(out.done[:out.n])
	out.n, out.in, out.out = 0, 0, 0
}

// Cancel implements transport.Canceler.
func (e *endpoint) Cancel(tags []transport.Tag) {
	want := make(map[transport.Tag]bool, len(tags))
	for _, t := range tags {
		want[t] = true
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, j := range e.mu.live {
		if want[j.slice.Tag] {
			j.stop.Store(uint32(errs.Canceled))
		}
	}
}

// Close implements transport.Endpoint.
func (e *endpoint) Close() error {
	e.mu.Lock()
	e.mu.closed = true
	for _, j := range e.mu.live {
		j.stop.CompareAndSwap(0, uint32(errs.Closed))
	}
	for e.mu.inside > 0 {
		e.mu.idle.Wait()
	}
	e.mu.Unlock()
	e.from.forget(e)
	return nil
}

// Observe implements transport.Observer.
func (e *endpoint) Observe() []transport.RailState {
	return []transport.RailState{{
		Rail: e.Rails()[0], Lanes: 1, InFlight: e.inFlight.Load(), BytesOut: e.bytesOut.Load(), BytesIn: e.bytesIn.Load(),
	}}
}
