package engine

import (
	"context"
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
		return nil, err
	}
	d, pages, err := mooncake.DecodeDesc(value)
	if err == nil && pages > 0 {
		err = e.fetchPages(ctx, d, pages)
	}
	return d, err
}

// publish puts the descriptor into the store, if there is one. Peer to peer it
// is answered to whoever asks.
func (e *Engine) publish(ctx context.Context) error {
	if e.cfg.Metadata == nil {
		return nil
	}
	value, err := mooncake.EncodeDesc(e.ownDesc(), time.Now())
	if err != nil {
		return err
	}
	if err := e.cfg.Metadata.Put(ctx, keyPrefix+string(e.name), value); err != nil {
		return &errs.Error{Op: "publish", Segment: string(e.name), Reason: errs.Of(err), Retryable: true, Err: err}
	}
	return nil
}

// unpublish takes the descriptor out of the store.
func (e *Engine) unpublish(ctx context.Context) error {
	if e.cfg.Metadata == nil || e.name == "" {
		return nil
	}
	if err := e.cfg.Metadata.Delete(ctx, keyPrefix+string(e.name)); err != nil {
		return &errs.Error{Op: "unpublish", Segment: string(e.name), Reason: errs.Of(err), Err: err}
	}
	return nil
}

// changed says that the set of buffers is another one. With a store, one
// goroutine publishes until what is stored is what there is.
func (e *Engine) changed() {
	if e.cfg.Metadata == nil || e.dirty.Add(1) > 1 {
		return
	}
	e.spawn(func() {
		for seen := e.dirty.Load(); ; seen = e.dirty.Load() {
			ctx, cancel := context.WithTimeout(e.ctx, e.cfg.ConnectTimeout)
			if err := e.publish(ctx); err != nil {
				e.log.Warn("publish", "err", err)
			}
			cancel()
			if e.dirty.CompareAndSwap(seen, 0) {
				return
			}
		}
	})
}
