package tcp

import (
	"context"
	"errors"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/sys"
	"github.com/tideway-io/tideway/internal/wire"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
)

// A slice of at most smallSlice bytes, or of class 0, goes on the lane for what
// is small or urgent, so that it never waits behind bulk in a socket buffer.
const smallSlice = 64 << 10

// Bytes outstanding on the lanes in use from which another one is opened.
const (
	openUrgent = 256 << 10
	openBulk   = 1 << 20
)

// maxLanes bounds the bulk lanes of one rail, maxSlots the lanes of an endpoint.
const (
	maxLanes = 8
	maxSlots = 64
)

// role is what a lane is for.
type role uint8

const (
	forBulk role = iota
	forSmall
	forFiles
)

// outbound is a lane of an endpoint.
type outbound struct {
	lane          *lane
	init          *initiator
	slot          int
	number        uint64 // in the session
	local, remote string
	sight         sight // the watcher's
}

// lanes are those of an endpoint by slot, those of the first rail first: of each
// rail the bulk ones, then the small one, then that for files. Nil where none is
// open. It is replaced, never changed.
type lanes []*outbound

// Endpoint is the lanes to one peer. Its Close must not be called from inside
// the sink.
type Endpoint struct {
	t       *Transport
	peer    *segment.Desc
	session uint64
	ways    []transport.Way // of the rails; nil: one, over Dial
	rails   []transport.Rail
	bulk    int             // bulk slots of a rail
	per     int             // slots of a rail
	ctx     context.Context // ends with Close
	stop    context.CancelFunc
	wg      sync.WaitGroup // the watcher, lanes, dials, fences
	fencing sync.WaitGroup // fences under way

	table   atomic.Pointer[lanes]
	broken  atomic.Uint64              // bit per rail that was lost or could not be opened; set under mu
	refusal atomic.Pointer[errs.Error] // why nothing is accepted any more
	full    *errs.Error                // the error for "later"
	opening []atomic.Bool              // by slot: open, being opened, or resting after a failure

	patience patience      // with what Progress looks at; whoever has the spinner's
	busy     chan struct{} // to the watcher: something was posted while it looked seldom
	watched  atomic.Bool   // the watcher looks often
	looked   time.Time     // when it last did; the watcher's
	due      time.Time     // when it will look next; the watcher's
	received atomic.Int64  // when something was last known to be received, Unix nanoseconds

	mu struct {
		sync.Mutex
		number uint64 // of the last lane
		closed bool
		cause  error // why the last lane ended
		rests  []rest
		fences map[fence]chan struct{} // not yet answered
		probes []probe
		unsure map[*outbound][]transport.Completion // Writes of lost lanes that wait for a fence
		past   []transport.RailState                // by rail: counts of lanes that have ended
	}
}

func newEndpoint(t *Transport, peer *segment.Desc) *Endpoint {
	e := &Endpoint{t: t, peer: peer, session: t.env.Rand() | 1}
	e.plan()
	slots := len(e.rails) * e.per
	e.opening = make([]atomic.Bool, slots)
	e.full = &errs.Error{Op: "post", Peer: peer.Addr, Transport: name, Stage: "post", Reason: errs.Overloaded, Detail: "the lane's window is full", Retryable: true}
	e.ctx, e.stop = context.WithCancel(context.Background())
	none := make(lanes, slots)
	e.table.Store(&none)
	e.busy = make(chan struct{}, 1)
	e.mu.rests, e.mu.fences = make([]rest, slots), map[fence]chan struct{}{}
	e.mu.unsure, e.mu.past = map[*outbound][]transport.Completion{}, make([]transport.RailState, len(e.rails))
	e.looked = t.env.Now()
	return e
}

