package engine

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/registry"
	"github.com/tideway-io/tideway/segment"
)

// Segment is a handle on a peer's published buffers, or on the engine's own.
type Segment struct {
	e      *Engine
	name   segment.Name
	remote *registry.Remote     // nil for the engine's own
	view   atomic.Pointer[view] // the last one that was made
	stale  atomic.Bool          // a request found out that the descriptor is old
	closed atomic.Bool

	suspects suspects
}

// view is a descriptor and the peer that it belongs to.
type view struct {
	desc *segment.Desc
	peer *peer
}

// OpenSegment finds what the peer called name offers.
func (e *Engine) OpenSegment(ctx context.Context, name segment.Name) (*Segment, error) {
	if err := e.usable("open segment"); err != nil {
		return nil, err
	}
	s := &Segment{e: e, name: name}
	if name == e.name {
		return s, nil
	}
	r, err := e.remotes.Open(ctx, name, func(ctx context.Context) (*segment.Desc, error) { return e.fetch(ctx, name) })
	if err != nil {
		return nil, s.failed(err)
	}
	s.remote = r
	return s, nil
}

// fetch gets the descriptor of name and refuses the engine's own.
func (e *Engine) fetch(ctx context.Context, name segment.Name) (*segment.Desc, error) {
	ctx, cancel := context.WithTimeout(ctx, e.cfg.ConnectTimeout)
	defer cancel()
	d, err := e.lookup(ctx, name)
	if err == nil && d.Incarnation == e.incarnation {
		return nil, errs.New(errs.SelfDial, "open segment", "the engine that answers is this one; open it by its own name, %q", e.name)
	}
	return d, err
}

// Engine returns the engine that opened the segment.
func (s *Segment) Engine() *Engine { return s.e }

// Name returns the name that the segment was opened by.
func (s *Segment) Name() segment.Name { return s.name }

// Desc returns the descriptor as known now; one's own is always up to date.
func (s *Segment) Desc() *segment.Desc {
	if s.remote == nil {
		return s.e.ownDesc()
	}
	return s.remote.Desc()
}

// now returns the descriptor as known now, and its peer.
func (s *Segment) now() *view {
	d := s.Desc()
	if v := s.view.Load(); v != nil && v.desc == d {
		return v
	}
	v := &view{d, s.e.peers.self}
	if s.remote != nil {
		v.peer = s.e.peers.get(registry.IdentityOf(d, s.name), d)
	}
	s.view.Store(v)
	return v
}

// Refresh fetches the descriptor again.
func (s *Segment) Refresh(ctx context.Context) error {
	if s.remote == nil {
		return nil
	}
	_, restarted, err := s.remote.Refresh(ctx, s.remote.Desc())
	if err != nil {
		return s.failed(err)
	}
	s.stale.Store(false)
	if restarted {
		s.e.peers.sweepLater()
	}
	return nil
}

func (s *Segment) failed(err error) error {
	code := errs.Of(err)
	again := errors.Is(code.Kind(), errs.ErrUnreachable) || errors.Is(code.Kind(), errs.ErrOverloaded) || code == errs.Deadline
	return &errs.Error{Op: "open segment", Segment: string(s.name), Stage: "connect", Reason: code, Retryable: again, Err: err}
}

// Found is one buffer of one incarnation, as it was published.
type Found struct {
	Segment *Segment
	Desc    *segment.Buffer
	view    *view // that it was found in
}

// Buffer finds a buffer by name, asking the owner once more on a miss.
func (s *Segment) Buffer(ctx context.Context, name string) (*Found, error) {
	if s.stale.Load() {
		if err := s.Refresh(ctx); err != nil {
			return nil, err
		}
	}
	for again := false; ; again = true {
		v := s.now()
		if b := v.desc.ByName(name); b != nil {
			return &Found{s, b, v}, nil
		}
		if again || s.remote == nil {
			err := errs.New(errs.NotRegistered, "find buffer", "the segment has no buffer of that name")
			err.Segment = string(s.name) + "/" + name
			return nil, err
		}
		if err := s.Refresh(ctx); err != nil {
			return nil, err
		}
	}
}

// Close lets go of the segment. Requests under way are not disturbed.
func (s *Segment) Close() error {
	if s.remote != nil && s.closed.CompareAndSwap(false, true) {
		s.remote.Close()
		s.e.peers.sweepLater()
	}
	return nil
}
