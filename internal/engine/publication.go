package engine

import (
	"bytes"
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/mooncake"
	"github.com/tideway-io/tideway/metadata"
)

// publication is what the store has of this engine. Its fields are for whoever
// has the turn.
type publication struct {
	turn    chan struct{} // holds one token: who has it reads and writes the store
	tried   bool          // something of this engine may be there
	over    bool          // nothing more is published
	address bool          // the address is there
	version uint64        // of the descriptor that is there, 0 if not known
	leases  [2]context.CancelFunc

	dirty  atomic.Int64               // changes of the buffers since the last publication
	failed atomic.Pointer[errs.Error] // why what is there is old, nil if it is not
	again  atomic.Uint64              // how often the store had lost it
}

// Of leases.
const (
	leaseAddr = iota
	leaseDesc
)

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

// published reports whether this engine is found in a store. One without a name
// only finds others there.
func (e *Engine) published() bool { return e.cfg.Metadata != nil && e.cfg.Name != "" }

func (e *Engine) descKey() string { return mooncake.DescKey(e.cfg.Cluster, string(e.name)) }
func (e *Engine) addrKey() string { return mooncake.AddrKey(e.cfg.Cluster, string(e.name)) }

// claim refuses a name whose owner lives: the descriptor that the store has of it
// names an engine that answers, as the life that it is of. What a dead engine has
// left, or one that cannot be asked, is replaced. Of two that open at the same
// time both may get the name; then the later one has it, and the other is told
// (taken). See docs/adr/0015-one-engine-per-name.md.
func (e *Engine) claim(ctx context.Context) error {
	if !e.published() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, e.cfg.ConnectTimeout)
	defer cancel()
	value, err := e.cfg.Metadata.Get(ctx, e.descKey())
	if errors.Is(err, errs.ErrNotFound) {
		return nil
	}
	if err != nil {
		return e.storeError(ctx, "open", e.name, err)
	}
	d, _, err := mooncake.DecodeDesc(value)
	if err != nil || d.Incarnation == 0 || d.Addr == "" {
		return nil
	}
	c, err := e.dialControl(ctx, d)
	if err != nil {
		e.log.Info("the name is taken over from an engine that does not answer", "name", e.name, "incarnation", d.Incarnation, "addr", d.Addr, "err", err)
		return nil
	}
	if err := c.Close(); err != nil {
		e.log.Debug("close control connection", "err", err)
	}
	return errs.New(errs.Busy, "open", "the name %q is that of the engine at %s, which lives: give each engine a name of its own, or close that one", e.name, d.Addr)
}

// publish puts the address and the descriptor into the store, if there is one and
// it does not have them. Peer to peer they are answered to whoever asks.
func (e *Engine) publish(ctx context.Context) error { return e.asking(ctx, "publish", e.put) }

// checkStore looks whether the store still has what was published, and publishes it
// again if it does not: the store may have lost it, or a lease may have ended
// while this process was stopped. Whole asks for the descriptor, too, which is
// long; the address is lost with it, or nothing is.
func (e *Engine) checkStore(ctx context.Context, whole bool) error {
	return e.asking(ctx, "publish", func(ctx context.Context) error {
		lost, err := e.lost(ctx, whole)
		if err != nil || !lost {
			return err
		}
		e.publication.again.Add(1)
		e.log.Info("the metadata store had lost this engine; it is published again")
		return e.put(ctx)
	})
}

// asking runs f with the turn, bounded, and keeps its error for those who look.
func (e *Engine) asking(ctx context.Context, op string, f func(ctx context.Context) error) error {
	p := &e.publication
	if !e.published() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, e.cfg.ConnectTimeout)
	defer cancel()
	err := p.take(ctx)
	if err == nil {
		err = f(ctx)
		p.give()
	}
	if err == nil {
		p.failed.Store(nil)
		return nil
	}
	failed := e.storeError(ctx, op, e.name, err)
	p.failed.Store(failed)
	return failed
}

// put puts what the store does not have, the address first. The caller has the turn.
func (e *Engine) put(ctx context.Context) error {
	p := &e.publication
	d := e.ownDesc()
	if p.over || p.address && p.version == d.Version {
		return nil
	}
	p.tried = true
	if !p.address {
		value, err := mooncake.EncodeAddr(e.Addr())
		if err != nil {
			return err
		}
		if err := e.putLeased(ctx, leaseAddr, e.addrKey(), value); err != nil {
			return err
		}
		p.address = true
	}
	value, err := mooncake.EncodeDesc(d, time.Now())
	if err != nil {
		return err
	}
	p.version = 0
	if err := e.putLeased(ctx, leaseDesc, e.descKey(), value); err != nil {
		return err
	}
	p.version = d.Version
	return nil
}

