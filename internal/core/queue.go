package core

import (
	"math/bits"

	"github.com/tideway-io/tideway/internal/core/rail"
	"github.com/tideway-io/tideway/internal/core/slicer"
	"github.com/tideway-io/tideway/transport"
)

// A path has a flow for each class and kind of transfer. Flows share the path by
// start-time fair queueing: each has a virtual time that rises by the bytes it
// was served, divided by its weight, and the least is served next. Within a flow
// the groups, which are batches, take turns of some bytes, and within a group
// transfers take turns of one slice. docs/adr/0011-queue-discipline.md.
const (
	classes = 3
	flows   = classes * 2
)

// costShift is the inverse weight of a class as a shift: 8 to 4 to 1.
var costShift = [classes]uint8{0, 1, 3}

type flow struct {
	head, tail uint32 // groups, the next one first
	n          int    // transfers
	vtime      uint64 // compared by difference, so that it may wrap
}

// flowFor returns the flow of a transfer.
func (s *Shard) flowFor(c transport.Class, length uint64) uint8 {
	if length <= s.cfg.SmallBytes {
		return flowOf(c, rail.Small)
	}
	return flowOf(c, rail.Bulk)
}

// width is how many transfers wait where t does: itself, or the run that it leads.
func (s *Shard) width(t *transfer) int {
	if t.run == 0 {
		return 1
	}
	return bits.OnesCount64(s.runs[t.run].waiting)
}

// flowOf returns the flow of a class and kind.
func flowOf(c transport.Class, k rail.Kind) uint8 { return uint8(c)*2 + uint8(k) }

func kindOf(f uint8) rail.Kind { return rail.Kind(f & 1) }

// smallFlows are the bits of the flows of small transfers.
const smallFlows = 1<<1 | 1<<3 | 1<<5

// enqueue makes transfer ti wait on path pi, behind the others of its group or
// before all others of its flow.
func (s *Shard) enqueue(pi, ti uint32, front bool) {
	p, t := &s.paths[pi], &s.transfers[ti]
	f := &p.flows[t.flow]
	if f.n == 0 {
		p.backlog |= 1 << t.flow
		if int64(p.vnow-f.vtime) > 0 {
			f.vtime = p.vnow // what it did not use while it was empty is lost
		}
	}
	gi := s.groupFor(pi, t.flow, t.group)
	if front && f.head != gi {
		s.unlinkGroup(f, gi)
		s.linkGroup(f, gi, true)
	}
	t.queued, t.queuedOn, t.queuedIn = true, pi, gi
	s.join(&s.groups[gi], ti, front)
	f.n++
	p.queued += s.width(t)
}

// dequeue takes transfer ti out of the queue that it is in, if any.
func (s *Shard) dequeue(ti uint32) {
	t := &s.transfers[ti]
	if !t.queued {
		return
	}
	p := &s.paths[t.queuedOn]
	f := &p.flows[t.flow]
	s.part(&s.groups[t.queuedIn], ti)
	if s.groups[t.queuedIn].head == 0 {
		s.dropGroup(f, t.queuedIn)
	}
	t.queued = false
	f.n--
	p.queued -= s.width(t)
	if f.n == 0 {
		p.backlog &^= 1 << t.flow
	}
}

// due returns the flow among those in mask that is served next, -1 if all are empty.
func (p *path) due(mask uint8) int {
	b := p.backlog & mask
	if b == 0 {
		return -1
	}
	best := bits.TrailingZeros8(b)
	for b &= b - 1; b != 0; b &= b - 1 {
		if f := bits.TrailingZeros8(b); int64(p.flows[f].vtime-p.flows[best].vtime) < 0 {
			best = f
		}
	}
	return best
}

// pump posts what the path has room for.
func (s *Shard) pump(now Time, pi uint32, out *Actions) {
	p := &s.paths[pi]
	start := len(out.slices)
	for {
		f := p.due(1<<flows - 1)
		if f < 0 {
			break
		}
		if s.issue(now, pi, uint8(f), kindOf(uint8(f)), out) {
			continue
		}
		// Bulk that is due and waits for room must get it in the end, so small
		// slices keep to their reserve meanwhile.
		for kindOf(uint8(f)) == rail.Bulk {
			g := p.due(smallFlows)
			if g < 0 || !s.issue(now, pi, uint8(g), rail.Reserve, out) {
				break
			}
		}
		break
	}
	if len(out.slices) > start {
		out.Posts = append(out.Posts, Post{Path: p.id, Slices: out.slices[start:len(out.slices):len(out.slices)]})
	}
}

// issue posts one slice of the first transfer of flow f, if there is room for it.
func (s *Shard) issue(now Time, pi uint32, f uint8, room rail.Kind, out *Actions) bool {
	p := &s.paths[pi]
	ti := s.groups[p.flows[f].head].head
	t := &s.transfers[ti]
	if t.run != 0 {
		return s.issueRun(now, pi, ti, f, room, out)
	}
	if t.length == 0 {
		s.dequeue(ti)
		t.endedOn = p.id
		s.end(ti, out)
		return true
	}
	longest := p.longestBulk
	if kindOf(f) == rail.Small {
		longest = p.longestSmall
	}
	offset, left := t.issued, t.length-t.issued
	if t.again != 0 {
		offset, left = s.slices[t.again].offset, s.slices[t.again].length
	}
	n := slicer.Next(t.offset+offset, left, longest, p.spec.Align)
	r := p.rails.Pick(int64(now), n, room)
	if r < 0 {
		return false
	}
	i := s.cut(t, ti, n)
	if i == 0 {
		return s.slot(pi)
	}
	sl := &s.slices[i]
	sl.start = now
	sl.path, sl.rail, sl.kind, sl.try = pi, uint8(r), kindOf(f), t.try
	s.link(t, i)
	p.rails.At(r).Start(int64(now), n, 1, sl.kind)
	p.live++
	p.vnow = p.flows[f].vtime
	p.flows[f].vtime += (n + frameBytes) << costShift[f/2]
	s.turn(&p.flows[f], ti, n+frameBytes)
	o := grow(&out.slices)
	o.Tag, o.Owner, o.Offset, o.Length = s.tag(i), t.owner, sl.offset, n
	o.Op, o.Class, o.Rail, o.Retry, o.Run = t.op, t.class, sl.rail, sl.retry, 0
	return true
}

// slot reports whether there is room for another slice; if not, path pi is let
// on when there is.
func (s *Shard) slot(pi uint32) bool {
	if !s.full() {
		return true
	}
	if p := &s.paths[pi]; !p.starved {
		p.starved = true
		s.starving = append(s.starving, pi)
	}
	return false
}

// cut takes the first n bytes that t has left to issue and returns their slot,
// or 0 when there is none to be had.
func (s *Shard) cut(t *transfer, ti uint32, n uint64) uint32 {
	if a := t.again; a != 0 && s.slices[a].length == n {
		t.again = s.slices[a].next
		return a
	}
	i := s.newSlice()
	if i == 0 {
		return 0
	}
	sl := &s.slices[i]
	sl.transfer, sl.length = ti, n
	if t.again == 0 {
		sl.offset, sl.retry, sl.sums = t.issued, 0, 0
		t.issued += n
		return i
	}
	a := &s.slices[t.again]
	sl.offset, sl.retry, sl.sums = a.offset, a.retry, a.sums
	a.offset += n
	a.length -= n
	return i
}
