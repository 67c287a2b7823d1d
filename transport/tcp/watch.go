package tcp

import (
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/transport"
)

// Liveness of outbound lanes. An endpoint has one timer. While something is
// outstanding it looks at its lanes every StallTimeout/20; what was received is
// counted, not timed, so the data path reads no clock and a look errs by up to
// two ticks, towards earlier. A lane with something outstanding is asked
// (Ping) when it was silent for a quarter of StallTimeout, at most a second, and
// ended as unresponsive when it was silent for StallTimeout, less what a fence
// may then take. With nothing
// outstanding the endpoint looks once in StallTimeout, at most 10 s, and pings
// lanes that were silent: so a dead idle peer is noticed, and the target sees
// that this side lives.
const (
	minTick      = 5 * time.Millisecond
	maxTick      = 500 * time.Millisecond
	maxAsk       = time.Second
	maxKeepalive = 10 * time.Second
)

// A slot whose lane was lost or could not be opened rests before the next try,
// twice as long after each failure. The first one of a rail among several does not
// rest longer: it is tried again as long as the peer is there.
const (
	minRest = time.Second
	maxRest = 30 * time.Second
)

// sight is what a watcher remembers of a lane between looks.
type sight struct {
	heard   uint64
	out     uint64
	since   time.Time // silent since then
	active  time.Time // last heard or asked, as far as looks can tell
	waiting bool      // something was outstanding
	asked   bool      // a ping was sent since
}

// rest is when a slot may be opened again.
type rest struct {
	until time.Time
	next  time.Duration
}

func (e *Endpoint) tick() time.Duration {
	return min(max(e.t.env.Limits.StallTimeout/20, minTick), maxTick)
}

func (e *Endpoint) keepalive() time.Duration {
	return min(e.t.env.Limits.StallTimeout, maxKeepalive)
}

// watch looks at the lanes until the endpoint is closed.
func (e *Endpoint) watch() {
	e.due = e.looked.Add(e.keepalive())
	timer := time.NewTimer(e.keepalive())
	defer timer.Stop()
	for {
		select {
		case <-e.ctx.Done():
			return
		case <-e.busy:
		case <-timer.C:
		}
		now := e.t.env.Now()
		e.late(now)
		e.watched.Store(e.look(now))
		next := e.keepalive()
		// Whoever posted before the store relied on the old value: look again.
		if e.watched.Load() || e.waiting() {
			e.watched.Store(true)
			next = e.tick()
		}
		timer.Reset(next)
		e.due = now.Add(next)
	}
}

// late makes up for a look that comes much too late: this process was stopped or
// starved, and what the peers sent meanwhile has not been read yet either.
func (e *Endpoint) late(now time.Time) {
	late := now.Sub(e.due)
	if late <= e.tick() {
		return
	}
	for _, o := range *e.table.Load() {
		if o != nil {
			o.sight.since = o.sight.since.Add(late)
		}
	}
	e.looked = e.looked.Add(late)
}

// attend has the watcher look often. It costs a load when it already does.
func (e *Endpoint) attend() {
	if !e.watched.Load() && e.watched.CompareAndSwap(false, true) {
		select {
		case e.busy <- struct{}{}:
		default:
		}
	}
}

func (e *Endpoint) waiting() bool {
	for _, o := range *e.table.Load() {
		if o != nil && o.init.waiting() {
			return true
		}
	}
	return false
}

// look examines every lane and reports whether anything is outstanding.
func (e *Endpoint) look(now time.Time) (waiting bool) {
	for _, o := range *e.table.Load() {
		if o == nil {
			continue
		}
		s, heard := &o.sight, o.lane.heard.Load()
		was := *s
		s.waiting, s.heard = o.init.waiting(), heard
		switch {
		case heard != was.heard || o.lane.delivering.Load():
			s.since, s.active, s.asked = e.looked, now, false
			e.received.Store(now.UnixNano())
		case !was.waiting:
			s.since, s.asked = now, false
		}
		if !s.waiting && now.Sub(s.active) >= e.keepalive() {
			s.waiting = true
			e.ask(o, now)
		}
		if s.waiting {
			e.judge(o, now)
			waiting = true
		}
	}
	e.wakeSlots(now)
	e.looked = now
	return waiting
}

// ask sends a ping.
func (e *Endpoint) ask(o *outbound, now time.Time) {
	o.sight.asked, o.sight.active = true, now
	o.init.ping()
	o.lane.post()
}

// judge asks a silent lane for a sign of life, or ends it.
func (e *Endpoint) judge(o *outbound, now time.Time) {
	limit, silent := e.t.env.Limits.StallTimeout, now.Sub(o.sight.since)
	switch {
	case silent >= limit-e.tick()-e.fenceWait(errs.Unresponsive):
		o.lane.fail(errs.New(errs.Unresponsive, "wait for the peer", "connected, but silent for %v (StallTimeout)", limit))
	case len(e.rails) > 1 && silent >= e.railStall() && o.sight.asked && e.others(o.slot/e.per, o.sight.active):
		o.lane.fail(errs.New(errs.LaneLost, "wait for the peer", "silent for %v on rail %s to %s, and heard on another one", silent.Round(time.Millisecond), e.rails[o.slot/e.per].Local, e.rails[o.slot/e.per].Remote))
	case silent >= min(limit/4, maxAsk) && !o.sight.asked:
		e.ask(o, now)
		e.askOthers(o.slot/e.per, now)
	}
}

