package mooncake

import (
	"sync"
	"sync/atomic"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/transport"
)

// Bounds of a lane.
const (
	maxQueue     = 4096     // slices accepted and not completed
	maxQueueSize = 64 << 20 // bytes of them, beyond the first
	maxFlight    = 256      // requests sent and not answered
	maxSent      = 8 << 20  // bytes of them, beyond the first
)

// request is one slice on its way.
type request struct {
	slice transport.Slice
	addr  uint64
	size  int
	sent  int    // bytes of a WRITE's payload that have been handed on
	got   int    // bytes of a READ's payload that have come
	whole bool   // header and payload have been handed on
	acked bool   // the answer came before the payload was handed on
	ended bool   // completed, by Cancel: only what is on the wire is left of it
	rest  []byte // of a WRITE that was cancelled half-way: what is still to be sent
}

func (r *request) write() bool { return r.slice.Op == transport.Write }

// lane is a queue of requests and at most one connection that they take. Its
// goroutine dials and sends; a connection has another one that receives.
type lane struct {
	e    *Endpoint
	wake chan struct{}
	load atomic.Int64 // bytes accepted and not completed
	up   atomic.Bool  // there is a connection

	mu struct {
		sync.Mutex
		begun  bool
		wanted bool // a connection, although nothing is queued
		closed bool
		conn   *stream // nil: none
		cause  error   // why conn is over
		count  int     // slices accepted and not completed
		queue  fifo    // not begun
		flight fifo    // begun and not answered, in the order of their answers
		flying int     // bytes of them
		spare  []*request
	}
}

// fifo is a queue of requests.
type fifo struct {
	list []*request
	head int
}

func (q *fifo) len() int        { return len(q.list) - q.head }
func (q *fifo) all() []*request { return q.list[q.head:] }
func (q *fifo) push(r *request) { q.list = append(q.list, r) }

func (q *fifo) front() *request {
	if q.len() == 0 {
		return nil
	}
	return q.list[q.head]
}

func (q *fifo) pop() *request {
	r := q.list[q.head]
	q.list[q.head] = nil
	if q.head++; q.head == len(q.list) {
		q.list, q.head = q.list[:0], 0
	} else if q.head >= 1024 && q.head*2 >= len(q.list) {
		n := copy(q.list, q.list[q.head:])
		clear(q.list[n:])
		q.list, q.head = q.list[:n], 0
	}
	return r
}

// reset makes the queue these requests.
func (q *fifo) reset(list []*request) { q.list, q.head = list, 0 }

func newLane(e *Endpoint) *lane { return &lane{e: e, wake: make(chan struct{}, 1)} }

// begin starts the lane's goroutine, with a connection or without. Once is
// enough.
func (l *lane) begin(c *stream) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.beginLocked(c)
}

func (l *lane) beginLocked(c *stream) {
	if l.mu.begun || l.mu.closed {
		return
	}
	l.mu.begun = true
	l.e.wg.Go(func() { l.run(c) })
}

// accept queues a slice, or says that there is no room, or that the lane is
// closed.
func (l *lane) accept(s *transport.Slice, addr uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.closed {
		return l.e.refusal.Load()
	}
	if l.mu.count >= maxQueue || l.mu.count > 0 && l.load.Load()+int64(len(s.Local)) > maxQueueSize {
		return l.e.full
	}
	r := new(request)
	if n := len(l.mu.spare); n > 0 {
		r, l.mu.spare = l.mu.spare[n-1], l.mu.spare[:n-1]
	}
	*r = request{slice: *s, addr: addr, size: len(s.Local)}
	l.mu.queue.push(r)
	l.mu.count++
	l.load.Add(int64(r.size))
	l.beginLocked(nil)
	return nil
}

