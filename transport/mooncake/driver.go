// Package mooncake moves bytes to and from engines of Mooncake's classic
// Transfer Engine over its TCP data port, in both roles and in both versions of
// that wire.
//
// The wire names ranges by absolute address and has neither incarnations nor
// checksums nor a way to take a request back. So a restarted peer serves whatever
// is at the address, a flipped byte goes through, and a WRITE that ends without
// an answer is in doubt, for ever, and never retried.
//
// An endpoint has lanes, each at most one connection, on which requests are
// pipelined: peers serve a connection's requests strictly in order, so answers
// need no names. A lane dials when there is work and no connection; one that a
// peer has closed while it was idle costs nothing.
package mooncake

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/mooncake"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/topology"
	"github.com/tideway-io/tideway/transport"
)

// Name is the transport's name in descriptors of Mooncake's protocol "tcp".
const Name = mooncake.TransportName

// maxSlice is the longest request that is sent, in bytes. Peers take any length;
// this bounds what is copied when a WRITE is cancelled half-way.
const maxSlice = 1 << 20

// Options configure the driver. Zero fields have the documented default.
type Options struct {
	Ports         [2]uint16     // the data port is a free one of these, default 15000 to 17000
	StatusTimeout time.Duration // without progress, for an answer; default the engine's StallTimeout
	Version1      bool          // never use version 2, which peers of today all speak
	Lanes         int           // bulk connections to a peer, 1 to 16; default the engine's Lanes
}

// Driver opens the transport.
type Driver struct{ opts Options }

// New returns a driver.
func New(opts Options) *Driver {
	if opts.Ports == [2]uint16{} {
		opts.Ports = [2]uint16{mooncake.MinPort, mooncake.MaxPort}
	}
	return &Driver{opts}
}

// Name returns "mooncake".
func (*Driver) Name() string { return Name }

// Probe returns nil: every host has TCP.
func (*Driver) Probe(context.Context) error { return nil }

// Open opens the data port and starts to serve it.
func (d *Driver) Open(ctx context.Context, env transport.Env) (transport.Transport, error) {
	t := &Transport{env: env, opts: d.opts, log: env.Logger}
	if t.log == nil {
		t.log = slog.New(slog.DiscardHandler)
	}
	if t.opts.StatusTimeout <= 0 {
		t.opts.StatusTimeout = env.Limits.StallTimeout
	}
	if t.opts.Lanes <= 0 {
		t.opts.Lanes = env.Limits.Lanes
	}
	t.opts.Lanes = min(max(t.opts.Lanes, 1), maxLanes)
	t.in.conns = map[*inbound]struct{}{}
	t.out.endpoints = map[*Endpoint]struct{}{}
	var err error
	if t.port, err = env.Listen(ctx, t.opts.Ports, t.serve); err != nil {
		return nil, &errs.Error{Op: "open data port", Transport: Name, Reason: errs.Of(err), Err: err}
	}
	return t, nil
}

// Transport is the transport of one engine.
type Transport struct {
	env  transport.Env
	opts Options
	log  *slog.Logger
	port uint16

	in struct {
		sync.Mutex
		wg       sync.WaitGroup
		conns    map[*inbound]struct{}
		draining bool
		closed   bool
	}
	out struct {
		sync.Mutex
		endpoints map[*Endpoint]struct{}
		closed    bool
	}
}

var (
	_ transport.Publisher = (*Transport)(nil)
	_ transport.Drainer   = (*Transport)(nil)
)

// Caps says that memory is joined, without checks and fences, with engines that
// are no native ones.
func (*Transport) Caps() transport.Caps {
	return transport.Caps{Local: []topology.Kind{"cpu"}, Remote: []topology.Kind{"cpu"}, MaxSlice: maxSlice, Foreign: true}
}

// Publish adds the data port and the version that is served there.
func (t *Transport) Publish(d *segment.Desc) { d.TCPDataPort, d.TCPVersion = t.port, 2 }

// Register does nothing: whatever the engine's memory resolves can be reached.
func (*Transport) Register(context.Context, *segment.Buffer) ([]byte, error) { return nil, nil }

// Unregister does nothing: the engine refuses new pins, and waits for those that
// are held, each for one system call.
func (*Transport) Unregister(*segment.Buffer) error { return nil }

// Connect dials the peer's data port.
func (t *Transport) Connect(ctx context.Context, peer *segment.Desc) (transport.Endpoint, error) {
	if peer.TCPDataPort == 0 {
		return nil, &errs.Error{Op: "connect", Segment: string(peer.Name), Transport: Name, Stage: "connect", Reason: errs.Unsupported,
			Detail: "the peer publishes no tcp_data_port; it was built or started without TCP"}
	}
	e := newEndpoint(t, peer)
	t.out.Lock()
	closed := t.out.closed
	if !closed {
		t.out.endpoints[e] = struct{}{}
	}
	t.out.Unlock()
	if closed {
		return nil, e.failed("connect", errs.New(errs.Closed, "connect", "this engine is closed"))
	}
	c, err := e.dial(ctx)
	if err != nil {
		t.forget(e)
		return nil, err
	}
	e.start(c)
	return e, nil
}

func (t *Transport) forget(e *Endpoint) {
	t.out.Lock()
	delete(t.out.endpoints, e)
	t.out.Unlock()
}

// Drain lets each peer's connection end when the request that it is at is done,
// and returns when all have, or ctx has ended. The wire has no word for it.
func (t *Transport) Drain(ctx context.Context) error {
	t.in.Lock()
	t.in.draining = true
	for c := range t.in.conns {
		if c.idle {
			_ = c.conn.Close()
		}
	}
	t.in.Unlock()
	ended := make(chan struct{})
	go func() { t.in.wg.Wait(); close(ended) }() // ends with Close at the latest
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return &errs.Error{Op: "drain", Transport: Name, Reason: errs.Draining, Detail: "peers still have requests under way", Err: ctx.Err()}
	}
}

// Close ends all endpoints that are still open and all connections, and returns
// when nothing of the transport runs any more.
func (t *Transport) Close() error {
	t.out.Lock()
	t.out.closed = true
	left := make([]*Endpoint, 0, len(t.out.endpoints))
	for e := range t.out.endpoints {
		left = append(left, e)
	}
	t.out.Unlock()
	for _, e := range left {
		_ = e.Close()
	}
	t.in.Lock()
	t.in.closed = true
	for c := range t.in.conns {
		_ = c.conn.Close()
	}
	t.in.Unlock()
	t.in.wg.Wait()
	return nil
}

// addrs returns both ends of a connection, for people.
func addrs(c net.Conn) (local, remote string) {
	if a := c.LocalAddr(); a != nil {
		local = a.String()
	}
	if a := c.RemoteAddr(); a != nil {
		remote = a.String()
	}
	return local, remote
}
