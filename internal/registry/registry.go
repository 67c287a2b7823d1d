// Package registry keeps this process's tables: the local buffers that an
// engine has registered, and the remote segments that it has opened.
//
// A Registry decides who may touch which range, and when memory is its owner's
// again: every transport resolves what its peer names through Pin, and
// Buffer.Close returns only when nobody is inside any more. It moves no bytes
// and speaks to nobody; how a descriptor travels is the control protocol's and
// the metadata store's business.
package registry

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
)

// DefaultMaxBuffers is how many buffers may be registered at once unless
// Options say otherwise.
const DefaultMaxBuffers = 1 << 20

// Options configure a Registry. The zero value is usable.
type Options struct {
	// MaxBuffers bounds the buffers registered at once; 0: DefaultMaxBuffers.
	MaxBuffers int
	// Rand gives the place where keys start; nil: math/rand/v2.
	Rand func() uint64
	// Attach makes a buffer known to the transports before it is published and
	// returns the attrs to publish with it, by transport name. What it was
	// given does not change until Detach, except that the attrs are added.
	// Nil: none.
	Attach func(ctx context.Context, b *segment.Buffer) (map[string][]byte, error)
	// Detach undoes Attach. It is called once, after new pins are refused and
	// before the memory is given back. Nil: nothing to undo.
	Detach func(b *segment.Buffer) error
}

// Registry is the table of local buffers of one engine. Its methods may be
// called from any goroutine. It implements transport.Memory.
type Registry struct {
	opts    Options
	keys    keys
	version atomic.Uint64
	refused struct{ denied, outOfRange, revoked, notRegistered atomic.Uint64 }

	published publisher

	mu struct {
		sync.RWMutex
		closed bool
		count  int                // buffers in order
		order  order              // all of them by address
		names  map[string]*Buffer // those that have a name
	}
}

var _ transport.Memory = (*Registry)(nil)

// New returns an empty Registry.
func New(o Options) *Registry {
	if o.MaxBuffers == 0 {
		o.MaxBuffers = DefaultMaxBuffers
	}
	if o.Rand == nil {
		o.Rand = rand.Uint64
	}
	r := &Registry{opts: o}
	r.keys.init(segment.Key(o.Rand()))
	r.version.Store(1)
	r.mu.names = map[string]*Buffer{}
	return r
}

// Register adds a buffer and returns it, published and ready for transfers. Each
// successful Register wants one Close of what it returned.
//
// Registering the identical range again (same address, length, name, location
// and access) returns the same Buffer and counts a reference. Ranges may touch
// but not overlap: errs.Overlap names both. A name is used once: errs.Invalid.
// Memory of length 0 is errs.Invalid, an empty file is fine. A range whose last
// Close has not returned yet is errs.Busy; a full table is errs.Overloaded.
//
// ctx bounds what the transports do with the buffer. After an error nothing is
// registered, and Registration.Free was not called.
func (r *Registry) Register(ctx context.Context, g Registration) (*Buffer, error) {
	fresh, err := g.buffer()
	if err != nil {
		return nil, err
	}
	fresh.reg = r
	b, err := r.insert(fresh)
	if err != nil {
		return nil, err
	}
	if b == fresh {
		err = r.attach(ctx, b)
	} else {
		err = b.await(ctx)
	}
	if err != nil {
		return nil, err
	}
	return b, nil
}

// insert puts fresh into the tables, or returns the identical buffer that is
// there already with one more reference.
func (r *Registry) insert(fresh *Buffer) (*Buffer, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.closed {
		return nil, errs.New(errs.Closed, "register buffer", "the engine is closed")
	}
	if fresh.pub.Addr != 0 {
		if there := r.mu.order.floor(fresh.last()); there != nil && there.last() >= fresh.pub.Addr {
			return there, there.again(fresh)
		}
	}
	if name := fresh.pub.Name; name != "" {
		if there := r.mu.names[name]; there != nil {
			return nil, errs.New(errs.Invalid, "register buffer", "the name %q is taken by %v: choose another, or close that buffer first", name, there)
		}
	}
	if r.mu.count >= r.opts.MaxBuffers {
		return nil, errs.New(errs.Overloaded, "register buffer", "%d buffers are registered, the limit is %d: close some, or register fewer and larger ranges", r.mu.count, r.opts.MaxBuffers)
	}
	key, ok := r.keys.add(fresh)
	if !ok {
		return nil, errs.New(errs.Overloaded, "register buffer", "all %d registration keys of this engine's life are used: open a new engine", uint32(maxKeys))
	}
	fresh.pub.Key = key
	fresh.refs = 1
	r.mu.count++
	r.mu.order.insert(fresh)
	if fresh.pub.Name != "" {
		r.mu.names[fresh.pub.Name] = fresh
	}
	return fresh, nil
}

