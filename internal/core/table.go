package core

import (
	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/core/rail"
	"github.com/tideway-io/tideway/transport"
)

// A tag is, from the top: the shard's number, the slot's generation, the slot.
const (
	slotBits  = 24
	genBits   = 30
	shardBits = 64 - slotBits - genBits

	// MaxShards is how many shards one engine may have.
	MaxShards = 1 << shardBits
)

// TagShard returns the number of the shard that made the tag.
func TagShard(t transport.Tag) int { return int(t >> (slotBits + genBits)) }

// Slots of each table are linked by index; 0, which no slot has, ends a list.

// slice is a slice in flight, or a range that waits to be tried again.
type slice struct {
	offset, length uint64
	start          Time   // when it was posted
	gen            uint32 // changes when the slice is not in flight any more
	transfer, path uint32
	next, prev     uint32 // in the transfer's list of live ones, or of ranges; next alone when free
	try            uint16 // the transfer's try that it belongs to
	rail           uint8
	retry          uint8
	sums           uint8 // checksum mismatches of this range
	kind           rail.Kind
	live           bool
	item           uint32 // 1 + the item of a run whose tag it has; 0: its own
}

// transfer is a transfer that has not ended.
type transfer struct {
	owner          uint64
	length, offset uint64
	issued         uint64 // first byte that no slice has covered yet
	done           uint64 // bytes completed
	mark           uint64 // done at the last failed try that was charged

	gen                uint32
	ladder             [Rungs]PathID
	rung, rungs        uint8
	op                 transport.Op
	class              transport.Class
	flow               uint8
	queued, inDoubt    bool
	queuedOn, queuedIn uint32 // path slot, group slot
	group              uint64
	qnext, qprev       uint32
	live               uint32 // slices in flight
	liveHead, liveTail uint32
	again, againTail   uint32
	timer              uint32
	try                uint16 // rises with every charged failure
	code               errs.Code
	endedOn            PathID
	retries            int
	run                uint32 // that it leads, 0: none
	item               uint32 // 1 + the item of a run that it was, 0: none
	err                error
	attempts           []Attempt
}

// path is a path, or what is left of one whose slices are still outstanding.
type path struct {
	id                        PathID
	spec                      PathSpec
	state                     PathState
	gone                      bool // removed; the slot is free when nothing is outstanding
	touched, starved          bool
	blocked                   bool // Post said "later": wait for a completion
	served                    bool // a slice completed well since the last flush
	hold                      Time // no posts before
	refusals                  int  // "later" in a row with nothing outstanding
	live                      int  // slices in flight
	queued                    int
	longestSmall, longestBulk uint64
	vnow                      uint64
	backlog                   uint8 // bit f: flows[f] is not empty
	flows                     [flows]flow
	rails                     rail.Set
	rest                      rail.Rest
	timer                     uint32
	next                      uint32 // when free
	code                      errs.Code
	err                       error
}

// newSlice returns a free slot, or 0 when the table is full.
func (s *Shard) newSlice() uint32 {
	if s.full() {
		return 0
	}
	return s.takeSlice()
}

// takeSlice returns a free slot although the table may be full.
func (s *Shard) takeSlice() uint32 {
	s.sliceCount++
	if i := s.freeSlice; i != 0 {
		s.freeSlice = s.slices[i].next
		return i
	}
	s.slices = append(s.slices, slice{gen: 1})
	return uint32(len(s.slices) - 1)
}

// full reports whether new slices must wait. With nothing in flight one more may
// go: no completion would come to make room, and the ranges that fill the table
// may wait behind it.
func (s *Shard) full() bool {
	return s.sliceCount >= s.cfg.MaxSlices && s.live > 0 || s.sliceCount >= itemSlot-1
}

func (s *Shard) dropSlice(i uint32) {
	s.sliceCount--
	s.slices[i].next = s.freeSlice
	s.freeSlice = i
}

func (s *Shard) tag(i uint32) transport.Tag {
	if item := s.slices[i].item; item != 0 {
		return s.itemTag(item - 1)
	}
	return transport.Tag(s.cfg.Shard)<<(slotBits+genBits) | transport.Tag(s.slices[i].gen)<<slotBits | transport.Tag(i)
}

