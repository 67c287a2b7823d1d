package core

import (
	"math/bits"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/core/rail"
	"github.com/tideway-io/tideway/transport"
)

// RunLen is the most transfers in one run.
const RunLen = 64

// run is transfers of one Submit that ask the same but for their lengths, each
// of which fits one slice. They wait as one, their lead; they are posted and
// completed many at a time, and their states are bits. That is all a run can do:
// one that fails, is refused, cancelled or dislodged becomes a transfer of its
// own, known by the same id, and the slice it has in flight keeps its tag. See
// docs/adr/0014-runs.md.
type run struct {
	gen     uint32 // odd while in use
	lead    uint32 // the transfer that waits for all; the next free run when free
	path    uint32 // where they were posted
	longest uint32
	owner   uint64 // of the first; they count up
	end     Time   // the deadline, 0: none

	waiting, flying, alone uint64 // which wait, are in flight, have become transfers
	start                  Time   // when those of fresh were posted
	fresh                  uint64
	bytes                  uint64         // that wait
	cell                   [RunLen]uint32 // the length, or the slot of the transfer it became
	rails                  [RunLen]uint8
}

const (
	runShift = 6 // 1<<runShift is RunLen
	// itemSlot, in the slot of a tag, and itemID, in an id, say that the rest is a
	// run and a place in it. Runs beyond what fits a tag are taken apart at once.
	itemSlot = 1 << (slotBits - 1)
	itemID   = 1 << 31
	maxRuns  = itemSlot >> runShift
)

// submitRun takes a run in and returns the id of its first transfer.
func (s *Shard) submitRun(now Time, in *Transfer, out *Actions) TransferID {
	ri, lead := s.newRun(), s.take(in)
	t, r := &s.transfers[lead], &s.runs[ri]
	t.run = ri
	r.lead, r.owner, r.end = lead, in.Owner, in.Deadline
	shortest := uint32(in.Lengths[0])
	for i, n := range in.Lengths {
		r.cell[i] = n
		shortest, r.longest = min(shortest, n), max(r.longest, n)
		r.bytes += uint64(n)
	}
	r.waiting = 1<<len(in.Lengths) - 1
	t.flow = flowOf(t.class, rail.Small)
	id := TransferID(r.gen)<<32 | itemID | TransferID(ri)<<runShift
	whole := shortest > 0 && uint64(r.longest) <= s.cfg.SmallBytes && ri < maxRuns && (in.Deadline == 0 || in.Deadline > now)
	if whole && s.place(now, lead, false) {
		if in.Deadline != 0 {
			s.setTimer(transferRef(lead), in.Deadline)
		}
		return id
	}
	for m := r.waiting; m != 0; m &= m - 1 {
		s.begin(now, s.single(ri, bits.TrailingZeros64(m)), in.Deadline, out)
	}
	return id
}

func (s *Shard) newRun() uint32 {
	i := s.freeRun
	if i != 0 {
		s.freeRun = s.runs[i].lead
	} else {
		s.runs = append(s.runs, run{})
		i = uint32(len(s.runs) - 1)
	}
	r := &s.runs[i]
	r.gen++
	r.longest, r.fresh, r.start, r.bytes = 0, 0, 0, 0
	clear(r.rails[:])
	return i
}

// itemOf returns the run and the place in it that a tag means, or 0 when it is
// not the tag of one in flight.
func (s *Shard) itemOf(t transport.Tag) (ri uint32, i int) {
	slot := uint32(t & (itemSlot - 1))
	ri, i = slot>>runShift, int(slot%RunLen)
	if int(ri) >= len(s.runs) || s.itemTag(slot) != t || s.runs[ri].flying>>i&1 == 0 {
		return 0, 0
	}
	return ri, i
}

// itemTag returns the tag of an item in flight: its run and place, as a number.
func (s *Shard) itemTag(item uint32) transport.Tag {
	gen := transport.Tag(s.runs[item>>runShift].gen) & (1<<genBits - 1)
	return transport.Tag(s.cfg.Shard)<<(slotBits+genBits) | gen<<slotBits | itemSlot | transport.Tag(item)
}

