package tcp

import (
	"context"
	"maps"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/sys"
	"github.com/tideway-io/tideway/internal/wire"
	"github.com/tideway-io/tideway/segment"
)

// laneID names an inbound lane.
type laneID struct {
	from    segment.Incarnation
	session uint64
	lane    uint64
}

// inbound is a lane that a peer opened.
type inbound struct {
	t      *Transport
	id     laneID
	lane   *lane
	target *target
	fences atomic.Int32 // under way
	sight  sight        // the watcher's
	stuck  time.Time    // the watcher's: since when the peer takes nothing
}

// politeExtra is how many connections beyond MaxInbound are told so before they
// are closed; those beyond are closed at once.
const politeExtra = 64

// serve is what Env.Accept calls for a connection whose preface has been read.
func (t *Transport) serve(c net.Conn) {
	t.in.Lock()
	if t.in.closed {
		t.in.Unlock()
		_ = c.Close()
		return
	}
	t.in.wg.Add(1)
	t.in.greeting[c] = struct{}{}
	t.in.count++
	count := t.in.count
	t.in.Unlock()
	if count <= t.env.Limits.MaxInbound+politeExtra {
		t.welcome(c, count > t.env.Limits.MaxInbound)
	}
	_ = c.Close()
	t.in.Lock()
	delete(t.in.greeting, c)
	t.in.count--
	t.in.Unlock()
	t.in.wg.Done()
}

// greeted takes a connection out of those in handshake.
func (t *Transport) greeted(c net.Conn) {
	t.in.Lock()
	delete(t.in.greeting, c)
	t.in.Unlock()
}

// welcome makes the target's side of the handshake and runs the lane.
func (t *Transport) welcome(c net.Conn, full bool) {
	expire := time.AfterFunc(helloTimeout, func() { _ = c.Close() })
	defer expire.Stop()
	_, hello, err := receiveGreeting(c, wire.Hello)
	if err != nil {
		t.log.Debug("no hello", "peer", c.RemoteAddr(), "err", err)
		return
	}
	answer := wire.Greeting{
		MinVersion: wire.Version, MaxVersion: wire.Version,
		From: t.env.Self.Incarnation, Session: hello.Session, Lane: hello.Lane,
		MaxFrame: wire.MaxFrame, Slots: windowSlots, Bytes: windowBytes,
		Features: hello.Features & uint64(wire.FeatureSums),
	}
	in, refusal := t.admit(c, &hello, full)
	if refusal == nil {
		defer t.leave(in)
		if err := sendGreeting(c, wire.Welcome, errs.OK, &answer); err != nil || !expire.Stop() {
			in.lane.fail(errs.New(errs.LaneLost, "welcome", "the peer does not take it: %v", err))
		}
		t.greeted(c)
		in.lane.run()
		t.log.Debug("lane ended", "from", in.id.from, "session", in.id.session, "lane", in.id.lane, "why", in.lane.cause())
		return
	}
	answer.Detail = refusal.Detail
	if err := sendGreeting(c, wire.Welcome, refusal.Reason, &answer); err != nil {
		t.log.Debug("no welcome", "peer", c.RemoteAddr(), "err", err)
	}
}

// admit decides whether a lane may open, and enters it in the table: before the
// welcome, so that no lane on which a Write may come is missing there.
func (t *Transport) admit(c net.Conn, hello *wire.Greeting, full bool) (*inbound, *errs.Error) {
	self := t.env.Self.Incarnation
	switch {
	case full:
		return nil, errs.New(errs.Overloaded, "welcome", "%d connections are open, which is the limit (MaxPeerConns)", t.env.Limits.MaxInbound)
	case hello.MinVersion > wire.Version || hello.MaxVersion < wire.Version:
		return nil, errs.New(errs.Unsupported, "welcome", "versions %d to %d offered, %d is spoken here", hello.MinVersion, hello.MaxVersion, wire.Version)
	case hello.To != 0 && hello.To != self:
		return nil, errs.New(errs.Restarted, "welcome", "incarnation %v is expected, this is %v: open the segment again", hello.To, self)
	}
	k, err := newLink(c)
	if err != nil {
		return nil, errs.New(errs.Internal, "welcome", "%v", err)
	}
	sys.Tune(c)
	in := &inbound{t: t, id: laneID{hello.From, hello.Session, uint64(hello.Lane)}, lane: newLane(k)}
	in.lane.spinner, in.lane.lingers = &t.spinner, true
	newTarget(in, hello.Features&uint64(wire.FeatureSums) != 0)
	t.in.Lock()
	defer t.in.Unlock()
	switch {
	case t.in.closed || t.in.draining:
		return nil, errs.New(errs.Draining, "welcome", "the engine is shutting down")
	case t.in.lanes[in.id] != nil:
		return nil, errs.New(errs.Invalid, "welcome", "lane %d of session %x is open already", hello.Lane, hello.Session)
	}
	t.in.lanes[in.id] = in
	t.watchSoon()
	return in, nil
}

func (t *Transport) leave(in *inbound) {
	t.in.Lock()
	delete(t.in.lanes, in.id)
	t.in.Unlock()
}

// closeGrace is how long Close waits for initiators to leave by themselves.
const closeGrace = 200 * time.Millisecond

// closeInbound ends the inbound lanes and the handshakes under way, and waits
// for all goroutines.
func (t *Transport) closeInbound() {
	ctx, cancel := context.WithTimeout(context.Background(), closeGrace)
	defer cancel()
	t.sayGoodbye(ctx)
	t.in.Lock()
	t.in.closed = true
	for c := range t.in.greeting {
		_ = c.Close()
	}
	for _, in := range t.in.lanes {
		in.lane.fail(errs.New(errs.Closed, "serve", "the engine is shutting down"))
	}
	t.in.Unlock()
	t.in.wg.Wait()
	close(t.closing)
	<-t.watched
}

// sayGoodbye tells the initiators of inbound lanes to go, takes no new lanes, and
// waits until they are gone or ctx has ended. It returns how many are left.
func (t *Transport) sayGoodbye(ctx context.Context) (left int) {
	t.in.Lock()
	t.in.draining = true
	lanes := slices.Collect(maps.Values(t.in.lanes))
	t.in.Unlock()
	grace := time.Duration(0)
	if at, ok := ctx.Deadline(); ok {
		grace = max(0, time.Until(at))
	}
	for _, in := range lanes {
		in.target.goaway(errs.Draining, grace)
		in.lane.post()
	}
	for _, in := range lanes {
		select {
		case <-in.lane.done:
		case <-ctx.Done():
			left++
		}
	}
	return left
}

// failed reports what a file's system call returned.
func (in *inbound) failed(op string, key uint32, err error) {
	in.t.log.Debug("file", "op", op, "key", key, "err", err)
}

// goaway plans a Goaway frame.
func (t *target) goaway(why errs.Code, grace time.Duration) {
	t.mu.Lock()
	t.mu.goaway, t.mu.away = why, uint64(grace.Milliseconds())
	t.mu.Unlock()
}

// watchSoon has the inbound lanes looked at now.
func (t *Transport) watchSoon() {
	select {
	case t.look <- struct{}{}:
	default:
	}
}
