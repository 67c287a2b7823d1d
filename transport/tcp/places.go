package tcp

import (
	"slices"
	"sync"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/segment"
)

// The payload of files passes through buffers of one frame each. Writes and Reads
// have buffers of their own, so that neither waits for the other.
const (
	laneFiles = 4  // of one lane, each way
	peerFiles = 8  // of one peer, however many lanes it has
	allFiles  = 32 // of the transport
)

const (
	// fileWait is how long a peer that has no buffer waits for one before the
	// lane that keeps one longest for nothing is dropped.
	fileWait = 200 * time.Millisecond
	// fileRate is the rate, in bytes a second, from which a lane may keep its
	// buffers whoever waits.
	fileRate = 1 << 20
	// newcomer is how long a peer that has used no buffer yet is expected to
	// keep one.
	newcomer = time.Second
)

// places are the buffers of one direction. When there are too few, they go to
// those who have waited longest, counted from later for a peer that was slow to
// give back what it had, and from much later for one that still has some: so who
// takes its time waits for that long, and no longer.
type places struct {
	pools *pools
	now   func() time.Time
	in    bool // of Writes: the peer fills them

	mu struct {
		sync.Mutex
		held  []*place
		queue []*waiter // at most one for each lane
		peers map[segment.Incarnation]*filePeer
	}
}

// filePeer is what is known of a peer that uses files, as long as it has a lane
// that does.
type filePeer struct {
	lanes int
	held  int
	pace  time.Duration // that it takes to fill or take one buffer
}

// place is a buffer in use. data belongs to its holder.
type place struct {
	data  []byte
	filer *filer
	peer  *filePeer
	since time.Time // it has been the peer's turn, zero while a file is waited for
	moved uint64    // bytes that its lane had moved then
}

// waiter is a lane that waits for a buffer.
type waiter struct {
	filer *filer
	peer  *filePeer
	since time.Time
	got   chan *place // has room for one
}

func newPlaces(t *Transport, in bool) *places {
	p := &places{pools: &t.pools, now: t.env.Now, in: in}
	p.mu.peers = map[segment.Incarnation]*filePeer{}
	return p
}

// join enters a lane of a peer.
func (p *places) join(from segment.Incarnation) {
	p.mu.Lock()
	defer p.mu.Unlock()
	peer := p.mu.peers[from]
	if peer == nil {
		peer = &filePeer{pace: newcomer}
		p.mu.peers[from] = peer
	}
	peer.lanes++
}

// leave takes out a lane that has ended and holds nothing any more.
func (p *places) leave(from segment.Incarnation) {
	p.mu.Lock()
	defer p.mu.Unlock()
	peer := p.mu.peers[from]
	if peer.lanes--; peer.lanes == 0 {
		delete(p.mu.peers, from)
	}
}

// ask queues a lane; what it gets comes through the waiter's channel.
func (p *places) ask(f *filer) *waiter {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := &waiter{filer: f, peer: p.mu.peers[f.from], since: p.now(), got: make(chan *place, 1)}
	p.mu.queue = append(p.mu.queue, w)
	p.grant()
	return w
}

// grant gives what is free to those whose turn it is. The caller holds mu.
func (p *places) grant() {
	for len(p.mu.held) < allFiles {
		k := p.next()
		if k < 0 {
			return
		}
		w := p.mu.queue[k]
		p.mu.queue = slices.Delete(p.mu.queue, k, k+1)
		pl := &place{data: p.pools.big(), filer: w.filer, peer: w.peer}
		if p.in {
			pl.since, pl.moved = p.now(), w.filer.moved(true)
		}
		w.peer.held++
		p.mu.held = append(p.mu.held, pl)
		w.got <- pl
	}
}

// next returns the index of the waiter whose turn it is, -1 if none may have one.
func (p *places) next() int {
	best, turn := -1, time.Time{}
	for k, w := range p.mu.queue {
		if w.peer.held >= peerFiles || p.heldBy(w.filer) >= laneFiles {
			continue
		}
		if t := p.due(w); best < 0 || t.Before(turn) {
			best, turn = k, t
		}
	}
	return best
}

// due is when a waiter's turn would be. A peer that sits on a buffer has had it
// for as long as it has waited for the next one, so twice that is never over.
func (p *places) due(w *waiter) time.Time {
	pace, now := w.peer.pace, p.now()
	for _, pl := range p.mu.held {
		if pl.peer == w.peer && !pl.since.IsZero() {
			pace = max(pace, now.Sub(pl.since))
		}
	}
	return w.since.Add(pace + 2*time.Duration(w.peer.held)*pace)
}

func (p *places) heldBy(f *filer) (n int) {
	for _, pl := range p.mu.held {
		if pl.filer == f {
			n++
		}
	}
	return n
}

// withdraw ends a wait. A place that came meanwhile goes back.
func (p *places) withdraw(w *waiter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.queue = slices.DeleteFunc(p.mu.queue, func(v *waiter) bool { return v == w })
	select {
	case pl := <-w.got:
		p.free(pl)
	default:
	}
}

// turn says whose turn it is with a buffer: the peer's, or a file's.
func (p *places) turn(pl *place, peers bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := p.now(); peers {
		pl.since, pl.moved = now, pl.filer.moved(p.in)
	} else {
		pl.settle(now)
	}
}

// settle counts the time for which it was the peer's turn.
func (pl *place) settle(now time.Time) {
	if !pl.since.IsZero() {
		pl.peer.pace = (pl.peer.pace + 3*now.Sub(pl.since)) / 4
		pl.since = time.Time{}
	}
}

// release gives a buffer back.
func (p *places) release(pl *place) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free(pl)
}

// free is release with mu held. A place may have been taken from a lane that
// ended before its holder gave it back.
func (p *places) free(pl *place) {
	k := slices.Index(p.mu.held, pl)
	if k < 0 {
		return
	}
	pl.settle(p.now())
	pl.peer.held--
	p.mu.held = slices.Delete(p.mu.held, k, k+1)
	p.pools.putBig(pl.data)
	p.grant()
}

// reclaim gives back what a lane holds that has ended: all, or only those with
// which it is the peer's turn.
func (p *places) reclaim(f *filer, all bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, pl := range slices.Clone(p.mu.held) {
		if pl.filer == f && (all || !pl.since.IsZero()) {
			p.free(pl)
		}
	}
}

// press is called for a waiter that has waited for fileWait. If its peer has
// nothing, the slowest of the lanes that keep buffers for less than fileRate is
// dropped.
func (p *places) press(w *waiter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w.peer.held > 0 || len(p.mu.held) < allFiles {
		return
	}
	now := p.now()
	var worst *place
	least := float64(fileRate)
	for _, pl := range p.mu.held {
		if pl.since.IsZero() || now.Sub(pl.since) < fileWait || pl.filer.given.Load() {
			continue
		}
		if r := float64(pl.filer.moved(p.in)-pl.moved) / now.Sub(pl.since).Seconds(); r < least {
			worst, least = pl, r
		}
	}
	if worst == nil {
		return
	}
	worst.filer.given.Store(true)
	what := "took no more of what it read from files than"
	if p.in {
		what = "sent no more of what it writes to files than"
	}
	worst.filer.fail(errs.New(errs.Unresponsive, "serve", "the peer %s %.0f bytes a second for %v while others wait for its buffer; at least %d are asked for then", what, least, now.Sub(worst.since), fileRate))
}

// count returns how many buffers are in use.
func (p *places) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.mu.held)
}