// complete makes the completion of a request that has ended and takes it off
// the lane's account. The lock is held.
func (l *lane) complete(r *request, code errs.Code, err error, inDoubt bool) transport.Completion {
	c := transport.Completion{Tag: r.slice.Tag, Code: code, Err: err, InDoubt: inDoubt}
	l.mu.count--
	l.load.Add(-int64(r.size))
	r.ended = true
	r.slice.Local, r.slice.Buffer = nil, nil
	return c
}

// recycle keeps a request that nothing points to any more. The lock is held.
func (l *lane) recycle(r *request) {
	if len(l.mu.spare) < maxFlight {
		l.mu.spare = append(l.mu.spare, r)
	}
}

// cancel ends those of the requests that are wanted.
func (l *lane) cancel(set map[transport.Tag]struct{}) (done []transport.Completion) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var kept []*request
	for _, r := range l.mu.queue.all() {
		if _, ok := set[r.slice.Tag]; ok {
			done = append(done, l.complete(r, errs.Canceled, nil, false))
			continue
		}
		kept = append(kept, r)
	}
	l.mu.queue.reset(kept)
	for _, r := range l.mu.flight.all() {
		if _, ok := set[r.slice.Tag]; ok && !r.ended {
			if r.write() && !r.whole { // the peer waits for the whole payload
				r.rest = append([]byte(nil), r.slice.Local[r.sent:]...)
			}
			done = append(done, l.complete(r, errs.Canceled, nil, r.write()))
		}
	}
	return done
}

// nudge tells the lane's goroutine that there may be something to send.
func (l *lane) nudge() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// close ends the lane; its goroutine completes what is left.
func (l *lane) close() {
	l.mu.Lock()
	l.mu.closed = true
	l.mu.Unlock()
	l.abort(errs.New(errs.Closed, "close endpoint", "closed with slices outstanding"))
	l.nudge()
}

// abort ends the connection, if there is one, because of cause. It is closed
// without the lock: Close waits for system calls under way, and they for the lock.
func (l *lane) abort(cause error) {
	l.mu.Lock()
	c := l.mu.conn
	if c != nil && l.mu.cause == nil {
		l.mu.cause = cause
	}
	l.mu.Unlock()
	if c != nil {
		_ = c.conn.Close()
	}
}

// warm has the lane connect without work.
func (l *lane) warm() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.wanted = true
	l.beginLocked(nil)
}

// run is the lane's goroutine.
func (l *lane) run(c *stream) {
	for l.wait(c != nil) {
		if c == nil {
			var err error
			l.e.redials.Add(1)
			if c, err = l.e.dial(l.e.ctx); err != nil {
				l.undialled(err)
				continue
			}
		}
		l.exchange(c)
		c = nil
	}
	if c != nil {
		_ = c.conn.Close()
	}
	l.failQueue(errs.New(errs.Closed, "close endpoint", "closed with slices queued"))
}

// wait waits for work, or not when there is a connection to watch; false when the
// lane is closed.
func (l *lane) wait(connected bool) bool {
	for {
		l.mu.Lock()
		closed, work := l.mu.closed, l.mu.queue.len() > 0 || l.mu.wanted
		l.mu.wanted = false
		l.mu.Unlock()
		if closed || work || connected {
			return !closed
		}
		<-l.wake
	}
}

// undialled ends what is queued, and the endpoint's usefulness, after a failed
// dial: whoever posts connects anew when it is time.
func (l *lane) undialled(err error) {
	failed := l.e.failed("connect", err)
	if l.e.ctx.Err() != nil {
		return // closed; run completes what is left
	}
	if l == l.e.lanes[0] || l.load.Load() > 0 {
		l.e.broken(failed)
	}
	l.failQueue(err)
}

// failQueue completes what was not begun.
func (l *lane) failQueue(err error) {
	l.mu.Lock()
	var done []transport.Completion
	for _, r := range l.mu.queue.all() {
		done = append(done, l.complete(r, errs.Of(err), err, false))
	}
	l.mu.queue.reset(nil)
	l.mu.Unlock()
	if len(done) > 0 {
		l.e.t.env.Sink.Complete(done)
	}
}