// putLeased puts a value that ends with this engine, where the store can do that.
// Ctx bounds the call only; the lease is renewed until the engine ends.
func (e *Engine) putLeased(ctx context.Context, which int, key string, value []byte) error {
	leaser, ok := e.cfg.Metadata.(metadata.Leaser)
	if !ok {
		return e.cfg.Metadata.Put(ctx, key, value)
	}
	life, end := context.WithCancel(e.ctx)
	stop := context.AfterFunc(ctx, end)
	err := leaser.PutLeased(life, key, value, e.cfg.MetadataTTL)
	if !stop() && err == nil {
		err = context.Cause(ctx) // too late: it is renewed no more
	}
	if err != nil {
		end()
		return err
	}
	if was := e.publication.leases[which]; was != nil {
		was() // this Put replaced its value
	}
	e.publication.leases[which] = end
	return nil
}

// lost reports whether the store has lost what was published. Another engine that
// has taken over the name is an error. The caller has the turn.
func (e *Engine) lost(ctx context.Context, whole bool) (bool, error) {
	p := &e.publication
	if p.over {
		return false, nil
	}
	if p.address {
		there, err := e.hasAddr(ctx)
		if err != nil {
			return false, err
		}
		if !there {
			p.address, p.version = false, 0
		}
	}
	if p.version != 0 && whole {
		there, err := e.hasDesc(ctx)
		if err != nil {
			return false, err
		}
		if !there {
			p.version = 0
		}
	}
	return !p.address || p.version == 0, nil
}

// hasAddr reports whether the store has this engine's address. One of another
// engine is errTaken.
func (e *Engine) hasAddr(ctx context.Context) (bool, error) {
	value, err := e.cfg.Metadata.Get(ctx, e.addrKey())
	if errors.Is(err, errs.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	own, err := mooncake.EncodeAddr(e.Addr())
	if err == nil && !bytes.Equal(bytes.TrimSpace(value), own) {
		addr, _ := mooncake.DecodeAddr(value)
		err = taken(string(e.name), addr)
	}
	return err == nil, err
}

// hasDesc is hasAddr of the descriptor.
func (e *Engine) hasDesc(ctx context.Context) (bool, error) {
	value, err := e.cfg.Metadata.Get(ctx, e.descKey())
	if errors.Is(err, errs.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	d, _, err := mooncake.DecodeDesc(value)
	if err != nil || d.Incarnation != e.incarnation {
		addr := ""
		if err == nil {
			addr = d.Addr
		}
		return false, taken(string(e.name), addr)
	}
	return true, nil
}

// taken says that another engine publishes under this one's name.
func taken(name, addr string) error {
	return errs.New(errs.Busy, "publish", "another engine at %q has taken over the name %q: peers find that one; give each engine a name of its own", addr, name)
}

// unpublish takes the address and then the descriptor out of the store, for good,
// unless another engine has taken over the name.
func (e *Engine) unpublish(ctx context.Context) error {
	if !e.published() {
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
	for _, end := range p.leases {
		if end != nil {
			end()
		}
	}
	if !p.tried {
		return nil
	}
	for _, one := range []struct {
		has func(context.Context) (bool, error)
		key string
	}{{e.hasAddr, e.addrKey()}, {e.hasDesc, e.descKey()}} {
		there, err := one.has(ctx)
		if err != nil && errs.Of(err) != errs.Busy { // another engine's is left alone
			return err
		}
		if there {
			if err := e.cfg.Metadata.Delete(ctx, one.key); err != nil {
				return err
			}
		}
	}
	p.tried = false
	return nil
}

// wholeEvery is how many checks ask for the address only until one asks for the
// descriptor.
const wholeEvery = 6

// watchStore checks three times in the life of a lease.
func (e *Engine) watchStore() {
	for n := 1; ; n++ {
		every := e.cfg.MetadataTTL / 3
		if e.pause(every*3/4 + time.Duration(e.rand()%uint64(every/2))) { // not all engines at once
			return
		}
		before := e.publication.failed.Load()
		if err := e.checkStore(e.ctx, n%wholeEvery == 0); err != nil && before == nil && e.ctx.Err() == nil {
			e.log.Warn("metadata", "err", err)
		}
	}
}

// pause waits for d; true when the engine ends.
func (e *Engine) pause(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return false
	case <-e.ctx.Done():
		return true
	}
}
