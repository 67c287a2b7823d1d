package core

import (
	"errors"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/core/rail"
	"github.com/tideway-io/tideway/transport"
)

var (
	errNoPath     = errors.New("every path of the transfer was removed before it was scheduled")
	errNeverReady = errors.New("the transport takes no slices although none is outstanding")
	errRails      = errors.New("the transport connected with no rail, or with more than 256")
)

// PathState is what a path is doing.
type PathState uint8

// The states of a path.
const (
	Idle       PathState = iota // not connected, nothing asked
	Connecting                  // an attempt is under way
	Up                          // has an endpoint
	Draining                    // its endpoint is closing with slices outstanding
	Resting                     // waits after a failure before the next attempt

	vacant // the slot of no path
)

// String returns the word used in snapshots.
func (p PathState) String() string {
	return [...]string{"idle", "connecting", "up", "draining", "resting"}[min(p, Resting)]
}

// AddPath adds a path that is not connected; it is connected when the first
// transfer needs it. It returns 0, which names no path, when there are MaxPaths.
func (s *Shard) AddPath(spec PathSpec) PathID {
	pi := s.freePath
	if pi != 0 {
		s.freePath = s.paths[pi].next
	} else {
		if len(s.paths) > s.cfg.MaxPaths {
			return 0
		}
		s.paths = append(s.paths, path{})
		pi = uint32(len(s.paths) - 1)
	}
	p := &s.paths[pi]
	gen := p.id>>pathSlotBits + 1
	*p = path{id: gen<<pathSlotBits | PathID(pi), spec: spec, rails: p.rails}
	if p.id>>pathSlotBits == 0 { // wrapped: 0 is kept for no path
		p.id |= 1 << pathSlotBits
	}
	p.rails.Clear()
	return p.id
}

// RemovePath forgets a path: its transfers fall down their ladders or end with
// code and err, its endpoint is closed. Later events for it are ignored.
func (s *Shard) RemovePath(now Time, id PathID, code errs.Code, err error, out *Actions) {
	pi := s.pathOf(id)
	if pi == 0 {
		return
	}
	p := &s.paths[pi]
	p.gone = true
	p.code, p.err = code, err
	if p.state == Up {
		out.Close = append(out.Close, id)
	}
	p.state = Draining
	s.clearTimer(pathRef(pi))
	s.touch(pi)
	s.dislodge(now, pi, next, Attempt{Path: id, Rail: -1, Code: code, Err: err}, out)
	s.flush(now, out)
}

// Connected says that the path has an endpoint with these rails, at most 256.
// The endpoint of a path that did not ask, or is gone, is asked to be closed.
func (s *Shard) Connected(now Time, id PathID, rails []RailSpec, out *Actions) {
	pi := s.pathOf(id)
	if pi == 0 || s.paths[pi].state != Connecting {
		out.Close = append(out.Close, id)
		return
	}
	if len(rails) == 0 || len(rails) > 256 {
		s.losePath(now, pi, Attempt{Path: id, Rail: -1, Code: errs.Internal, Err: errRails}, out)
		s.flush(now, out)
		return
	}
	p := &s.paths[pi]
	p.state, p.code, p.err = Up, errs.OK, nil
	p.blocked, p.hold, p.refusals = false, 0, 0
	p.rails.Clear()
	for _, r := range rails {
		window, most := s.cfg.Window, s.cfg.MaxWindow
		if r.Window > 0 {
			window, most = r.Window, r.Window
		}
		p.rails.Add(rail.Config{
			Window: window, MaxWindow: most, Slices: s.cfg.RailSlices, Small: s.cfg.SmallBytes,
			Penalty: max(r.Penalty, 1), HalfLife: int64(s.cfg.HalfLife), Backoff: s.cfg.rests(true, 0),
		})
	}
	limit := min(or(p.spec.MaxSlice, s.cfg.SliceBytes), s.cfg.SliceBytes)
	p.longestBulk, p.longestSmall = min(limit, p.rails.Longest(rail.Bulk)), min(limit, p.rails.Longest(rail.Small))
	s.touch(pi)
	s.flush(now, out)
}

// ConnectFailed says that the attempt asked for with Connect failed.
func (s *Shard) ConnectFailed(now Time, id PathID, code errs.Code, err error, out *Actions) {
	pi := s.pathOf(id)
	if pi == 0 || s.paths[pi].state != Connecting {
		return
	}
	s.downPath(now, pi, Attempt{Path: id, Rail: -1, Code: code, Err: err}, ruleOf(code).connect, out)
	s.flush(now, out)
}

