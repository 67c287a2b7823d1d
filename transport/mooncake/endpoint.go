package mooncake

import (
	"context"
	"errors"
	"math"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/mooncake"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
)

// A slice of at most smallSlice bytes, or of class 0, has a lane of its own when
// bulk is under way, so that it does not wait behind it.
const smallSlice = 64 << 10

// maxLanes bounds the bulk lanes of one endpoint.
const maxLanes = 16

// crowded is how many bytes on a lane make another one worth its connection.
const crowded = 1 << 20

// Endpoint is the lanes to one peer.
type Endpoint struct {
	t       *Transport
	peer    *segment.Desc
	v2      bool // of the wire
	addrs   []string
	rail    transport.Rail
	ctx     context.Context // ends with Close
	stop    context.CancelFunc
	wg      sync.WaitGroup // lanes
	refusal atomic.Pointer[errs.Error]
	full    *errs.Error
	lanes   []*lane // bulk ones first, then the one for what is small; those not started have no goroutine
	in, out atomic.Uint64
	redials atomic.Uint64
}

var (
	_ transport.Canceler = (*Endpoint)(nil)
	_ transport.Observer = (*Endpoint)(nil)
)

func newEndpoint(t *Transport, peer *segment.Desc) *Endpoint {
	e := &Endpoint{t: t, peer: peer, addrs: dataAddrs(peer), v2: peer.TCPVersion >= 2 && !t.opts.Version1}
	e.ctx, e.stop = context.WithCancel(context.Background())
	e.full = e.failed("post", errs.New(errs.Overloaded, "post", "the lane's queue is full; it empties as the peer answers"))
	e.full.Retryable = true
	for range t.opts.Lanes + 1 {
		e.lanes = append(e.lanes, newLane(e))
	}
	return e
}

// dataAddrs are where the peer's data port may be dialled: at the hosts of its
// daemon, best first.
func dataAddrs(peer *segment.Desc) (out []string) {
	for _, daemon := range mooncake.Daemons(peer) {
		if host, _ := mooncake.SplitName(daemon); host != "" {
			out = append(out, net.JoinHostPort(host, strconv.Itoa(int(peer.TCPDataPort))))
		}
	}
	return out
}

// dial opens a connection to the data port.
func (e *Endpoint) dial(ctx context.Context) (*stream, error) {
	failed := error(errs.New(errs.Invalid, "connect", "the peer's name %q has no host to dial", e.peer.Name))
	for _, addr := range e.addrs {
		c, err := e.t.env.Dial(ctx, addr)
		if err == nil {
			s, err := newStream(c)
			if err != nil {
				_ = c.Close()
				return nil, e.failed("connect", err)
			}
			return s, nil
		}
		failed = &errs.Error{Op: "connect", Peer: addr, Reason: dialCode(err), Err: err}
		if ctx.Err() != nil {
			break
		}
	}
	out := e.failed("connect", failed)
	out.Retryable = true
	return nil, out
}