// single makes item i of a run, which waits or is in flight, a transfer of its
// own and returns its slot. One that waited is in no queue then.
func (s *Shard) single(ri uint32, i int) uint32 {
	ti := s.newTransfer()
	t, r := &s.transfers[ti], &s.runs[ri]
	lead := &s.transfers[r.lead]
	item, bit, n := ri<<runShift|uint32(i), uint64(1)<<i, uint64(r.cell[i])
	*t = transfer{
		gen: t.gen + 1, owner: r.owner + uint64(i), op: lead.op, class: lead.class, length: n, group: lead.group,
		ladder: lead.ladder, rungs: lead.rungs, rung: lead.rung, item: item + 1, flow: s.flowFor(lead.class, n),
	}
	r.cell[i] = ti
	r.alone |= bit
	if r.end != 0 {
		s.setTimer(transferRef(ti), r.end)
	}
	if r.flying&bit != 0 {
		s.sliceCount, s.live = s.sliceCount-1, s.live-1 // it is counted already
		si := s.takeSlice()
		sl := &s.slices[si]
		sl.offset, sl.length, sl.start, sl.transfer, sl.path = 0, n, r.start, ti, r.path
		sl.try, sl.rail, sl.retry, sl.sums, sl.kind, sl.item = 0, r.rails[i], 0, 0, rail.Small, item+1
		t.issued = n
		s.link(t, si)
		return ti
	}
	r.waiting &^= bit
	r.bytes -= n
	if lead.queued {
		s.paths[lead.queuedOn].queued--
		if r.waiting == 0 {
			s.dequeue(r.lead)
		}
	}
	return ti
}

// scatter lets those of a run that wait do so as transfers, in its place.
func (s *Shard) scatter(ri uint32) {
	pi := s.transfers[s.runs[ri].lead].queuedOn
	for s.runs[ri].waiting != 0 {
		s.enqueue(pi, s.single(ri, bits.Len64(s.runs[ri].waiting)-1), true)
	}
}

// expire ends what is left of a run at its deadline.
func (s *Shard) expire(ri uint32, out *Actions) {
	r := &s.runs[ri]
	for m := (r.waiting | r.flying) &^ r.alone; m != 0; m &= m - 1 {
		s.cancel(s.single(ri, bits.TrailingZeros64(m)), errs.Deadline, out)
	}
}

// quit says that nothing is left of an item; with the last one its run is free.
func (s *Shard) quit(item uint32) {
	s.runs[item>>runShift].alone &^= 1 << (item % RunLen)
	s.settleRun(item >> runShift)
}

func (s *Shard) settleRun(ri uint32) {
	r := &s.runs[ri]
	if r.waiting|r.flying|r.alone != 0 {
		return
	}
	lead := &s.transfers[r.lead]
	if lead.timer != 0 {
		s.clearTimer(transferRef(r.lead))
	}
	lead.gen++
	lead.qnext, s.freeTransfer = s.freeTransfer, r.lead
	r.gen++
	r.lead, s.freeRun = s.freeRun, ri
}

// issueRun posts of a run, whose turn it is, what there is room for until it is
// the turn of another group or flow: all of it in one step where nobody else waits.
func (s *Shard) issueRun(now Time, pi, ti uint32, f uint8, room rail.Kind, out *Actions) bool {
	p, t := &s.paths[pi], &s.transfers[ti]
	r, fl, g := &s.runs[t.run], &p.flows[f], &s.groups[t.queuedIn]
	if uint64(r.longest) > p.longestSmall {
		s.scatter(t.run)
		return true
	}
	if r.start != now {
		r.start, r.fresh = now, 0
	}
	before, rival, shared := r.waiting, p.rival(f, room), fl.head != fl.tail
	if rival < 0 && !shared {
		s.postAll(now, p, r, fl, g, room)
	}
	for r.waiting != 0 {
		n := s.postNext(now, pi, r, room)
		if n == 0 {
			break
		}
		p.vnow = fl.vtime
		fl.charge(g, n+frameBytes, f)
		if shared && g.served >= s.cfg.SmallBytes || rival >= 0 && int64(fl.vtime-p.flows[rival].vtime) >= 0 {
			break
		}
	}
	return s.issued(pi, ti, before&^r.waiting, out)
}

// postAll posts what waits of a run if its path has one rail, with room for all.
func (s *Shard) postAll(now Time, p *path, r *run, fl *flow, g *group, room rail.Kind) {
	n, only := bits.OnesCount64(r.waiting), p.rails.Only()
	if only == nil || !only.Room(r.bytes, n, room) || s.sliceCount+n > s.cfg.MaxSlices {
		return
	}
	only.Start(int64(now), r.bytes, n, rail.Small)
	last, f := uint64(r.cell[bits.Len64(r.waiting)-1]), s.transfers[r.lead].flow
	fl.charge(g, r.bytes-last+uint64(n-1)*frameBytes, f)
	p.vnow = fl.vtime
	fl.charge(g, last+frameBytes, f)
	s.live += n
	s.sliceCount += n
	r.flying |= r.waiting
	r.waiting, r.bytes = 0, 0
}

