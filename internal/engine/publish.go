package engine

import (
	"context"
	"errors"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/mooncake"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
)

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
		Name: e.name, Incarnation: e.incarnation, Addr: e.Addr(), Addrs: e.listener.Others(), Host: e.host, Protocol: "tcp", TCPVersion: 2,
	}
	for _, t := range e.transports.open {
		if c := t.transport.Caps(); !c.OwnOnly && !c.Foreign {
			d.Transports = append(d.Transports, t.name)
		}
		if p, ok := transport.As[transport.Publisher](t.transport); ok {
			p.Publish(d)
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
		if !t.transport.Caps().Foreign {
			d.Transports = append(d.Transports, t.name)
		}
	}
	return d
}

// mayShareHost reports whether the owner of d may be on this host. Containers of
// one host have its identity in common, and so have resumed copies of a virtual
// machine: it is for the transport to find out.
func (e *Engine) mayShareHost(d *segment.Desc) bool {
	return d.Host == e.host || d.Host == "" || e.host == ""
}

// lookup gets a peer's descriptor: from the store, or from the peer itself.
func (e *Engine) lookup(ctx context.Context, name segment.Name) (*segment.Desc, error) {
	if e.cfg.Metadata == nil {
		return e.discover(ctx, string(name))
	}
	value, err := e.cfg.Metadata.Get(ctx, mooncake.DescKey(e.cfg.Cluster, string(name)))
	if err != nil {
		return nil, e.storeError(ctx, "look up", name, err)
	}
	d, pages, err := mooncake.DecodeDesc(value)
	if err == nil && pages > 0 {
		err = e.fetchPages(ctx, d, pages)
	}
	if err == nil {
		if err = e.daemons(ctx, d); err != nil {
			err = e.storeError(ctx, "look up the address of", name, err)
		}
	}
	return d, err
}

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
	if !e.published() || e.publication.dirty.Add(1) > 1 {
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
			if e.pause(pause/2 + time.Duration(e.rand()%uint64(pause/2))) { // not all engines at once
				return
			}
			pause = min(2*pause, maxRepublish)
		}
	})
}
