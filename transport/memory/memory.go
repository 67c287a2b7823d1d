// Package memory moves bytes between engines of one process by copying, and an
// engine's bytes to and from its own segment at the speed of memory. It is also
// the reference that other transports are compared with: the same contract with
// nothing in between.
//
// Small slices are copied inside Post, long ones and those of files by two
// bounded sets of goroutines that come and go with the work. A copy holds its target pinned for one step
// at a time, so the target's buffers can be closed, and slices cancelled, in
// between. Close of an endpoint or a transport must not be called from inside
// Sink.Complete: it waits for that call to return.
package memory

import (
	"context"
	"runtime"
	"sync"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/topology"
	"github.com/tideway-io/tideway/transport"
)

// Name is the transport's name.
const Name = "memory"

// New returns the driver that joins an engine with itself only.
func New() transport.Driver { return driver{} }

// Hub joins engines of one process: those whose transports were opened through
// its Driver reach each other.
type Hub struct {
	mu struct {
		sync.Mutex
		members map[segment.Incarnation]*Transport
	}
}

// NewHub returns a Hub without members.
func NewHub() *Hub {
	h := &Hub{}
	h.mu.members = map[segment.Incarnation]*Transport{}
	return h
}

// Driver returns a driver for any number of engines.
func (h *Hub) Driver() transport.Driver { return driver{h} }

func (h *Hub) join(t *Transport) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	id := t.env.Self.Incarnation
	if id == 0 || h.mu.members[id] != nil {
		return refuse(errs.Invalid, "open", "incarnation %v is zero or in use: each engine has its own", id)
	}
	h.mu.members[id] = t
	return nil
}

func (h *Hub) leave(t *Transport) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.mu.members, t.env.Self.Incarnation)
}

// find returns the member that peer describes.
func (h *Hub) find(peer *segment.Desc) (*Transport, errs.Code) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t := h.mu.members[peer.Incarnation]; t != nil {
		return t, errs.OK
	}
	for _, t := range h.mu.members {
		if name := t.env.Self.Name; name != nil && name() == peer.Name {
			return nil, errs.Restarted
		}
	}
	return nil, errs.Refused
}

type driver struct{ hub *Hub }

func (driver) Name() string                { return Name }
func (driver) Probe(context.Context) error { return nil }

func (d driver) Open(_ context.Context, env transport.Env) (transport.Transport, error) {
	t := &Transport{env: env, hub: d.hub, caps: transport.Caps{
		Remote:   []topology.Kind{"cpu", topology.File.Kind()},
		SameHost: true, Checks: true, Fences: true,
	}}
	if d.hub == nil {
		t.hub, t.caps.OwnOnly = NewHub(), true
	}
	t.in.init()
	t.large.init(runtime.GOMAXPROCS(0))
	t.files.init(runtime.GOMAXPROCS(0))
	t.mu.endpoints = map[*endpoint]struct{}{}
	if err := t.hub.join(t); err != nil {
		return nil, err
	}
	return t, nil
}

// Transport is one engine's membership in a Hub.
type Transport struct {
	env  transport.Env
	hub  *Hub
	caps transport.Caps
	in   gate // peers' slices that are inside this engine's memory

	// What Post does not do itself. A file that hangs holds up only files.
	large, files pool

	results sync.Pool // of *results, for the next Post

	mu struct {
		sync.Mutex
		closed    bool
		endpoints map[*endpoint]struct{}
	}
}

var _ transport.Drainer = (*Transport)(nil)

// Caps implements transport.Transport.
func (t *Transport) Caps() transport.Caps { return t.caps }

// Register implements transport.Transport: peers need nothing but the key.
func (t *Transport) Register(context.Context, *segment.Buffer) ([]byte, error) { return nil, nil }

// Unregister implements transport.Transport: Env.Memory refuses and waits.
func (t *Transport) Unregister(*segment.Buffer) error { return nil }

// Connect implements transport.Transport.
func (t *Transport) Connect(_ context.Context, peer *segment.Desc) (transport.Endpoint, error) {
	to, code := t.hub.find(peer)
	if code == errs.OK {
		if code = to.in.enter(); code == errs.OK {
			to.in.leave()
		}
	}
	if code != errs.OK {
		err := refuse(code, "connect", "incarnation %v is not open in this process", peer.Incarnation)
		err.Segment, err.Peer = string(peer.Name), peer.Addr
		return nil, err
	}
	e := &endpoint{from: t, to: to}
	e.mu.idle.L = &e.mu
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.closed {
		return nil, refuse(errs.Closed, "connect", "the transport is closed")
	}
	t.mu.endpoints[e] = struct{}{}
	return e, nil
}

// forget drops a closed endpoint.
func (t *Transport) forget(e *endpoint) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.mu.endpoints, e)
}

// Drain implements transport.Drainer.
func (t *Transport) Drain(ctx context.Context) error {
	if !t.in.shut(ctx, draining) {
		return refuse(errs.Busy, "drain", "slices of peers are still under way: %v", context.Cause(ctx))
	}
	return nil
}

// Close implements transport.Transport. When it returns, no peer is inside this
// engine's memory, and no goroutine of the transport is left.
func (t *Transport) Close() error {
	t.mu.Lock()
	t.mu.closed = true
	open := make([]*endpoint, 0, len(t.mu.endpoints))
	for e := range t.mu.endpoints {
		open = append(open, e)
	}
	t.mu.Unlock()
	for _, e := range open {
		_ = e.Close() // never fails
	}
	t.hub.leave(t)
	t.in.shut(context.Background(), closed)
	t.large.close()
	t.files.close()
	return nil
}
