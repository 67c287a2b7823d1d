package shm

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/sys"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
)

const (
	// inlineSlice is the longest slice that Post copies itself: some 25 µs.
	inlineSlice = 256 << 10
	// inlinePost is how much one Post copies itself: some 200 µs, so that its
	// caller is soon back at its own work.
	inlinePost = 1 << 20
	// maxBindings bounds the buffers that an endpoint remembers.
	maxBindings = 4096
)

// endpoint is a link to a peer whose memory this engine uses.
type endpoint struct {
	t              *Transport
	pid            int
	link           *link
	table          *view
	desk           desk
	life           proof
	noRead, noPull error // why attach does not work one way or the other
	timer          *time.Timer
	receiving      sync.WaitGroup
	reads          [2]readLane // what is urgent, the rest
	ending         sync.Once

	inFlight, bytesIn, bytesOut atomic.Uint64
	heard                       atomic.Int64 // nanoseconds since 1970

	mu struct {
		sync.Mutex
		lost     errs.Code // why it takes nothing more, OK: it does
		draining bool      // the peer is
		drained  bool      // it was told that nothing is under way
		inside   int       // calls of Post, and jobs
		idle     sync.Cond // inside became 0
		jobs     []*job    // by index, which is the slot on the desk too
		spare    []*job    // those that are not in use
		waiting  int       // jobs that wait for the peer
		asks     map[uint64]*job
		asked    uint64 // the id of the last ask
		bindings map[*segment.Buffer]*binding
		mappings map[uint64]*mapping
		progress uint64 // as last seen on the desk
	}
}

var (
	_ transport.Canceler = (*endpoint)(nil)
	_ transport.Observer = (*endpoint)(nil)
)

func newEndpoint(t *Transport, p *sys.Packets, pid int, desk desk) *endpoint {
	e := &endpoint{t: t, pid: pid, link: &link{p: p}, desk: desk}
	e.mu.idle.L = &e.mu
	e.reads[0].e, e.reads[1].e = e, e
	e.mu.asks, e.mu.bindings, e.mu.mappings = map[uint64]*job{}, map[*segment.Buffer]*binding{}, map[uint64]*mapping{}
	return e
}

// start begins to listen to the peer.
func (e *endpoint) start() {
	e.timer = time.AfterFunc(time.Hour, e.tick)
	e.timer.Stop()
	e.receiving.Go(func() { e.lose(errs.LaneLost, e.receive()) })
}

// Rails implements transport.Endpoint. What keeps memory that Alloc did not make
// from being reached stands behind the peer's process.
func (e *endpoint) Rails() []transport.Rail {
	to := fmt.Sprintf("pid %d", e.pid)
	for _, why := range []error{e.noRead, e.noPull} {
		if why != nil {
			to += ": " + why.Error()
		}
	}
	return []transport.Rail{{Local: Name, Remote: to}}
}

// enter counts a Post in, and binds the buffer of its first slice, if it has one,
// with the lock that it holds anyway.
func (e *endpoint) enter(first *segment.Buffer) (b *binding, code errs.Code, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.unfit(); err != nil {
		return nil, errs.OK, err
	}
	e.mu.inside++
	if first != nil {
		b, code = e.bound(first)
	}
	return b, code, nil
}

// unfit says why the endpoint takes nothing more; the lock is held.
func (e *endpoint) unfit() error {
	switch {
	case e.mu.lost == errs.Closed:
		return refuse(errs.Closed, "post", "the endpoint is closed: connect again")
	case e.mu.lost != errs.OK:
		return refuse(e.mu.lost, "post", "the link to process %d has ended: connect again", e.pid)
	}
	switch e.table.state() {
	case stateOpen:
		if !e.mu.draining {
			return nil
		}
		fallthrough
	case stateDraining:
		return refuse(errs.Draining, "post", "the engine at the other end is shutting down")
	}
	return refuse(errs.LaneLost, "post", "the engine at the other end is closed: open the segment again")
}