// dial opens a lane and starts it; it is in no slot yet.
func (e *Endpoint) dial(ctx context.Context, slot int) (*outbound, error) {
	c, err := e.dialRail(ctx, slot/e.per)
	if err != nil {
		return nil, &errs.Error{Op: "connect", Peer: e.peer.Addr, Transport: name, Stage: "connect", Reason: dialCode(err), Retryable: true, Err: err}
	}
	sys.Tune(c)
	e.mu.Lock()
	e.mu.number++
	number := e.mu.number
	e.mu.Unlock()
	hello := wire.Greeting{
		MinVersion: wire.Version, MaxVersion: wire.Version,
		From: e.t.env.Self.Incarnation, To: e.peer.Incarnation, Session: e.session, Lane: uint32(number),
		MaxFrame: e.t.maxFrame(),
	}
	if e.t.env.Limits.Checksum {
		hello.Features = uint64(wire.FeatureSums)
	}
	g, err := greet(ctx, c, e.peer.Addr, &hello)
	if err != nil {
		return nil, err
	}
	k, err := newLink(c)
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	o := &outbound{lane: newLane(k), slot: slot, number: number}
	o.local, o.remote = addrs(c)
	o.sight.active = e.t.env.Now()
	o.init = newInitiator(e.t, o.lane, laneNotices{e, o}, &g)
	e.wg.Go(o.lane.run)
	return o, nil
}

// dialCode is the code of a failed dial.
func dialCode(err error) errs.Code {
	var lookup *net.DNSError
	var timeout net.Error
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return errs.Refused
	case errors.As(err, &lookup):
		return errs.NameLookup
	case errors.Is(err, context.Canceled):
		return errs.Canceled
	case errors.As(err, &timeout) && timeout.Timeout():
		return errs.Unresponsive
	}
	if code := errs.Of(err); code != errs.Internal {
		return code
	}
	return errs.Unreachable
}

// keep puts a lane that was just opened into its slot, or ends it if the
// endpoint has no use for it.
func (e *Endpoint) keep(o *outbound) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.mu.closed:
		o.lane.fail(errs.New(errs.Closed, "connect", "the endpoint is closed"))
		return &errs.Error{Op: "connect", Peer: e.peer.Addr, Transport: name, Stage: "connect", Reason: errs.Closed, Detail: "the endpoint was closed meanwhile"}
	case o.lane.ending.Load():
		return o.lane.cause()
	case (*e.table.Load())[o.slot] != nil:
		o.lane.fail(errs.New(errs.LaneLost, "connect", "there is another lane in its place"))
	default:
		e.opening[o.slot].Store(true)
		e.mu.rests[o.slot] = rest{}
		e.replace(o.slot, o)
		e.judgeRail(o.slot/e.per, true)
	}
	return nil
}

// replace puts o, maybe nil, into a slot. The caller holds mu.
func (e *Endpoint) replace(slot int, o *outbound) {
	next := append(lanes(nil), *e.table.Load()...)
	next[slot] = o
	e.table.Store(&next)
}

// Post accepts slices and sends what the sockets take.
func (e *Endpoint) Post(s []transport.Slice) (n int, err error) {
	if r := e.refusal.Load(); r != nil {
		return 0, r
	}
	table := *e.table.Load()
	var touched, lost uint64
	for n < len(s) && err == nil {
		r, run, bad := e.run(s[n:])
		if run == 0 {
			err = bad
			break
		}
		at, budget := e.pick(table, int(s[n].Rail), r, lost)
		if at < 0 {
			err = e.gone()
			break
		}
		took, code := table[at].init.accept(s[n:n+run], budget)
		n += took
		touched |= 1 << at
		switch code {
		case errs.OK:
		case errs.LaneLost:
			lost |= 1 << at
		default:
			err = e.full
		}
	}
	if touched != 0 {
		e.attend()
	}
	for at, o := range table {
		if touched&(1<<at) != 0 {
			o.lane.post()
		}
	}
	return n, err
}

// run returns the role of the first slice, how many from it on have the same role
// and rail and are well formed, and if that is none, why.
func (e *Endpoint) run(s []transport.Slice) (r role, n int, err error) {
	for n = range s {
		if !e.wellFormed(&s[n]) {
			if n == 0 {
				return 0, 0, e.malformed(&s[0])
			}
			return r, n, nil
		}
		switch q := roleOf(&s[n]); {
		case n == 0:
			r = q
		case q != r, s[n].Rail != s[0].Rail:
			return r, n, nil
		}
	}
	return r, len(s), nil
}

func (e *Endpoint) wellFormed(s *transport.Slice) bool {
	return (s.Op == transport.Read || s.Op == transport.Write) && s.Buffer != nil && s.Buffer.Key != 0 && int(s.Rail) < len(e.rails) && uint64(len(s.Local)) <= uint64(e.t.maxFrame())
}