// sliceOf returns the slot of a slice in flight, or 0. One that was posted as
// part of a run becomes one that can be dealt with alone.
func (s *Shard) sliceOf(t transport.Tag) uint32 {
	if t&itemSlot != 0 {
		ri, i := s.itemOf(t)
		if ri == 0 {
			return 0
		}
		if s.runs[ri].alone>>i&1 == 0 {
			s.single(ri, i)
		}
		return s.transfers[s.runs[ri].cell[i]].liveHead
	}
	i := uint32(t & (itemSlot - 1))
	if int(i) >= len(s.slices) || !s.slices[i].live || s.tag(i) != t {
		return 0
	}
	return i
}

func (s *Shard) newTransfer() uint32 {
	if i := s.freeTransfer; i != 0 {
		s.freeTransfer = s.transfers[i].qnext
		return i
	}
	s.transfers = append(s.transfers, transfer{})
	return uint32(len(s.transfers) - 1)
}

func (s *Shard) transferID(i uint32) TransferID {
	return TransferID(s.transfers[i].gen)<<32 | TransferID(i)
}

// transferOf returns the slot of a transfer that has not ended, or 0. The
// generation is odd while the slot is in use.
func (s *Shard) transferOf(id TransferID) uint32 {
	i, gen := uint32(id), uint32(id>>32)
	if i&itemID != 0 {
		return s.itemTransfer(i&^itemID, gen)
	}
	if int(i) >= len(s.transfers) || gen&1 == 0 || s.transfers[i].gen != gen {
		return 0
	}
	return i
}

// itemTransfer is transferOf for the id of one in a run.
func (s *Shard) itemTransfer(item, gen uint32) uint32 {
	ri, i := item>>runShift, int(item%RunLen)
	if int(ri) >= len(s.runs) || gen&1 == 0 || s.runs[ri].gen != gen {
		return 0
	}
	switch r := &s.runs[ri]; {
	case r.alone>>i&1 != 0:
		return r.cell[i]
	case (r.waiting|r.flying)>>i&1 != 0:
		return s.single(ri, i)
	}
	return 0
}

const pathSlotBits = 20

// pathOf returns the slot of a path that exists, or 0.
func (s *Shard) pathOf(id PathID) uint32 {
	i := uint32(id & (1<<pathSlotBits - 1))
	if int(i) >= len(s.paths) || s.paths[i].id != id || s.paths[i].gone {
		return 0
	}
	return i
}

// link appends slice i to the live ones of its transfer.
func (s *Shard) link(t *transfer, i uint32) {
	sl := &s.slices[i]
	sl.live, sl.next, sl.prev = true, 0, t.liveTail
	if t.liveTail != 0 {
		s.slices[t.liveTail].next = i
	} else {
		t.liveHead = i
	}
	t.liveTail = i
	t.live++
	s.live++
}

// unlink takes slice i, in flight until now, out of the live ones; its tag names
// nothing any more.
func (s *Shard) unlink(t *transfer, i uint32) {
	sl := &s.slices[i]
	if sl.prev != 0 {
		s.slices[sl.prev].next = sl.next
	} else {
		t.liveHead = sl.next
	}
	if sl.next != 0 {
		s.slices[sl.next].prev = sl.prev
	} else {
		t.liveTail = sl.prev
	}
	t.live--
	s.live--
	sl.live = false
	if sl.item != 0 {
		item := sl.item - 1
		s.runs[item>>runShift].flying &^= 1 << (item % RunLen)
		sl.item = 0
	}
	sl.gen = (sl.gen + 1) & (1<<genBits - 1)
}

// putBack makes slice i a range of t that waits to be tried again, before the others
// or after them.
func (s *Shard) putBack(t *transfer, i uint32, front bool) {
	sl := &s.slices[i]
	sl.next = 0
	switch {
	case t.again == 0:
		t.again, t.againTail = i, i
	case front:
		sl.next, t.again = t.again, i
	default:
		s.slices[t.againTail].next = i
		t.againTail = i
	}
}