// wakeSlots ends the rest of slots whose time has come. A rail that was lost is
// opened again.
func (e *Endpoint) wakeSlots(now time.Time) {
	var again uint64
	e.mu.Lock()
	for slot := range e.mu.rests {
		if r := &e.mu.rests[slot]; !r.until.IsZero() && !now.Before(r.until) {
			r.until = time.Time{}
			e.opening[slot].Store(false)
			if rail := slot / e.per; e.failed(rail) {
				again |= 1 << rail
			}
		}
	}
	e.mu.Unlock()
	for rail := range e.rails {
		if again&(1<<rail) != 0 && len(e.rails) > 1 {
			e.openLater(rail * e.per)
		}
	}
}

// restSlot keeps a slot closed for a while. The caller holds mu.
func (e *Endpoint) restSlot(slot int) {
	r := &e.mu.rests[slot]
	if r.next = min(max(2*r.next, minRest), maxRest); len(e.rails) > 1 && slot%e.per == 0 {
		r.next = minRest
	}
	r.until = e.t.env.Now().Add(r.next)
	e.judgeRail(slot/e.per, false)
}

// waiting reports whether the peer owes this lane anything.
func (i *initiator) waiting() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return !i.mu.dead && (i.mu.slots > 0 || i.mu.pinged > i.mu.ponged)
}

// ping plans a Ping and returns its number.
func (i *initiator) ping() uint64 {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.mu.pinged++
	i.mu.ping = i.mu.pinged
	return i.mu.pinged
}

// The watch over inbound lanes, one for the transport. A lane from which nothing
// came for three times StallTimeout, at least 30 s, is dropped: initiators send
// something every 10 s. After StallTimeout it is dropped if a frame buffer for a
// file waits for it, which others may need, or if it has taken nothing of what
// waits for it. A lane whose receiver waits for a file sends a sign of life
// instead of answering pings.
const minIdle = 30 * time.Second

func (t *Transport) idleLimit() time.Duration { return max(3*t.env.Limits.StallTimeout, minIdle) }

// watchInbound looks at the inbound lanes until the transport is closed.
func (t *Transport) watchInbound() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	due := t.env.Now().Add(time.Hour)
	for {
		select {
		case <-t.closing:
			return
		case <-t.look:
		case <-timer.C:
		}
		now := t.env.Now()
		next := t.lookInbound(now, max(0, now.Sub(due)))
		timer.Reset(next)
		due = now.Add(next)
	}
}

// lookInbound examines every inbound lane and returns when to look again. A look
// that is late because this process was stopped blames nobody for that time.
func (t *Transport) lookInbound(now time.Time, late time.Duration) time.Duration {
	stall := t.env.Limits.StallTimeout
	next := time.Hour
	var beat []*inbound
	t.in.Lock()
	for _, in := range t.in.lanes {
		next = min(next, t.idleLimit()/4)
		s, heard, out := &in.sight, in.lane.heard.Load(), in.lane.out.Load()
		blocked := in.lane.blocked.Load()
		if heard != s.heard || s.since.IsZero() {
			s.since, late = now, 0
		}
		s.since, in.stuck = s.since.Add(late), in.stuck.Add(late)
		if out != s.out || !s.waiting || !blocked {
			in.stuck = now
		}
		s.heard, s.out, s.waiting = heard, out, blocked
		busy := in.target.busy.Load()
		if busy || blocked || in.target.partial.Load() {
			next = min(next, max(stall/8, minTick))
		}
		switch {
		case busy:
			s.since = now
			beat = append(beat, in)
		case now.Sub(s.since) >= t.idleLimit(), in.target.partial.Load() && now.Sub(s.since) >= stall:
			in.lane.fail(errs.New(errs.Unresponsive, "serve", "nothing came for %v", now.Sub(s.since)))
		case now.Sub(in.stuck) >= stall:
			in.lane.fail(errs.New(errs.Unresponsive, "serve", "the peer took no answer for %v (StallTimeout)", stall))
		}
	}
	t.in.Unlock()
	for _, in := range beat {
		in.target.beat()
		in.lane.post()
	}
	return next
}

// Observe describes the rails.
func (e *Endpoint) Observe() []transport.RailState {
	out := make([]transport.RailState, len(e.rails))
	e.mu.Lock()
	copy(out, e.mu.past)
	e.mu.Unlock()
	at := e.received.Load()
	for k := range out {
		s := &out[k]
		if s.Rail = e.rails[k]; at != 0 {
			s.LastReceive = time.Unix(0, at)
		}
		for _, o := range (*e.table.Load())[k*e.per:][:e.per] {
			if o != nil {
				s.Lanes++
				s.InFlight += o.init.load.Load()
				s.BytesIn += o.lane.in.Load()
				s.BytesOut += o.lane.out.Load()
				s.Checksums += o.init.mismatches()
			}
		}
	}
	return out
}