// dialCode is the code of a failed dial.
func dialCode(err error) errs.Code {
	var lookup *net.DNSError
	var timeout net.Error
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
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

// failed puts the peer and the transport into an error.
func (e *Endpoint) failed(stage string, err error) *errs.Error {
	out := &errs.Error{Op: stage, Peer: strings.Join(e.addrs, " or "), Transport: Name, Stage: stage, Reason: errs.Of(err)}
	var inner *errs.Error
	if errors.As(err, &inner) && inner.Err == nil {
		out.Detail = inner.Detail
	} else {
		out.Err = err
	}
	if out.Detail == "" && out.Err == nil {
		out.Err = err
	}
	return out
}

// start starts the first lane on a connection.
func (e *Endpoint) start(c *stream) {
	e.rail.Local, e.rail.Remote = addrs(c.conn)
	e.lanes[0].begin(c)
}

// Rails returns the one rail: the first connection's addresses.
func (e *Endpoint) Rails() []transport.Rail { return []transport.Rail{e.rail} }

// Post queues slices; the lanes' goroutines send them.
func (e *Endpoint) Post(s []transport.Slice) (n int, err error) {
	if r := e.refusal.Load(); r != nil {
		return 0, r
	}
	var none []transport.Completion // slices without bytes, which are not sent
	for n < len(s) && err == nil {
		addr, bad := e.check(&s[n])
		switch {
		case bad != nil:
			err = bad
			continue
		case len(s[n].Local) == 0:
			none = append(none, transport.Completion{Tag: s[n].Tag})
		default:
			if err = e.pick(&s[n]).accept(&s[n], addr); err != nil {
				continue
			}
		}
		n++
	}
	for _, l := range e.lanes {
		l.nudge()
	}
	if len(none) > 0 {
		e.t.env.Sink.Complete(none)
	}
	return n, err
}

// check returns the absolute address of a slice's range, or why it is none. What
// was published is checked here too, because the peer's refusal has no reason and
// costs a connection.
func (e *Endpoint) check(s *transport.Slice) (uint64, error) {
	b, n := s.Buffer, uint64(len(s.Local))
	refuse := func(code errs.Code, format string, args ...any) error {
		return e.failed("post", errs.New(code, "post", format, args...))
	}
	need := segment.RemoteRead
	if s.Op == transport.Write {
		need = segment.RemoteWrite
	}
	switch {
	case s.Op != transport.Read && s.Op != transport.Write, s.Rail != 0, b == nil, n > maxSlice:
		return 0, refuse(errs.Invalid, "op %v, rail %d, %d bytes, buffer given: %t; want read or write, rail 0, at most %d bytes, a buffer", s.Op, s.Rail, n, b != nil, maxSlice)
	case b.Addr == 0 && n > 0:
		return 0, refuse(errs.Invalid, "the buffer has no address, and this wire names nothing else")
	case b.Access&need == 0 && n > 0:
		return 0, refuse(errs.Denied, "the buffer's access is %v", b.Access)
	case n > 0 && (s.Offset > b.Length || n > b.Length-s.Offset):
		return 0, refuse(errs.OutOfRange, "%d bytes at %d leave the buffer of %d bytes", n, s.Offset, b.Length)
	case s.Offset > math.MaxUint64-b.Addr:
		return 0, refuse(errs.Overflow, "offset %d of the buffer at %#x is beyond 64 bits", s.Offset, b.Addr)
	}
	return b.Addr + s.Offset, nil
}

// pick chooses the lane for a slice. Where those that are connected are crowded
// it has another one connect, for slices that come later.
func (e *Endpoint) pick(s *transport.Slice) *lane {
	last := len(e.lanes) - 1
	from, to := 0, last
	if len(s.Local) <= smallSlice || s.Class == 0 {
		from, to = last, last+1
	}
	best := e.lanes[0]
	if l := e.lanes[from]; l.up.Load() {
		best = l
	}
	for _, l := range e.lanes[from:to] {
		if best.load.Load() < crowded {
			break
		}
		if !l.up.Load() {
			l.warm()
		} else if l.load.Load() < best.load.Load() {
			best = l
		}
	}
	return best
}

// broken refuses everything from now on: the peer cannot be dialled.
func (e *Endpoint) broken(err *errs.Error) { e.refusal.CompareAndSwap(nil, err) }

// Cancel ends slices at once. What of them is on the wire goes on there: a
// cancelled WRITE that was begun is in doubt, the answer to a READ is dropped.
func (e *Endpoint) Cancel(tags []transport.Tag) {
	set := make(map[transport.Tag]struct{}, len(tags))
	for _, tag := range tags {
		set[tag] = struct{}{}
	}
	for _, l := range e.lanes {
		if done := l.cancel(set); len(done) > 0 {
			e.t.env.Sink.Complete(done)
		}
	}
}

// Close completes every accepted slice and returns when the lanes have ended.
func (e *Endpoint) Close() error {
	e.refusal.Store(e.failed("post", errs.New(errs.Closed, "post", "the endpoint is closed; connect again")))
	e.stop()
	for _, l := range e.lanes {
		l.close()
	}
	e.wg.Wait()
	e.t.forget(e)
	return nil
}

// Observe describes the rail.
func (e *Endpoint) Observe() []transport.RailState {
	out := transport.RailState{Rail: e.rail, BytesIn: e.in.Load(), BytesOut: e.out.Load(), Reconnects: e.redials.Load()}
	for _, l := range e.lanes {
		out.InFlight += uint64(max(l.load.Load(), 0))
		if l.up.Load() {
			out.Lanes++
		}
	}
	return []transport.RailState{out}
}