func (e *Endpoint) malformed(s *transport.Slice) error {
	err := errs.New(errs.Invalid, "post", "op %v, rail %d of %d, %d bytes of at most %d, buffer with a key: %t",
		s.Op, s.Rail, len(e.rails), len(s.Local), e.t.maxFrame(), s.Buffer != nil && s.Buffer.Key != 0)
	err.Peer, err.Transport, err.Stage = e.peer.Addr, name, "post"
	return err
}

func roleOf(s *transport.Slice) role {
	switch {
	case s.Buffer.Location == "file":
		return forFiles
	case len(s.Local) <= smallSlice || s.Class == 0:
		return forSmall
	}
	return forBulk
}

// pick chooses the open lane of a rail for a role, none of those in lost, and how
// many bytes to give it before choosing again; -1 if there is none. It has another
// lane opened where that would help.
func (e *Endpoint) pick(table lanes, rail int, r role, lost uint64) (at int, budget uint64) {
	first := rail * e.per
	own := first + e.bulk + int(r) - 1
	if r != forBulk && table[own] != nil && lost&(1<<own) == 0 {
		return own, math.MaxUint64
	}
	at = -1
	least, open, free := uint64(math.MaxUint64), 0, -1
	for k := first; k < first+e.per; k++ {
		o, bulk := table[k], k < first+e.bulk
		switch {
		case o == nil && bulk:
			free = k
		case o == nil || lost&(1<<k) != 0 || !bulk && at >= 0:
		default:
			if load := o.init.load.Load(); load < least || at < 0 {
				at, least = k, load
			}
			open++
		}
	}
	switch {
	case at < 0:
		return e.standIn(table, rail, lost), openBulk
	case r == forBulk && free >= 0 && (least >= openBulk || at >= first+e.bulk):
		e.openLater(free)
	case r == forSmall && least >= openUrgent, r == forFiles:
		e.openLater(own)
	}
	if r == forBulk && open > 1 {
		return at, openBulk
	}
	return at, math.MaxUint64
}

// openLater opens a lane in a slot unless one is there, on its way, or failed
// not long ago. A failure only means fewer lanes.
func (e *Endpoint) openLater(slot int) {
	if e.opening[slot].Load() || !e.opening[slot].CompareAndSwap(false, true) {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.mu.closed {
		e.wg.Go(func() {
			o, err := e.dial(e.ctx, slot)
			if err == nil {
				err = e.keep(o)
			}
			if err != nil {
				e.t.log.Debug("no further lane", "peer", e.peer.Addr, "slot", slot, "err", err)
				e.mu.Lock()
				e.restSlot(slot)
				e.mu.Unlock()
			}
		})
	}
}

// gone says why there is no lane.
func (e *Endpoint) gone() error {
	if r := e.refusal.Load(); r != nil {
		return r
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return &errs.Error{Op: "post", Peer: e.peer.Addr, Transport: name, Stage: "post", Reason: lostCode(e.mu.cause), Retryable: true, Err: e.mu.cause}
}

// Cancel ends slices at once; see transport.Canceler.
func (e *Endpoint) Cancel(tags []transport.Tag) {
	set := make(map[transport.Tag]struct{}, len(tags))
	for _, tag := range tags {
		set[tag] = struct{}{}
	}
	for _, o := range *e.table.Load() {
		if o == nil {
			continue
		}
		if done := o.init.cancel(set); len(done) > 0 {
			e.t.env.Sink.Complete(done)
		}
		o.lane.post() // whoever found the baton taken meanwhile relies on it
	}
	if done := e.cancelUnsure(set); len(done) > 0 {
		e.t.env.Sink.Complete(done)
	}
}

// Close completes every accepted slice and returns when the lanes are gone.
// Fences under way are waited for, which is bounded.
func (e *Endpoint) Close() error {
	e.refusal.Store(&errs.Error{Op: "post", Peer: e.peer.Addr, Transport: name, Stage: "post", Reason: errs.Closed, Detail: "the endpoint is closed; connect again"})
	e.mu.Lock()
	e.mu.closed = true
	e.mu.Unlock()
	e.stop()
	e.fencing.Wait()
	for _, o := range *e.table.Load() {
		if o != nil {
			o.lane.fail(errs.New(errs.Closed, "close endpoint", "closed with slices outstanding"))
		}
	}
	e.wg.Wait()
	e.t.forget(e)
	return nil
}
