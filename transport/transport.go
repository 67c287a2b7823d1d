// Package transport is the contract between the engine and the ways to move
// bytes. A Driver is a constructor and a probe, a Transport is one way opened
// by one engine, an Endpoint is its connection state to one peer.
//
// The engine decides what moves where and when; a transport only moves it, and
// reports each accepted slice exactly once. Conformance is checked, promise by
// promise, by package transporttest: a transport is done when it passes.
package transport

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/topology"
)

// Driver constructs a transport. Drivers are values; nothing registers itself.
type Driver interface {
	// Name is short, lower-case and fixed: "tcp", "shm", "rdma".
	Name() string
	// Probe says whether this host can open the transport: nil, an error that
	// wraps errs.ErrUnsupported and names what is missing, or any other error
	// for "could not tell".
	Probe(ctx context.Context) error
	// Open starts the transport for one engine. Env is valid until Close returns.
	Open(ctx context.Context, env Env) (Transport, error)
}

// Transport is one way to move bytes, opened by one engine.
type Transport interface {
	Caps() Caps
	// Register makes a local buffer reachable through this transport and
	// returns the bytes that peers need for it, possibly none. It is called
	// before the buffer is published.
	Register(ctx context.Context, b *segment.Buffer) (attrs []byte, err error)
	// Unregister returns when no peer can reach b through this transport.
	Unregister(b *segment.Buffer) error
	// Connect returns an endpoint that is ready to take slices for the
	// incarnation in peer, or fails with errs.Restarted if another one answers.
	Connect(ctx context.Context, peer *segment.Desc) (Endpoint, error)
	// Close ends everything the transport started; endpoints are closed first.
	Close() error
}

// Endpoint is a transport's connection state to one peer. Its methods may be
// called from any goroutine.
type Endpoint interface {
	// Rails lists the paths to the peer, at least one. The set does not change
	// while the endpoint lives; a rail that is down refuses slices.
	Rails() []Rail
	// Post accepts a prefix of s and returns its length; err says why s[n] was
	// refused, and a refused slice was not started. errs.ErrOverloaded means
	// "later": one of the accepted slices must complete first. Post never waits
	// for the network. The slice header array may be reused once Post returns;
	// what Local and Buffer point to belongs to the transport until completion.
	Post(s []Slice) (n int, err error)
	// Close completes every accepted slice, with errs.Closed where it did not
	// end otherwise, and then returns.
	Close() error
}

// Op is what a slice does, seen from the initiator.
type Op uint8

// The operations. The zero value is invalid.
const (
	Read  Op = 1 // remote range into local range
	Write Op = 2 // local range into remote range
)

// String returns "read", "write" or "invalid".
func (o Op) String() string {
	switch o {
	case Read:
		return "read"
	case Write:
		return "write"
	}
	return "invalid"
}

// Class is a priority class, 0 the most urgent. Slices of one class and one
// kind of target may share a stream; others never wait for them.
type Class uint8

// Tag is the engine's handle for a slice. It is opaque to transports and unique
// among the slices that are in flight.
type Tag uint64

// Slice is the unit of scheduling: part of one transfer, on one rail.
type Slice struct {
	Op     Op
	Class  Class
	Rail   uint8           // index into Rails
	Retry  uint8           // how often this range was tried before; >0 after a checksum mismatch asks for a snapshot
	Local  []byte          // the local range; its length is the slice's, at most Caps.MaxSlice
	Buffer *segment.Buffer // the target's buffer as published; shared, never changed
	Offset uint64          // first byte in Buffer
	Tag    Tag
}

// Completion is the one end of one slice.
type Completion struct {
	Tag     Tag
	Code    errs.Code // OK when a WRITE is applied, a READ wholly in the local range
	InDoubt bool      // a WRITE that was not acknowledged and could not be fenced
	Err     error     // detail for Code, may be nil
}

// Sink takes completions. It may be called from inside Post, from any
// goroutine, with any number at once; it does not keep the array. It must not
// be called with a lock held that Post, Cancel or Close of the endpoint takes.
type Sink interface {
	Complete(done []Completion)
}

// Rail is one path: a local and a remote network address or device.
type Rail struct {
	Local  string // address or device name, for people
	Remote string
	// Window is how many bytes the transport wants in flight on this rail at
	// the most; 0 leaves it to the engine.
	Window uint64
}

// Caps says what a transport can do. It does not change while it is open.
type Caps struct {
	Local    []topology.Kind // location kinds of the initiator's range; empty: cpu
	Remote   []topology.Kind // location kinds of the target's range; empty: cpu
	MaxSlice uint64          // bytes in one slice at most; 0: no limit
	SameHost bool            // joins only processes of one host
	OwnOnly  bool            // joins only an engine with itself
	Foreign  bool            // joins only engines that do not speak the native wire
	Checks   bool            // detects corruption, or cannot corrupt
	Fences   bool            // proves that a failed WRITE can touch nothing any more
}

// Memory resolves what peers name to local memory or a file, with access and
// bounds checked. It is the registry as a transport's passive side sees it.
type Memory interface {
	// Pin resolves a range of the buffer registered under key. Until Unpin the
	// backing stays mapped; hold a pin for one bounded copy or system call,
	// never across a wait for the peer. The code is errs.OK or says why not.
	Pin(op Op, key segment.Key, offset, length uint64) (Pin, errs.Code)
	// PinAddr is Pin for wires that carry absolute addresses.
	PinAddr(op Op, addr, length uint64) (Pin, errs.Code)
}