// leave counts n Posts or jobs out.
func (e *endpoint) leave(n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.out(n)
}

// out is leave with the lock held.
func (e *endpoint) out(n int) {
	if e.mu.inside -= n; e.mu.inside > 0 {
		return
	}
	e.mu.idle.Broadcast()
	if e.mu.draining && !e.mu.drained {
		e.mu.drained = true
		e.link.send(appendHead(nil, head{kind: kindDrained}), -1)
	}
}

// bind returns what is known of a buffer. NotRegistered means that only the
// owner knows.
func (e *endpoint) bind(buf *segment.Buffer) (*binding, errs.Code) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.bound(buf)
}

// bound is bind with the lock held.
func (e *endpoint) bound(buf *segment.Buffer) (*binding, errs.Code) {
	if b := e.mu.bindings[buf]; b != nil {
		return b, errs.OK
	}
	slot, ok := slotOf(buf.Attrs[Name])
	if !ok {
		return nil, errs.NotRegistered
	}
	b, code := e.table.find(slot, buf.Key)
	if code != errs.OK {
		return nil, code
	}
	if len(e.mu.bindings) >= maxBindings {
		clear(e.mu.bindings) // what is still used comes back from the table
	}
	e.mu.bindings[buf] = b
	if b.allocation != 0 {
		b.from = e.mapping(b.allocation)
	}
	return b, errs.OK
}

// Cancel implements transport.Canceler.
func (e *endpoint) Cancel(tags []transport.Tag) {
	want := make(map[transport.Tag]bool, len(tags))
	for _, t := range tags {
		want[t] = true
	}
	x := e.t.newEndings()
	e.mu.Lock()
	for _, j := range e.mu.jobs {
		if j.phase != spare && want[j.slice.Tag] {
			e.withdraw(x, j, errs.Canceled)
		}
	}
	e.mu.Unlock()
	e.report(x)
}

// lose makes the endpoint take nothing more, and brings what is under way to its
// end. With errs.Closed the peer is there and may be waited for; else it is gone
// or as good as gone.
func (e *endpoint) lose(code errs.Code, why error) {
	x := e.t.newEndings()
	e.mu.Lock()
	if e.mu.lost == errs.OK || code == errs.Closed {
		e.mu.lost = code
	}
	for _, j := range e.mu.jobs {
		e.withdraw(x, j, code)
		if j.phase == pulling && code != errs.Closed {
			e.giveUp(x, j, hungUp(why))
		}
	}
	e.mu.Unlock()
	e.report(x)
	if code != errs.Closed {
		e.t.log.Debug("same-host link has ended", "pid", e.pid, "reason", code, "err", why)
		e.link.end()
	}
}

// Close implements transport.Endpoint.
func (e *endpoint) Close() error {
	e.ending.Do(func() {
		e.lose(errs.Closed, nil)
		e.mu.Lock()
		for e.mu.inside > 0 {
			e.mu.idle.Wait()
		}
		mappings := e.mu.mappings
		e.mu.mappings, e.mu.bindings = map[uint64]*mapping{}, nil
		e.mu.Unlock()
		e.timer.Stop() // one that runs finds nothing to do
		for _, m := range mappings {
			m.close() // while there is a link to say so
		}
		e.link.close()
		e.receiving.Wait()
		e.desk.close()
		_ = e.table.unmap() // cannot fail on what was mapped
		e.t.forget(e)
	})
	return nil
}

// Observe implements transport.Observer.
func (e *endpoint) Observe() []transport.RailState {
	r := transport.RailState{Rail: e.Rails()[0], Lanes: 1, InFlight: e.inFlight.Load(), BytesOut: e.bytesOut.Load(), BytesIn: e.bytesIn.Load()}
	if at := e.heard.Load(); at != 0 {
		r.LastReceive = time.Unix(0, at)
	}
	return []transport.RailState{r}
}
