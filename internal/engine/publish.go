package engine

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/mooncake"
	"github.com/tideway-io/tideway/segment"
)

// keyPrefix is where a metadata store keeps descriptors, as Mooncake does.
const keyPrefix = "mooncake/ram/"

// ownDesc is this engine's descriptor at this instant.
func (e *Engine) ownDesc() *segment.Desc {
	p := e.local.Published()
	if d := e.own.Load(); d != nil && d.Version == p.Version {
		return d
	}
	d := e.bareDesc()
	d.Version, d.Buffers, d.Lookup = p.Version, p.Buffers, p.Lookup
	e.own.Store(d)
	return d
}

// bareDesc is the descriptor without its buffers: what a request to a peer says
// about the one who asks.
func (e *Engine) bareDesc() *segment.Desc {
	d := &segment.Desc{
		Name: e.name, Incarnation: e.incarnation, Addr: e.Addr(), Host: e.host, Protocol: "tcp", TCPVersion: 2,
	}
	for _, t := range e.transports.open {
		if !t.transport.Caps().OwnOnly {
			d.Transports = append(d.Transports, t.name)
		}
	}
	return d
}

// selfDesc is what this engine is to itself: it has every transport that is
// open, those included that join nobody else.
func (e *Engine) selfDesc() *segment.Desc {
	d := e.bareDesc()
	d.Transports = nil
	for _, t := range e.transports.open {
		d.Transports = append(d.Transports, t.name)
	}
	return d
}

// lookup gets a peer's descriptor: from the store, or from the peer itself.
func (e *Engine) lookup(ctx context.Context, name segment.Name) (*segment.Desc, error) {
	if e.cfg.Metadata == nil {
		return e.cfg.Discover(ctx, e.dialer.Dial, string(name), e.bareDesc(), e.fetchPages)
	}
	value, err := e.cfg.Metadata.Get(ctx, keyPrefix+string(name))
	if err != nil {
		return nil, e.storeError(ctx, "look up", name, err)
	}
	d, pages, err := mooncake.DecodeDesc(value)
	if err == nil && pages > 0 {
		err = e.fetchPages(ctx, d, pages)
	}
	return d, err
}

// publication is what the store has of this engine. Its fields are for whoever
// has the turn.
type publication struct {
	turn    chan struct{} // holds one token: who has it reads and writes the store
	tried   bool          // something of this engine may be there
	over    bool          // nothing more is published
	version uint64        // of the descriptor that is there, 0 if not known

	dirty  atomic.Int64               // changes of the buffers since the last publication
	failed atomic.Pointer[errs.Error] // why what is there is old, nil if it is not
}

// take waits for the turn.
func (p *publication) take(ctx context.Context) error {
	select {
	case p.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p *publication) give() { <-p.turn }

// publish puts the descriptor into the store, if there is one and it does not
// have it. Peer to peer it is answered to whoever asks.
func (e *Engine) publish(ctx context.Context) error {
	if e.cfg.Metadata == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, e.cfg.ConnectTimeout)
	defer cancel()
	err := e.put(ctx)
	if err == nil {
		e.publication.failed.Store(nil)
		return nil
	}
	failed := e.storeError(ctx, "publish", e.name, err)
	e.publication.failed.Store(failed)
	return failed
}

func (e *Engine) put(ctx context.Context) error {
	p := &e.publication
	if err := p.take(ctx); err != nil {
		return err
	}
	defer p.give()
	d := e.ownDesc()
	if p.over || p.version == d.Version {
		return nil
	}
	value, err := mooncake.EncodeDesc(d, time.Now())
	if err != nil {
		return err
	}
	p.tried, p.version = true, 0
	if err := e.cfg.Metadata.Put(ctx, e.key(), value); err != nil {
		return err
	}
	p.version = d.Version
	return nil
}

// unpublish takes the descriptor out of the store, for good, unless another
// engine has taken over the name.
func (e *Engine) unpublish(ctx context.Context) error {
	if e.cfg.Metadata == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, e.cfg.ConnectTimeout)
	defer cancel()
	if err := e.remove(ctx); err != nil {
		return e.storeError(ctx, "unpublish", e.name, err)
	}
	return nil
}

func (e *Engine) remove(ctx context.Context) error {
	p := &e.publication
	if err := p.take(ctx); err != nil {
		return err
	}
	defer p.give()
	p.over = true
	if !p.tried {
		return nil
	}
	value, err := e.cfg.Metadata.Get(ctx, e.key())
	if err != nil && !errors.Is(err, errs.ErrNotFound) {
		return err
	}
	if err == nil {
		if d, _, err := mooncake.DecodeDesc(value); err == nil && d.Incarnation == e.incarnation {
			if err := e.cfg.Metadata.Delete(ctx, e.key()); err != nil {
				return err
			}
		}
	}
	p.tried = false
	return nil
}

func (e *Engine) key() string { return keyPrefix + string(e.name) }

// storeError is the error of a call of the store. One that the store let time out
// is unresponsive, like a peer would be.
func (e *Engine) storeError(ctx context.Context, op string, name segment.Name, err error) *errs.Error {
	failed := &errs.Error{Op: op, Segment: string(name), Reason: errs.Of(err), Retryable: true, Err: err}
	if errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		failed.Reason, failed.Detail = errs.Unresponsive, "the metadata store does not answer; check that it runs and can be reached"
	}
	return failed
}

// Pauses between tries to publish.
const (
	minRepublish = 50 * time.Millisecond
	maxRepublish = 10 * time.Second
)

// changed says that the set of buffers is another one. With a store, one
// goroutine publishes until what is stored is what there is.
func (e *Engine) changed() {
	if e.cfg.Metadata == nil || e.publication.dirty.Add(1) > 1 {
		return
	}
	e.spawn(func() {
		for pause := minRepublish; ; {
			seen := e.publication.dirty.Load()
			if err := e.publish(e.ctx); err == nil {
				if e.publication.dirty.CompareAndSwap(seen, 0) {
					return
				}
				continue
			} else if e.ctx.Err() == nil {
				e.log.Warn("publish", "err", err, "again_in", pause)
			}
			select {
			case <-time.After(pause/2 + time.Duration(e.rand()%uint64(pause/2))): // not all engines at once
			case <-e.ctx.Done():
				return
			}
			pause = min(2*pause, maxRepublish)
		}
	})
}