// Pin is a resolved range. Exactly one of Bytes and File is set, unless the
// length is zero.
type Pin struct {
	Bytes  []byte // the range, when it is memory
	File   File   // the backing, when it is a file
	Offset int64  // first byte in File
	Holder Unpinner
}

// Unpin gives the range back. It must be called once for each successful Pin.
func (p *Pin) Unpin() {
	if p.Holder != nil {
		p.Holder.Unpin()
	}
}

// Unpinner counts pins.
type Unpinner interface{ Unpin() }

// File is what file-backed buffers offer. io.EOF short of the range, and
// io.ErrUnexpectedEOF, mean that it is not what was registered: errs.Stale.
type File interface {
	io.ReaderAt
	io.WriterAt
}

// Env is what an engine lends a transport.
type Env struct {
	Sink   Sink
	Memory Memory
	Logger *slog.Logger
	Now    func() time.Time
	Rand   func() uint64

	// Self identifies the engine to its peers.
	Self Self
	// Dial connects to host:port, resolving the name anew, with the engine's
	// connect timeout.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	// Ways lists the ways to a peer that do not share a network interface at both
	// ends, with Config.Rails at most; nil means that there is nothing to choose,
	// and Dial will do. DialWay is Dial over one of them.
	Ways    func(peer *segment.Desc) []Way
	DialWay func(ctx context.Context, w Way) (net.Conn, error)
	// Accept hands the transport those connections to the engine's listener
	// that start with preface; the preface has been read. handle takes over the
	// connection and runs in a goroutine of its own that Close of the engine
	// waits for. One transport per preface.
	Accept func(preface [8]byte, handle func(net.Conn)) error
	// Listen opens one more port beside the engine's listener, at the same
	// address, for a wire that needs one to itself: a free one from ports[0] to
	// ports[1], any if both are 0. handle takes over each connection, of which the
	// first eight bytes have been read, in a goroutine of its own that Close of
	// the engine waits for. The port is open until the engine ends or drains.
	Listen func(ctx context.Context, ports [2]uint16, handle func(first [8]byte, conn net.Conn)) (port uint16, err error)
	// Exchange asks the peer's transport of the same name, through the engine's
	// control connection; bodies are at most 64 KiB.
	Exchange func(ctx context.Context, peer *segment.Desc, body []byte) ([]byte, error)
	// Answer sets the function that answers peers' Exchange calls.
	Answer func(func(ctx context.Context, from segment.Incarnation, body []byte) ([]byte, error))

	Limits Limits
}

// Way is the two ends of one network path.
type Way struct {
	Interface string     // of this host; empty: the kernel's routes decide
	Local     netip.Addr // of the interface; invalid without one
	Remote    string     // host:port
}

// Self is the engine's identity.
type Self struct {
	Incarnation segment.Incarnation
	Name        func() segment.Name // known once the listener is bound
}

// Limits are the engine's settings that concern transports. Every field is set.
type Limits struct {
	StallTimeout time.Duration // a peer with slices outstanding and silent for this long is unresponsive
	Lanes        int           // streams or queue pairs per rail for bulk
	Checksum     bool          // payload checksums on the wires that leave shared memory
	MaxFrame     uint32        // bytes of payload in one frame at most
	MaxInbound   int           // connections accepted at the most, half-open included
}

// Optional abilities, found with As.

// Canceler is an endpoint that can end slices early. Each still completes
// exactly once: with errs.Canceled, or as it would have anyway.
type Canceler interface{ Cancel(tags []Tag) }

// Prober is an endpoint that can measure a round trip to the peer.
type Prober interface {
	Probe(ctx context.Context) (time.Duration, error)
}

// Progressor is an endpoint whose completions a sole waiter may drive itself
// for a bounded time instead of parking. Progress delivers completions until the
// waiter has what it waits for and returns how many, fewer when nothing came for
// some time or budget was over; none if there was nothing to expect or somebody
// else was at it. It must not be called from inside the sink.
type Progressor interface {
	Progress(w Waiter, budget time.Duration) int
}

// Waiter is who drives a Progressor.
type Waiter interface {
	// Satisfied reports whether it has what it waits for.
	Satisfied() bool
}

// Allocator is a transport whose peers can map memory that it allocates.
type Allocator interface {
	Alloc(n uint64, at topology.Location) (mem []byte, free func() error, err error)
}

// Publisher is a transport that adds to the descriptor of the engine's own
// segment, before it is published: what peers of another kind look for.
type Publisher interface{ Publish(d *segment.Desc) }

// Drainer is a transport that can tell its peers to bring no new slices. Drain
// returns when those under way have ended or ctx has; from its call on, peers'
// connections and slices are refused with errs.Draining. What this side initiates
// goes on: the engine has accepted it and takes in nothing new.
type Drainer interface {
	Drain(ctx context.Context) error
}

// Observer is an endpoint that can describe itself for inspection.
type Observer interface{ Observe() []RailState }

// RailState is one rail at one instant.
type RailState struct {
	Rail
	Lanes       int    // streams connected
	InFlight    uint64 // bytes accepted and not completed
	BytesOut    uint64
	BytesIn     uint64
	Checksums   uint64 // payloads that did not match
	Reconnects  uint64
	LastReceive time.Time
}

// As finds an ability of v, looking through decorators, which have
// Unwrap() any.
func As[T any](v any) (T, bool) {
	for v != nil {
		if t, ok := v.(T); ok {
			return t, true
		}
		u, ok := v.(interface{ Unwrap() any })
		if !ok {
			break
		}
		v = u.Unwrap()
	}
	var zero T
	return zero, false
}
