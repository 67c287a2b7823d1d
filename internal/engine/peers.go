package engine

import (
	"sync"
	"time"

	"github.com/tideway-io/tideway/inspect"
	"github.com/tideway-io/tideway/internal/registry"
	"github.com/tideway-io/tideway/segment"
)

// peerIdle is how long the connections to a peer that no open segment leads to
// are kept.
const peerIdle = 10 * time.Second

// peers are the engines behind the open segments. Spellings of one engine's
// name share the peer, by its identity.
type peers struct {
	e    *Engine
	self *peer
	mu   struct {
		sync.Mutex
		known   map[registry.Identity]*peer
		live    map[*peer]struct{} // every peer that may have connections
		next    int                // the shard of the next peer
		sweeper *time.Timer
		armed   bool // sweeper will fire
		closed  bool
	}
}

func (ps *peers) init(e *Engine) {
	ps.e = e
	ps.self = newPeer(e, &segment.Desc{Incarnation: e.incarnation}, e.shards[0], true)
	ps.mu.known = make(map[registry.Identity]*peer)
	ps.mu.live = map[*peer]struct{}{ps.self: {}}
	ps.mu.sweeper = time.AfterFunc(time.Hour, ps.sweep)
	ps.mu.sweeper.Stop()
}

// get returns the peer of an identity, made with d when it is new.
func (ps *peers) get(id registry.Identity, d *segment.Desc) *peer {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p := ps.mu.known[id]
	if p == nil {
		p = newPeer(ps.e, d, ps.e.shards[ps.mu.next%len(ps.e.shards)], false)
		ps.mu.next++
		ps.mu.known[id] = p
		ps.mu.live[p] = struct{}{}
		ps.later()
	}
	p.desc.Store(d)
	return p
}

// revive makes sure that a peer that gets a connection will be closed; false
// when no more may be made.
func (ps *peers) revive(p *peer) bool {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.mu.closed {
		return false
	}
	if _, ok := ps.mu.live[p]; !ok {
		ps.mu.live[p] = struct{}{}
		ps.later()
	}
	return true
}

// sweepLater looks for unused peers after a while.
func (ps *peers) sweepLater() {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.later()
}

// later is sweepLater with the lock held. A sweep that is due is not put off.
func (ps *peers) later() {
	if !ps.mu.armed && !ps.mu.closed {
		ps.mu.armed = true
		ps.mu.sweeper.Reset(peerIdle)
	}
}

// sweep closes the peers that no open segment leads to and that are idle.
func (ps *peers) sweep() {
	used := make(map[registry.Identity]bool)
	for _, r := range ps.e.remotes.All() {
		used[r.Identity()] = true
	}
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.mu.armed = false
	if ps.mu.closed {
		return
	}
	wanted := map[*peer]bool{ps.self: true}
	for id, p := range ps.mu.known {
		if used[id] {
			wanted[p] = true
		}
	}
	for p := range ps.mu.live {
		if wanted[p] {
			continue
		}
		end := p.idle()
		if end == nil {
			ps.later()
			continue
		}
		delete(ps.mu.live, p)
		ps.e.background(end)
	}
	for id, p := range ps.mu.known {
		if _, ok := ps.mu.live[p]; !ok {
			delete(ps.mu.known, id)
		}
	}
}

// all returns every peer that may have connections.
func (ps *peers) all() []*peer {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	out := make([]*peer, 0, len(ps.mu.live))
	for p := range ps.mu.live {
		out = append(out, p)
	}
	return out
}

// close ends every peer, for good.
func (ps *peers) close() {
	ps.mu.Lock()
	ps.mu.closed = true
	ps.mu.sweeper.Stop()
	ps.mu.Unlock()
	for _, p := range ps.all() {
		p.close()
	}
}

// observe describes every peer but this engine itself.
func (ps *peers) observe() []inspect.Peer {
	var out []inspect.Peer
	for _, p := range ps.all() {
		if !p.own {
			out = append(out, p.observe())
		}
	}
	return out
}