// attach lets the transports prepare for b, publishes it, and tells those who
// registered the identical range meanwhile.
func (r *Registry) attach(ctx context.Context, b *Buffer) (err error) {
	if r.opts.Attach != nil {
		b.pub.Attrs, err = r.opts.Attach(ctx, &b.pub)
	}
	b.attached = err == nil
	if r.publish(b, err); b.failed != nil {
		b.free = nil // nothing was registered, so nothing is given back
		close(b.ready)
		return errors.Join(b.failed, b.end(context.WithoutCancel(ctx)))
	}
	close(b.ready)
	return nil
}

// publish makes b visible to peers, or withdraws it if err is not nil or the
// registry was closed meanwhile.
func (r *Registry) publish(b *Buffer, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil && r.mu.closed {
		err = errs.New(errs.Closed, "publish", "the engine was closed meanwhile")
	}
	if err != nil {
		b.failed = because("register buffer", b.String(), err)
		b.withdraw()
		return
	}
	b.published = true
	r.changed(b)
}

// changed counts a new version if peers can see b. Callers hold r.mu.
func (r *Registry) changed(b *Buffer) {
	if b.pub.Access != segment.LocalOnly {
		r.version.Add(1)
	}
}

// remove forgets b. Its key is remembered as used, by arithmetic.
func (r *Registry) remove(b *Buffer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.keys.drop(b.pub.Key)
	r.mu.order.remove(b)
	r.mu.count--
	if b.pub.Name != "" {
		delete(r.mu.names, b.pub.Name)
	}
}

// Pin implements transport.Memory. It takes no lock and allocates nothing.
// A range of length 0 is good from the first byte up to and including the end.
func (r *Registry) Pin(op transport.Op, key segment.Key, offset, length uint64) (transport.Pin, errs.Code) {
	b, code := r.keys.get(key)
	if code != errs.OK {
		return r.refuse(code)
	}
	return b.pin(op, offset, length)
}

// PinAddr implements transport.Memory. A range must lie in one buffer, also
// where another one begins at its end.
func (r *Registry) PinAddr(op transport.Op, addr, length uint64) (transport.Pin, errs.Code) {
	r.mu.RLock()
	b := r.mu.order.floor(addr)
	r.mu.RUnlock()
	if b == nil || addr-b.pub.Addr > b.pub.Length {
		return r.refuse(errs.NotRegistered)
	}
	return b.pin(op, addr-b.pub.Addr, length)
}

// refuse counts a refusal of a peer's request.
func (r *Registry) refuse(code errs.Code) (transport.Pin, errs.Code) {
	switch code {
	case errs.Denied:
		r.refused.denied.Add(1)
	case errs.OutOfRange:
		r.refused.outOfRange.Add(1)
	case errs.Revoked:
		r.refused.revoked.Add(1)
	case errs.NotRegistered:
		r.refused.notRegistered.Add(1)
	}
	return transport.Pin{}, code
}

// Refused counts the pins refused since the registry was made, by reason.
type Refused struct{ Denied, OutOfRange, Revoked, NotRegistered uint64 }

// Refused returns the counts of refused pins.
func (r *Registry) Refused() Refused {
	c := &r.refused
	return Refused{c.denied.Load(), c.outOfRange.Load(), c.revoked.Load(), c.notRegistered.Load()}
}

// Len returns how many buffers are registered.
func (r *Registry) Len() int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.mu.count
}

// Close refuses what is new and closes every buffer, whatever its references,
// waiting as Buffer.Close does. Called again after errs.Busy it goes on.
func (r *Registry) Close(ctx context.Context) error {
	r.mu.Lock()
	r.mu.closed = true
	all := make([]*Buffer, 0, r.mu.count)
	for b := range r.mu.order.all {
		b.withdraw()
		all = append(all, b)
	}
	r.mu.Unlock()
	var failed []error
	for _, b := range all {
		if err := b.end(ctx); err != nil && len(failed) < 16 {
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}
