package engine

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/inspect"
	"github.com/tideway-io/tideway/internal/control"
	"github.com/tideway-io/tideway/internal/core"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
)

// peer is one incarnation of another engine, or this engine itself: its newest
// descriptor, its paths, and the control connection.
type peer struct {
	e     *Engine
	shard *shard
	own   bool
	desc  atomic.Pointer[segment.Desc]

	mu struct {
		sync.Mutex
		paths   []*path       // in the order of the drivers; made when first needed
		control *control.Peer // nil until needed, replaced when it has ended
		used    bool          // since the last sweep
	}
	dialing  chan struct{} // holds one token: who has it dials the control connection
	notifier *control.Notifier
}

func newPeer(e *Engine, d *segment.Desc, sh *shard, own bool) *peer {
	p := &peer{e: e, shard: sh, own: own, dialing: make(chan struct{}, 1)}
	p.desc.Store(d)
	// The engine may have had another peer of this identity: the clock is ahead of
	// all ids that it used.
	p.notifier = control.NewNotifier(p.dial, e.cfg.StallTimeout, uint64(e.now()))
	return p
}

// path is one transport to one peer: what the scheduler calls by a number, and
// the endpoint behind it while there is one.
type path struct {
	id   core.PathID
	peer *peer
	tr   *opened

	up atomic.Pointer[transport.Endpoint] // nil unless connected; set under mu
	mu struct {
		sync.Mutex
		closed bool
	}
}

// path returns the peer's path over tr, adding it to the shard when it is new.
func (p *peer) path(tr *opened) (*path, error) {
	p.mu.Lock()
	p.mu.used = true
	q := p.find(tr)
	if q != nil {
		p.mu.Unlock()
		return q, nil
	}
	q = &path{peer: p, tr: tr}
	if !p.shard.addPath(q) {
		p.mu.Unlock()
		return nil, errs.New(errs.Overloaded, "add path", "too many peers are connected; close segments that are not in use")
	}
	p.mu.paths = append(p.mu.paths, q)
	p.mu.Unlock()
	if !p.e.peers.revive(p) { // whoever closes the peers may have been here already
		p.shard.removePath(q)
		return nil, errClosed
	}
	return q, nil
}

// find returns the path over tr if there is one. The lock is held.
func (p *peer) find(tr *opened) *path {
	for _, q := range p.mu.paths {
		if q.tr == tr {
			return q
		}
	}
	return nil
}

// trouble is the last failure of the path over tr since it was connected, nil if
// there is none, or no such path.
func (p *peer) trouble(tr *opened) error {
	p.mu.Lock()
	q := p.find(tr)
	p.mu.Unlock()
	if q == nil {
		return nil
	}
	var info core.PathInfo
	p.shard.look(q.id, &info)
	return info.Err
}

// connect opens an endpoint. It blocks.
func (q *path) connect(ctx context.Context) (transport.Endpoint, error) {
	ctx, cancel := context.WithTimeout(ctx, q.peer.e.cfg.ConnectTimeout)
	defer cancel()
	ep, err := q.tr.transport.Connect(ctx, q.peer.desc.Load())
	if errors.Is(err, context.DeadlineExceeded) && q.peer.e.ctx.Err() == nil {
		return nil, &errs.Error{Op: "connect", Peer: q.peer.addr(), Transport: q.tr.name, Stage: "connect", Reason: errs.Unresponsive, Retryable: true, Err: err}
	}
	if err != nil && q.peer.e.ctx.Err() != nil {
		return nil, errClosed
	}
	if err != nil {
		return nil, err
	}
	if q.set(ep) {
		return ep, nil
	}
	q.peer.e.closing(ep)
	return nil, errClosed
}

// set makes ep the path's endpoint, unless the path was closed meanwhile.
func (q *path) set(ep transport.Endpoint) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.mu.closed {
		return false
	}
	q.up.Store(&ep)
	return true
}

// drop lets go of the endpoint, if there is one; it is closed in the
// background, and its slices complete meanwhile.
func (q *path) drop() {
	if q == nil {
		return
	}
	if ep := q.up.Swap(nil); ep != nil {
		q.peer.e.closing(*ep)
	}
}

