package tideway

import (
	"context"
	"os"
	"time"

	"github.com/tideway-io/tideway/inspect"
	"github.com/tideway-io/tideway/internal/engine"
	"github.com/tideway-io/tideway/metadata/p2p"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/topology"
	"github.com/tideway-io/tideway/transport/all"
)

// Engine is one transfer engine: a segment that peers can open, and a way to
// read and write theirs. Its methods are safe for concurrent use; engines in
// one process are independent.
type Engine struct {
	e *engine.Engine
}

// Open starts an engine. Ctx bounds the start only. All that is wrong with cfg
// is reported at once.
func Open(ctx context.Context, cfg Config) (*Engine, error) {
	drivers := cfg.Drivers
	if drivers == nil {
		drivers = all.Drivers()
	}
	c := engine.Config{
		Discover: p2p.Fetch,
		Listen:   cfg.Listen, PortFallback: cfg.PortFallback, Advertise: cfg.Advertise, Interface: cfg.Interface,
		Name: cfg.Name, Metadata: cfg.Metadata, Cluster: cfg.Cluster, MetadataTTL: cfg.MetadataTTL, Drivers: drivers, Transports: cfg.Transports,
		StallTimeout: cfg.StallTimeout, ConnectTimeout: cfg.ConnectTimeout, DrainTimeout: cfg.DrainTimeout,
		MaxRequests: cfg.MaxRequests, MaxBytes: cfg.MaxBytes, Retries: cfg.Retries, Lanes: cfg.Lanes, Rails: cfg.Rails,
		DisableChecksum: cfg.DisableChecksum, MaxPeerConns: cfg.MaxPeerConns, MaxNotifications: cfg.MaxNotifications,
		Logger: cfg.Logger,
	}
	if cfg.Mooncake != nil {
		if err := cfg.Mooncake.apply(&c); err != nil {
			return nil, err
		}
	}
	e, err := engine.Open(ctx, c)
	if err != nil {
		return nil, err
	}
	return &Engine{e: e}, nil
}

// Name returns the name that peers open: the advertised host:port, or
// Config.Name with a metadata store.
func (e *Engine) Name() string { return string(e.e.Name()) }

// Addr returns the host:port that peers dial.
func (e *Engine) Addr() string { return e.e.Addr() }

// Shutdown ends the engine in order: its name goes away, peers are told to
// bring nothing new, what is in flight may finish, with the notifications that
// follow it, until ctx ends (or Config.DrainTimeout, if ctx has no deadline) and
// is cut short then, as by Close; so it is by a second Shutdown. Buffers are
// closed. The error says what had to be cut short.
func (e *Engine) Shutdown(ctx context.Context) error { return e.e.Shutdown(ctx) }

// Close ends the engine at once: transfers in flight end with ErrClosed, then
// buffers are closed. When it returns, every sealed batch is done and no byte of
// local memory is touched any more. Closing again does nothing.
func (e *Engine) Close() error { return e.e.Close() }

// BufferOptions describe a local buffer. The zero value is an unnamed buffer
// that only this engine can use.
type BufferOptions struct {
	// Name is unique within the segment; unnamed buffers are found by address.
	Name string
	// Location says where the memory lives; default "cpu:0" for memory.
	Location topology.Location
	// Access says what peers may do; default local-only.
	Access segment.Access
	// Fixed makes reads of a file fail with ErrStale once somebody but its peers
	// has changed it since it was registered. It costs a system call a read.
	Fixed bool
}

func (o BufferOptions) registration() engine.Registration {
	return engine.Registration{Name: o.Name, Location: o.Location, Access: o.Access, Fixed: o.Fixed}
}

// Alloc makes a buffer of n zero bytes, outside the garbage-collected heap and
// aligned to pages. Closing the buffer frees the memory.
func (e *Engine) Alloc(n uint64, o BufferOptions) (*Buffer, error) {
	return buffer(e.e.Alloc(n, o.registration()))
}

// Register makes p a buffer. The memory stays the caller's; it must not be
// reused before the buffer is closed. Registering the identical range with the
// same options again returns a buffer that counts as the same registration; an
// overlap is ErrInvalid.
func (e *Engine) Register(p []byte, o BufferOptions) (*Buffer, error) {
	r := o.registration()
	r.Bytes = p
	return buffer(e.e.Register(r))
}