// PathDown says that the path's endpoint is of no use any more, although no
// slice has said so. It is ignored for a path that is not connected.
func (s *Shard) PathDown(now Time, id PathID, code errs.Code, err error, out *Actions) {
	pi := s.pathOf(id)
	if pi == 0 || s.paths[pi].state != Up {
		return
	}
	s.losePath(now, pi, Attempt{Path: id, Rail: -1, Code: code, Err: err}, out)
	s.flush(now, out)
}

// losePath gives up the endpoint of a path that was up.
func (s *Shard) losePath(now Time, pi uint32, a Attempt, out *Actions) {
	out.Close = append(out.Close, a.Path)
	s.downPath(now, pi, a, ruleOf(a.Code).slice, out)
}

// downPath notes that the path has no endpoint, or soon none, and gives each
// transfer that waits for it the verdict.
func (s *Shard) downPath(now Time, pi uint32, a Attempt, v verdict, out *Actions) {
	p := &s.paths[pi]
	p.state, p.code, p.err = Draining, a.Code, a.Err
	p.rest.Fail(int64(now), s.cfg.rests(ruleOf(a.Code).grows, 1))
	s.clearTimer(pathRef(pi))
	s.touch(pi)
	s.dislodge(now, pi, v, a, out)
}

// dislodge gives each transfer that waits for path pi the verdict.
func (s *Shard) dislodge(now Time, pi uint32, v verdict, a Attempt, out *Actions) {
	for f := range s.paths[pi].flows {
		for ti := s.empty(pi, f); ti != 0; {
			next := s.transfers[ti].qnext
			s.setback(now, ti, v, a, out)
			ti = next
		}
	}
}

// empty takes all transfers out of a flow and returns them as a list, so that
// those that are put back keep their order.
func (s *Shard) empty(pi uint32, f int) (first uint32) {
	flow, last := &s.paths[pi].flows[f], uint32(0)
	for flow.n > 0 {
		ti := s.groups[flow.head].head
		if ri := s.transfers[ti].run; ri != 0 {
			s.scatter(ri)
			continue
		}
		s.dequeue(ti)
		if s.transfers[ti].qnext = 0; last == 0 {
			first = ti
		} else {
			s.transfers[last].qnext = ti
		}
		last = ti
	}
	return first
}

// Refused gives back the slices of a Post that the endpoint did not take, by tag,
// with the reason for the first of them.
func (s *Shard) Refused(now Time, id PathID, tags []transport.Tag, code errs.Code, err error, out *Actions) {
	for i := len(tags) - 1; i >= 0; i-- { // backwards, so that they wait in their old order
		si := s.sliceOf(tags[i])
		if si == 0 || s.paths[s.slices[si].path].id != id {
			out.fault("refusal of tag %#x, which is not in flight on path %#x", uint64(tags[i]), uint32(id))
			continue
		}
		a := Attempt{Path: id, Rail: int(s.slices[si].rail), Code: code, Err: err}
		pi, ti := s.slices[si].path, s.slices[si].transfer
		waits := s.takeBack(now, si, a, out)
		if i == 0 {
			s.refusal(now, pi, ti, waits, a, out)
		}
	}
	s.flush(now, out)
}

// takeBack undoes the posting of slice i, which was not started. It reports
// whether its range waits again; else its transfer had ended already, or has no
// path left.
func (s *Shard) takeBack(now Time, i uint32, a Attempt, out *Actions) bool {
	sl := &s.slices[i]
	ti := sl.transfer
	t := &s.transfers[ti]
	s.release(now, t, &s.paths[sl.path], i, false)
	if t.code != errs.OK {
		s.dropSlice(i)
		s.settle(ti, out)
		return false
	}
	s.putBack(t, i, true)
	if s.place(now, ti, true) {
		return true
	}
	s.fail(ti, a, out)
	return false
}

// refusal draws the conclusion from a refused slice of transfer ti.
func (s *Shard) refusal(now Time, pi, ti uint32, waits bool, a Attempt, out *Actions) {
	p, r := &s.paths[pi], ruleOf(a.Code)
	switch {
	case r.slice == later:
		p.blocked = true
	case r.scope == pathToo:
		if p.state == Up && !p.otherRail(now, a) {
			s.losePath(now, pi, a, out)
		}
	case waits:
		s.setback(now, ti, r.slice, a, out)
	}
}