// close drops the endpoint for ever; one that is being connected is closed as
// soon as it is there.
func (q *path) close() {
	q.mu.Lock()
	q.mu.closed = true
	q.mu.Unlock()
	q.drop()
}

// endpoint returns the endpoint, nil when there is none.
func (q *path) endpoint() transport.Endpoint {
	if q == nil {
		return nil
	}
	if ep := q.up.Load(); ep != nil {
		return *ep
	}
	return nil
}

// addr is where the peer listens.
func (p *peer) addr() string {
	d := p.desc.Load()
	if d.Addr != "" {
		return d.Addr
	}
	return string(d.Name)
}

// dial returns the control connection, made anew if the last one has ended. One
// caller dials, the others wait for it.
func (p *peer) dial(ctx context.Context) (*control.Peer, error) {
	select {
	case p.dialing <- struct{}{}:
		defer func() { <-p.dialing }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	p.mu.Lock()
	c := p.mu.control
	p.mu.used = true
	p.mu.Unlock()
	if c != nil && c.Err() == nil {
		return c, nil
	}
	if c != nil {
		_ = c.Close() // it has ended; its goroutines may not have yet
	}
	c, err := p.e.dialControl(ctx, p.desc.Load())
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	p.mu.control = c
	p.mu.Unlock()
	if !p.e.peers.revive(p) { // whoever closes the peers may have been here already
		return nil, errors.Join(errClosed, c.Close())
	}
	return c, nil
}

// close ends the paths and the control connection.
func (p *peer) close() {
	p.mu.Lock()
	paths, c := p.take()
	p.mu.Unlock()
	p.end(paths, c)
}

// take takes away what there is. The lock is held.
func (p *peer) take() ([]*path, *control.Peer) {
	paths, c := p.mu.paths, p.mu.control
	p.mu.paths, p.mu.control = nil, nil
	return paths, c
}

// idle takes away what there is and returns what ends it, nil if transfers are
// on a path or somebody has used p since the last call: he may be about to.
func (p *peer) idle() (end func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	used := p.mu.used
	p.mu.used = false
	if used || p.busy() {
		return nil
	}
	paths, c := p.take()
	return func() { p.end(paths, c) }
}

// busy reports whether transfers are on any of p's paths. The lock is held.
func (p *peer) busy() bool {
	for _, q := range p.mu.paths {
		var info core.PathInfo
		if p.shard.look(q.id, &info); info.InFlight+info.Queued > 0 {
			return true
		}
	}
	return false
}

func (p *peer) end(paths []*path, c *control.Peer) {
	for _, q := range paths {
		p.shard.removePath(q)
	}
	if c != nil {
		if err := c.Close(); err != nil {
			p.e.log.Debug("close control connection", "peer", p.addr(), "err", err)
		}
	}
}

// observe describes the peer for inspection.
func (p *peer) observe() inspect.Peer {
	d := p.desc.Load()
	out := inspect.Peer{Segment: string(d.Name), Incarnation: d.Incarnation.String(), Version: d.Version, Buffers: len(d.Buffers)}
	p.mu.Lock()
	paths := append([]*path(nil), p.mu.paths...)
	p.mu.Unlock()
	for _, q := range paths {
		out.Paths = append(out.Paths, q.observe())
	}
	return out
}

func (q *path) observe() inspect.Path {
	var info core.PathInfo
	q.peer.shard.look(q.id, &info)
	out := inspect.Path{Transport: q.tr.name, State: info.State.String()}
	if info.Err != nil {
		out.Error = info.Err.Error()
	}
	for _, r := range info.Rails {
		out.Rails = append(out.Rails, inspect.Rail{InFlight: r.InFlight, Window: r.Window, BytesPerSecond: r.BytesPerSecond})
	}
	if o, ok := transport.As[transport.Observer](q.endpoint()); ok {
		for i, r := range o.Observe() {
			if i == len(out.Rails) {
				break
			}
			to := &out.Rails[i]
			to.Local, to.Remote, to.Lanes = r.Local, r.Remote, r.Lanes
			to.BytesOut, to.BytesIn, to.Checksums, to.Reconnects = r.BytesOut, r.BytesIn, r.Checksums, r.Reconnects
		}
	}
	return out
}
