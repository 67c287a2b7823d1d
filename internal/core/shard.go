package core

import (
	"fmt"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/transport"
)

// Shard is the machine for a set of peers: their paths, the transfers on them,
// the slices in flight. Each method is one event; none may run at the same time
// as another.
type Shard struct {
	cfg       Config
	transfers []transfer
	slices    []slice
	paths     []path
	groups    []group
	runs      []run
	buckets   [buckets]uint32 // the first group of each chain

	freeTransfer, freeSlice, freePath, freeGroup, freeRun uint32
	sliceCount                                            int // slots taken
	live                                                  int // slices in flight

	timers   timers
	touched  []uint32 // paths that this event concerns
	starving []uint32 // paths that wait for a free slice slot
}

// NewShard returns a shard without paths.
func NewShard(cfg Config) *Shard {
	return &Shard{
		cfg: cfg.withDefaults(), transfers: make([]transfer, 1), slices: make([]slice, 1), paths: make([]path, 1), groups: make([]group, 1),
		runs: make([]run, 1),
	}
}

// Submit takes transfers in and sets ids[i] for each ts[i], or for its first; ids
// must be as long as ts. Each ends exactly once, possibly in this call.
func (s *Shard) Submit(now Time, ts []Transfer, ids []TransferID, out *Actions) {
	for i := range ts {
		if n := len(ts[i].Lengths); n > 0 {
			ids[i] = s.submitRun(now, &ts[i], out)
			continue
		}
		ti := s.take(&ts[i])
		ids[i] = s.transferID(ti)
		s.begin(now, ti, ts[i].Deadline, out)
	}
	s.flush(now, out)
}

// take makes the record of a transfer.
func (s *Shard) take(in *Transfer) uint32 {
	ti := s.newTransfer()
	t := &s.transfers[ti]
	gen := t.gen + 1
	*t = transfer{gen: gen}
	t.owner, t.op, t.class = in.Owner, in.Op, min(in.Class, classes-1)
	t.length, t.offset, t.group = in.Length, in.Offset, in.Group
	t.ladder, t.rungs = in.Ladder, min(in.Rungs, Rungs)
	t.flow = s.flowFor(t.class, t.length)
	return ti
}

// begin lets a new transfer wait for a path, or ends it.
func (s *Shard) begin(now Time, ti uint32, deadline Time, out *Actions) {
	if deadline != 0 {
		if deadline <= now {
			s.fail(ti, Attempt{Code: errs.Deadline}, out)
			return
		}
		s.setTimer(transferRef(ti), deadline)
	}
	if !s.place(now, ti, false) {
		s.fail(ti, Attempt{Code: errs.Unreachable, Err: errNoPath}, out)
	}
}

// Completed takes the completions of slices of this shard.
func (s *Shard) Completed(now Time, done []transport.Completion, out *Actions) {
	for i := 0; i < len(done); {
		if done[i].Tag&itemSlot != 0 {
			if n := s.completeRun(now, done[i:], out); n > 0 {
				i += n
				continue
			}
		}
		s.complete(now, &done[i], out)
		i++
	}
	s.flush(now, out)
}

func (s *Shard) complete(now Time, c *transport.Completion, out *Actions) {
	i := s.sliceOf(c.Tag)
	if i == 0 {
		out.fault("completion of tag %#x (%v), which is not in flight", uint64(c.Tag), c.Code)
		return
	}
	sl := &s.slices[i]
	ti := sl.transfer
	t, p := &s.transfers[ti], &s.paths[sl.path]
	s.release(now, t, p, i, c.Code == errs.OK)
	p.blocked = false
	if c.Code != errs.OK {
		pi, rail := sl.path, int(sl.rail)
		s.failSlice(now, i, c, out)
		s.silent(now, pi, Attempt{Path: s.paths[pi].id, Rail: rail, Code: c.Code, Err: c.Err}, out)
		return
	}
	p.served = true
	t.done += sl.length
	if t.code == errs.OK {
		t.endedOn = p.id
	}
	s.dropSlice(i)
	s.settle(ti, out)
}

// silent gives up path pi if its only rail was found unresponsive: what waits
// for it would only find out the same, one stall limit later.
func (s *Shard) silent(now Time, pi uint32, a Attempt, out *Actions) {
	if p := &s.paths[pi]; a.Code == errs.Unresponsive && p.state == Up && p.rails.Len() == 1 {
		s.losePath(now, pi, a, out)
	}
}

