package tcp

import (
	"context"
	"net"
	"time"

	"github.com/tideway-io/tideway/transport"
)

// Rails. A rail is a pair of network interfaces, one of each side, with lanes of
// its own. The first to answer makes the endpoint; the others open as traffic asks
// for them, and until one has been tried its slices travel on another. One whose
// lanes are lost refuses slices until it is open again, which is tried each second
// while anything is under way.

// plan decides which rails there are, and how many lanes each may have.
func (e *Endpoint) plan() {
	if e.t.env.Ways != nil {
		e.ways = e.t.env.Ways(e.peer)
	}
	e.rails = []transport.Rail{{Remote: e.peer.Addr}}
	if len(e.ways) > 0 {
		e.rails = e.rails[:0]
		for _, w := range e.ways {
			r := transport.Rail{Local: w.Interface, Remote: w.Remote}
			if w.Local.IsValid() {
				r.Local = w.Local.String() + " of " + w.Interface
			}
			e.rails = append(e.rails, r)
		}
	}
	e.bulk = min(max(e.t.env.Limits.Lanes, 1), maxLanes, maxSlots/len(e.rails)-2)
	e.per = e.bulk + 2
}

// dialRail connects over one rail.
func (e *Endpoint) dialRail(ctx context.Context, rail int) (net.Conn, error) {
	if e.ways == nil {
		return e.t.env.Dial(ctx, e.peer.Addr)
	}
	return e.t.env.DialWay(ctx, e.ways[rail])
}

// stagger is how long one rail is tried alone before the next one is tried too.
const stagger = 250 * time.Millisecond

// connect opens the first lane, on the first rail that answers.
func (e *Endpoint) connect(ctx context.Context) error {
	e.wg.Go(e.watch)
	results := make(chan error, len(e.rails))
	timer := time.NewTimer(stagger)
	defer timer.Stop()
	var failed error
	for started, ended := 0, 0; ended < len(e.rails); {
		if started < len(e.rails) {
			rail := started
			started++
			e.opening[rail*e.per].Store(true)
			e.wg.Go(func() { results <- e.openRail(ctx, rail) })
			timer.Reset(stagger)
		}
		select {
		case err := <-results:
			if ended++; err == nil {
				return nil
			}
			if failed == nil {
				failed = err
			}
		case <-timer.C:
		}
	}
	return failed
}

// openRail opens a rail's first lane. What it is called for goes on when another
// rail was quicker.
func (e *Endpoint) openRail(ctx context.Context, rail int) error {
	o, err := e.dial(ctx, rail*e.per)
	if err != nil {
		e.mu.Lock()
		e.restSlot(rail * e.per)
		e.mu.Unlock()
		return err
	}
	if len(e.rails) == 1 {
		e.rails[0].Local, e.rails[0].Remote = o.local, o.remote
	}
	return e.keep(o)
}

// Rails returns the rails: of the only one the connection's addresses.
func (e *Endpoint) Rails() []transport.Rail { return e.rails }

// standIn returns the lane that takes the slices of a rail with none: of another
// rail as long as this one was not tried, else -1.
func (e *Endpoint) standIn(table lanes, rail int, lost uint64) int {
	first := rail * e.per
	tried := lost>>first&(1<<e.per-1) != 0 || e.failed(rail)
	e.openLater(first)
	if tried {
		return -1
	}
	for k, o := range table {
		if o != nil && lost&(1<<k) == 0 {
			return k
		}
	}
	return -1
}

// any returns a lane for what may go on any rail, the small one of the first rail
// that has lanes if it can; -1 if there is none.
func (e *Endpoint) any(table lanes) int {
	for rail := range e.rails {
		first := rail * e.per
		for _, k := range []int{first + e.bulk, first, first + e.bulk + 1} {
			if table[k] != nil {
				return k
			}
		}
	}
	return -1
}

// failed reports whether the last that was heard of a rail is that it was lost, or
// could not be opened.
func (e *Endpoint) failed(rail int) bool { return e.broken.Load()&(1<<rail) != 0 }

// judgeRail notes what became of a rail: a lane of it opened, or one was lost or
// could not be opened. The caller holds mu, and has updated the table.
func (e *Endpoint) judgeRail(rail int, opened bool) {
	mask := uint64(1) << rail
	if opened {
		e.broken.And(^mask)
		return
	}
	for _, o := range (*e.table.Load())[rail*e.per:][:e.per] {
		if o != nil {
			return
		}
	}
	e.broken.Or(mask)
}

// askOthers asks the peer for a sign of life on the other rails, so that a silent
// rail is told from a silent peer.
func (e *Endpoint) askOthers(rail int, now time.Time) {
	asked := rail
	for k, o := range *e.table.Load() {
		if o != nil && k/e.per != rail && k/e.per != asked {
			asked = k / e.per
			e.ask(o, now)
		}
	}
}

// others reports whether the peer was heard since an instant, on another rail.
func (e *Endpoint) others(rail int, since time.Time) bool {
	for k, o := range *e.table.Load() {
		if o != nil && k/e.per != rail && o.sight.active.After(since) && !o.sight.asked {
			return true
		}
	}
	return false
}

// railStall is how long a lane may be silent while the peer is heard on another
// rail: then it is not the peer that is silent.
func (e *Endpoint) railStall() time.Duration {
	return max(e.t.env.Limits.StallTimeout/5, 3*e.tick())
}