// postNext posts the next of a run if there is room, and returns its length.
func (s *Shard) postNext(now Time, pi uint32, r *run, room rail.Kind) uint64 {
	i := bits.TrailingZeros64(r.waiting)
	n, rails := uint64(r.cell[i]), &s.paths[pi].rails
	k := rails.Pick(int64(now), n, room)
	if k < 0 || !s.slot(pi) {
		return 0
	}
	rails.At(k).Start(int64(now), n, 1, rail.Small)
	r.waiting &= r.waiting - 1
	r.flying |= 1 << i
	r.rails[i] = uint8(k)
	r.bytes -= n
	s.live++
	s.sliceCount++
	return n
}

// charge notes that a flow and the group in front of it were served.
func (fl *flow) charge(g *group, cost uint64, f uint8) {
	fl.vtime += cost << costShift[f/2]
	g.served += cost
}

// issued hands over which of the run led by ti were posted, and sees whose turn
// is next.
func (s *Shard) issued(pi, ti uint32, which uint64, out *Actions) bool {
	if which == 0 {
		return false
	}
	p, t := &s.paths[pi], &s.transfers[ti]
	r, n := &s.runs[t.run], bits.OnesCount64(which)
	r.fresh |= which
	r.path = pi
	p.live += n
	p.queued -= n
	for which != 0 {
		i := bits.TrailingZeros64(which)
		end := i + bits.TrailingZeros64(^(which >> i))
		for at := i + 1; at < end && p.rails.Len() > 1; at++ {
			if r.rails[at] != r.rails[i] {
				end = at
			}
		}
		o := grow(&out.slices)
		*o = Slice{
			Tag: s.itemTag(t.run<<runShift | uint32(i)), Owner: r.owner + uint64(i), Op: t.op, Class: t.class, Rail: r.rails[i], Run: uint8(end - i),
		}
		which = which >> end << end
	}
	fl, gi := &p.flows[t.flow], t.queuedIn
	if r.waiting == 0 {
		only := s.groups[gi].head == s.groups[gi].tail
		if s.dequeue(ti); only {
			return true
		}
	}
	s.rotate(fl, gi)
	return true
}

// rival returns the flow beside f that would be served next, or -1.
func (p *path) rival(f uint8, room rail.Kind) int {
	mask := uint8(1<<flows - 1)
	if room == rail.Reserve {
		mask = smallFlows
	}
	return p.due(mask &^ (1 << f))
}

// completeRun takes the completions at the front of done that are of one run and
// good, and returns how many those are.
func (s *Shard) completeRun(now Time, done []transport.Completion, out *Actions) (n int) {
	ri, first := s.itemOf(done[0].Tag)
	if ri == 0 {
		return 0
	}
	r := &s.runs[ri]
	p, base := &s.paths[r.path], done[0].Tag-transport.Tag(first)
	var e *End
	var on tally
	for next := -1; n < len(done); n++ {
		i := int(min(done[n].Tag-base, RunLen))
		if i == RunLen || (r.flying&^r.alone)>>i&1 == 0 || done[n].Code != errs.OK {
			break
		}
		if i != next {
			e = grow(&out.Ends)
			e.Owner, e.Path = r.owner+uint64(i), p.id
		}
		if r.rails[i] != on.rail {
			on.done(p)
			on = tally{rail: r.rails[i]}
		}
		next = i + 1
		length := uint64(r.cell[i])
		e.Run++
		e.Bytes += length
		on.bytes += length
		on.slices++
		if r.fresh>>i&1 != 0 {
			on.took = int64(now - r.start)
		}
		r.flying &^= 1 << i
	}
	if n == 0 {
		return 0
	}
	on.done(p)
	p.live -= n
	s.live -= n
	s.sliceCount -= n
	p.blocked, p.served = false, true
	s.touch(r.path)
	s.settleRun(ri)
	return n
}

// tally is what of a run has completed on one rail.
type tally struct {
	rail   uint8
	slices int
	bytes  uint64
	took   int64
}

func (t *tally) done(p *path) {
	if t.slices > 0 {
		p.rails.At(int(t.rail)).Done(t.bytes, t.slices, rail.Small, true, t.took)
	}
}