// release takes slice i, in flight until now, off its path and its transfer.
func (s *Shard) release(now Time, t *transfer, p *path, i uint32, served bool) {
	sl := &s.slices[i]
	s.unlink(t, i)
	p.rails.At(int(sl.rail)).Done(sl.length, 1, sl.kind, served, int64(now-sl.start))
	p.live--
	s.touch(sl.path)
}

// failSlice decides what becomes of slice i, which failed.
func (s *Shard) failSlice(now Time, i uint32, c *transport.Completion, out *Actions) {
	sl := &s.slices[i]
	ti := sl.transfer
	t, p := &s.transfers[ti], &s.paths[sl.path]
	a := Attempt{Path: p.id, Rail: int(sl.rail), Code: c.Code, Err: c.Err}
	if c.Code == errs.Closed && p.state == Draining && p.code != errs.OK {
		a.Code, a.Err = p.code, p.err // why we closed it says more than that we did
	}
	if kind := c.Code &^ 0xf; kind == errs.Unreachable || kind == errs.Checksum {
		p.rails.At(int(sl.rail)).Fail(int64(now))
	}
	t.inDoubt = t.inDoubt || c.InDoubt && t.op == transport.Write
	if t.code != errs.OK {
		s.dropSlice(i)
		s.settle(ti, out)
		return
	}
	v := ruleOf(c.Code).slice
	switch {
	case t.op == transport.Write && (c.InDoubt || !p.spec.Fences):
		v = final // the first try may still touch memory (promise 7)
	case c.Code == errs.Checksum:
		if sl.sums++; sl.sums > maxSums {
			v = next
		}
	case v == later:
		s.pause(sl.path, now+Time(s.cfg.RestMin))
	}
	try := sl.try
	if v == final {
		s.dropSlice(i)
		t.note(a)
		s.fail(ti, a, out)
		return
	}
	if sl.retry < 255 {
		sl.retry++
	}
	s.putBack(t, i, false)
	if try == t.try {
		s.setback(now, ti, v, a, out)
	} else if !s.place(now, ti, false) {
		s.fail(ti, a, out)
	}
}

// Cancel ends a transfer early with code: Canceled, Deadline or Closed. What is
// queued vanishes at once, what is posted is cancelled, and the transfer ends
// when all of it is quiet. An id that has ended is ignored.
func (s *Shard) Cancel(now Time, id TransferID, code errs.Code, out *Actions) {
	if ti := s.transferOf(id); ti != 0 {
		s.cancel(ti, code, out)
	}
	s.flush(now, out)
}

func (s *Shard) cancel(ti uint32, code errs.Code, out *Actions) {
	t := &s.transfers[ti]
	s.fail(ti, Attempt{Path: t.ladder[min(t.rung, Rungs-1)], Code: code}, out)
}

// Tick does what is due: deadlines, ends of rests.
func (s *Shard) Tick(now Time, out *Actions) {
	for len(s.timers.heap) > 0 && s.timers.heap[0].at <= now {
		ref := s.timers.heap[0].ref
		s.clearTimer(ref)
		switch {
		case ref&1 != 0:
			s.touch(ref >> 1)
		case s.transfers[ref>>1].run != 0:
			s.expire(s.transfers[ref>>1].run, out)
		default:
			s.cancel(ref>>1, errs.Deadline, out)
		}
	}
	s.flush(now, out)
}

// NextWake returns when Tick is due next, or Never. It can change with every event.
func (s *Shard) NextWake() Time {
	if len(s.timers.heap) == 0 {
		return Never
	}
	return s.timers.heap[0].at
}

func (a *Actions) fault(format string, args ...any) {
	if a.Fault == "" {
		a.Fault = fmt.Sprintf(format, args...)
	}
}

// cancel adds a tag to the run of its path.
func (a *Actions) cancel(id PathID, tag transport.Tag) {
	a.tags = append(a.tags, tag)
	if last := len(a.Cancels) - 1; last >= 0 && a.Cancels[last].Path == id {
		n := len(a.Cancels[last].Tags)
		a.Cancels[last].Tags = a.tags[len(a.tags)-n-1:]
		return
	}
	a.Cancels = append(a.Cancels, Cancel{Path: id, Tags: a.tags[len(a.tags)-1:]})
}