// RegisterAddr makes the n bytes at addr a buffer. The memory must be outside
// Go's heap (from mmap, C or a device) and stay mapped until the buffer is
// closed.
func (e *Engine) RegisterAddr(addr uintptr, n uint64, o BufferOptions) (*Buffer, error) {
	r := o.registration()
	r.Addr, r.Length = addr, n
	return buffer(e.e.Register(r))
}

// RegisterFile makes the present content of f a buffer that peers can read and,
// with RemoteWrite access, overwrite; it does not grow. The file stays the
// caller's and must stay open until the buffer is closed.
func (e *Engine) RegisterFile(f *os.File, o BufferOptions) (*Buffer, error) {
	r := o.registration()
	r.File = f
	return buffer(e.e.Register(r))
}

// OpenSegment finds what the peer called name offers. Peer to peer, name is its
// host:port; IPv6 hosts are bracketed. Opening one's own name gives the local
// segment, at memory speed.
func (e *Engine) OpenSegment(ctx context.Context, name string) (*Segment, error) {
	s, err := e.e.OpenSegment(ctx, segment.Name(name))
	if err != nil {
		return nil, err
	}
	return &Segment{s}, nil
}

// Warm opens each segment and connects to its owner, so that the first request
// finds the path ready.
func (e *Engine) Warm(ctx context.Context, names ...string) error {
	for _, n := range names {
		if err := e.e.Warm(ctx, segment.Name(n)); err != nil {
			return err
		}
	}
	return nil
}

// Probe measures one round trip to the engine that owns the segment.
func (e *Engine) Probe(ctx context.Context, name string) (time.Duration, error) {
	return e.e.Probe(ctx, segment.Name(name))
}

// Explain says how a request would travel, and why, without moving a byte.
func (e *Engine) Explain(ctx context.Context, r Request) (Explanation, error) {
	x, err := e.e.Explain(ctx, inner([]Request{r})[0])
	out := Explanation{Segment: x.Segment, Peer: x.Peer, Chosen: x.Chosen, Err: x.Err}
	for _, c := range x.Candidates {
		out.Candidates = append(out.Candidates, Candidate(c))
	}
	return out, err
}

// Explanation is the decision for one request.
type Explanation struct {
	Segment    string      // what it is for, as "segment/buffer"
	Peer       string      // where its owner listens
	Chosen     []string    // the transports it would take, best first
	Candidates []Candidate // every transport of this engine
	Err        error       // why the request would be refused, or nil
}

// Candidate is one transport and what speaks for or against it.
type Candidate struct {
	Transport string
	Chosen    bool
	Reason    string // where it was tried and has failed since, with why
}

// Inspect returns the engine's state at this instant.
func (e *Engine) Inspect() inspect.Snapshot { return e.e.Inspect() }

// Submit takes all of the requests, or none and says why: invalid local
// arguments, ErrOverloaded when the admission bounds are reached and ctx ends
// before there is room, or the context's error if it had ended before the call.
// From then on ctx does not matter. What is wrong at the peer fails that request
// alone. The batch returned is sealed.
func (e *Engine) Submit(ctx context.Context, reqs ...Request) (*Batch, error) {
	b := e.NewBatch()
	if err := b.Add(ctx, reqs...); err != nil {
		b.Seal()
		return nil, err
	}
	b.Seal()
	return b, nil
}

// Do submits the requests and waits for all of them. When ctx ends first it
// cancels what is left, waits until that is quiet, and returns the context's
// error joined with those of the requests.
func (e *Engine) Do(ctx context.Context, reqs ...Request) error {
	b, err := e.Submit(ctx, reqs...)
	if err != nil {
		return err
	}
	return b.b.Finish(ctx)
}

// Notification is a small message to the engine that owns a segment.
type Notification struct {
	From string // the sender's segment name; set on receipt, not looked at on sending
	Name string // at most 256 bytes
	Body []byte // at most 64 KiB
}

// Notify delivers n to the engine that owns s: exactly once, or an error.
func (e *Engine) Notify(ctx context.Context, s *Segment, n Notification) error {
	return e.e.Notify(ctx, s.s, engine.Notification(n))
}

// Receive waits for the next notification from any peer. When ctx ends first
// the error matches the context's.
func (e *Engine) Receive(ctx context.Context) (Notification, error) {
	n, err := e.e.Receive(ctx)
	return Notification(n), err
}