// otherRail rests the rail that refused a slice because it is lost, and reports
// whether others are left.
func (p *path) otherRail(now Time, a Attempt) bool {
	if a.Code != errs.LaneLost || p.rails.Len() == 1 {
		return false
	}
	p.rails.At(a.Rail).Fail(int64(now))
	return p.rails.Trusted(int64(now))
}

func (s *Shard) touch(pi uint32) {
	if p := &s.paths[pi]; !p.touched {
		p.touched = true
		s.touched = append(s.touched, pi)
	}
}

// flush lets every path that the event concerned go on.
func (s *Shard) flush(now Time, out *Actions) {
	if len(s.starving) > 0 && !s.full() {
		for _, pi := range s.starving {
			s.paths[pi].starved = false
			s.touch(pi)
		}
		s.starving = s.starving[:0]
	}
	for i := 0; i < len(s.touched); i++ { // advance may touch more
		pi := s.touched[i]
		s.paths[pi].touched = false
		s.advance(now, pi, out)
	}
	s.touched = s.touched[:0]
}

// advance does what path pi can do now.
func (s *Shard) advance(now Time, pi uint32, out *Actions) {
	p := &s.paths[pi]
	switch p.state {
	case Draining, Resting:
		if p.live > 0 {
			return
		}
		if p.gone {
			s.vacate(pi)
			return
		}
		if p.rest.Resting(int64(now)) {
			p.state = Resting
			s.setTimer(pathRef(pi), Time(p.rest.Until()))
			return
		}
		p.state = Idle // a timer that is left over does nothing
		fallthrough
	case Idle:
		if p.queued > 0 {
			p.state = Connecting
			out.Connect = append(out.Connect, p.id)
		}
	case Up:
		s.work(now, pi, out)
	}
}

// vacate frees the slot of a path that is gone and quiet, once: one that waits
// for a slice slot is still listed there, and comes by again when it has had it.
func (s *Shard) vacate(pi uint32) {
	if p := &s.paths[pi]; !p.starved && p.state != vacant {
		p.state = vacant
		p.next, s.freePath = s.freePath, pi
	}
}

// work measures a path that is up and posts what it has room for.
func (s *Shard) work(now Time, pi uint32, out *Actions) {
	p := &s.paths[pi]
	p.rails.Settle(int64(now))
	if p.served {
		p.served, p.refusals = false, 0
		p.rest.OK(int64(now))
	}
	if p.blocked && p.live == 0 { // no completion will say when
		p.blocked = false
		if p.refusals++; p.refusals > maxRefusals {
			s.losePath(now, pi, Attempt{Path: p.id, Rail: -1, Code: errs.Overloaded, Err: errNeverReady}, out)
			return
		}
		s.pause(pi, now+min(pauseAfterRefusal<<(p.refusals-1), Time(s.cfg.RestMax)))
	}
	if !p.blocked && now >= p.hold && p.backlog != 0 {
		s.pump(now, pi, out)
	}
}

// pause holds posts to path pi back until an instant.
func (s *Shard) pause(pi uint32, until Time) {
	p := &s.paths[pi]
	if p.state == Up && until > p.hold {
		p.hold = until
		s.setTimer(pathRef(pi), until)
	}
}

// PathInfo is a path at one instant.
type PathInfo struct {
	State    PathState
	Until    Time      // when Resting: the end of the rest
	Code     errs.Code // the last failure, OK if none since it was last connected
	Err      error
	Queued   int // transfers that wait for it
	InFlight int // slices
	Rails    []RailInfo
}

// RailInfo is a rail at one instant.
type RailInfo struct {
	InFlight       uint64 // bytes
	Slices         int
	Window         uint64  // bytes in flight at most
	BytesPerSecond float64 // measured; 0: not yet
	Resting        bool
}

// Path fills info with the path's state, reusing info.Rails, and reports
// whether the path exists.
func (s *Shard) Path(now Time, id PathID, info *PathInfo) bool {
	pi := s.pathOf(id)
	if pi == 0 {
		return false
	}
	p := &s.paths[pi]
	*info = PathInfo{State: p.state, Code: p.code, Err: p.err, Queued: p.queued, InFlight: p.live, Rails: info.Rails[:0]}
	if p.state == Resting {
		info.Until = Time(p.rest.Until())
	}
	for i := range p.rails.Len() {
		r := p.rails.At(i)
		bytes, n := r.InFlight()
		info.Rails = append(info.Rails, RailInfo{
			InFlight: bytes, Slices: n, Window: r.Window(), BytesPerSecond: r.BytesPerSecond(), Resting: r.Resting(int64(now)),
		})
	}
	return true
}
