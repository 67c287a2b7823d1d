// Package tcp moves bytes between engines over Tideway's own wire on plain TCP
// connections.
//
// A lane is one connection, dialled by the initiator; the initiator's requests
// go one way, the target's answers come back. Each side of a lane is a pure
// machine (initiator, target) that a descriptor loop (lane) drives. An endpoint
// has one lane to begin with and opens others as the traffic asks for them:
// Limits.Lanes for bulk, one for what is small or urgent, one for files.
//
// The package knows nothing of metadata, policies or retries; whoever posts
// slices decides what happens to those that fail.
package tcp

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/wire"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/topology"
	"github.com/tideway-io/tideway/transport"
)

const name = "tcp"

// Driver opens the TCP transport. The zero value is ready.
type Driver struct{}

// New returns the driver.
func New() *Driver { return &Driver{} }

// Name returns "tcp".
func (*Driver) Name() string { return name }

// Probe returns nil: every host has TCP.
func (*Driver) Probe(context.Context) error { return nil }

// Open starts the transport: from now on it serves connections that start with
// wire.PrefaceData.
func (*Driver) Open(_ context.Context, env transport.Env) (transport.Transport, error) {
	t := &Transport{env: env, log: env.Logger}
	if t.log == nil {
		t.log = slog.New(slog.DiscardHandler)
	}
	t.in.lanes, t.in.greeting = map[laneID]*inbound{}, map[net.Conn]struct{}{}
	t.out.endpoints = map[*Endpoint]struct{}{}
	t.writePlaces, t.readPlaces = newPlaces(t, true), newPlaces(t, false)
	t.look, t.closing, t.watched = make(chan struct{}, 1), make(chan struct{}), make(chan struct{})
	if err := env.Accept(wire.PrefaceData, t.serve); err != nil {
		return nil, &errs.Error{Op: "open", Transport: name, Reason: errs.Of(err), Err: err}
	}
	go func() { t.watchInbound(); close(t.watched) }()
	return t, nil
}

// Transport is the TCP transport of one engine.
type Transport struct {
	env                     transport.Env
	log                     *slog.Logger
	pools                   pools
	spinner                 spinner
	writePlaces, readPlaces *places       // buffers for files
	look                    chan struct{} // to the watcher of inbound lanes
	closing                 chan struct{} // ends it
	watched                 chan struct{} // it has ended

	in struct {
		sync.Mutex
		draining bool
		lanes    map[laneID]*inbound
		greeting map[net.Conn]struct{} // connections in handshake
		count    int                   // connections, those in handshake included
		closed   bool
		wg       sync.WaitGroup
	}
	out struct {
		sync.Mutex
		endpoints map[*Endpoint]struct{}
		closed    bool
	}
}

// Caps says that memory and files are joined, with checks and fences.
func (t *Transport) Caps() transport.Caps {
	return transport.Caps{
		Local:    []topology.Kind{"cpu"},
		Remote:   []topology.Kind{"cpu", "file"},
		MaxSlice: uint64(t.maxFrame()),
		Checks:   t.env.Limits.Checksum,
		Fences:   true,
	}
}

func (t *Transport) maxFrame() uint32 { return min(t.env.Limits.MaxFrame, wire.MaxFrame) }

// Register does nothing: whatever the engine's memory resolves can be reached.
func (t *Transport) Register(context.Context, *segment.Buffer) ([]byte, error) { return nil, nil }

// Unregister does nothing: the engine revokes the key, and waits for pins.
func (t *Transport) Unregister(*segment.Buffer) error { return nil }

// Connect opens the first lane to the peer.
func (t *Transport) Connect(ctx context.Context, peer *segment.Desc) (transport.Endpoint, error) {
	if peer.Addr == "" {
		return nil, &errs.Error{Op: "connect", Segment: string(peer.Name), Transport: name, Stage: "connect", Reason: errs.Unsupported, Detail: "the peer publishes no native address"}
	}
	e := newEndpoint(t, peer)
	t.out.Lock()
	if t.out.closed {
		t.out.Unlock()
		return nil, &errs.Error{Op: "connect", Peer: peer.Addr, Transport: name, Stage: "connect", Reason: errs.Closed, Detail: "this engine is closed"}
	}
	t.out.endpoints[e] = struct{}{}
	t.out.Unlock()
	if err := e.connect(ctx); err != nil {
		_ = e.Close()
		return nil, err
	}
	return e, nil
}

// Drain tells the initiators of inbound lanes to bring nothing new, and returns
// when they have left or ctx has ended. From now on new lanes are refused.
func (t *Transport) Drain(ctx context.Context) error {
	if left := t.sayGoodbye(ctx); left > 0 {
		return &errs.Error{Op: "drain", Transport: name, Reason: errs.Draining, Detail: fmt.Sprintf("peers still have %d lanes open", left), Err: ctx.Err()}
	}
	return nil
}

// Close ends all endpoints that are still open, tells the initiators of inbound
// lanes, and returns when nothing of the transport runs any more.
func (t *Transport) Close() error {
	t.out.Lock()
	if t.out.closed {
		t.out.Unlock()
		<-t.watched
		return nil
	}
	t.out.closed = true
	left := make([]*Endpoint, 0, len(t.out.endpoints))
	for e := range t.out.endpoints {
		left = append(left, e)
	}
	t.out.Unlock()
	for _, e := range left {
		_ = e.Close()
	}
	t.closeInbound()
	return nil
}

func (t *Transport) forget(e *Endpoint) {
	t.out.Lock()
	delete(t.out.endpoints, e)
	t.out.Unlock()
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
