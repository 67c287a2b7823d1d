package tcp

import (
	"encoding/binary"

	"github.com/tideway-io/tideway/internal/wire"
)

const (
	// scratchSize holds heads, trailers and copied payloads of one plan.
	scratchSize = 256 << 10
	// planPayload is how much payload one writev carries at the most, counting
	// only up to the last frame that fits; a single frame always does.
	planPayload = 1 << 20
	// planRanges bounds the ranges of one writev.
	planRanges = maxIovecs - 16
	// frameRoom is the scratch that a frame needs besides descriptors, sums and
	// copied payload.
	frameRoom = wire.HeaderSize + wire.EndSize + 64
)

// sender is the plan of what goes to the peer next: whole frames, as ranges
// that one writev gathers. Heads, trailers and small payloads lie in scratch,
// which is held only while a plan is unfinished.
type sender struct {
	pools   *pools
	ranges  [][]byte // what is left of the plan from next on
	owners  []int32  // parallel: which payload a range belongs to, -1 for scratch
	next    int
	scratch []byte
	open    bool // the last range ends where scratch does
	payload int
	size    int // bytes planned
	gone    int // of which sent
}

// busy reports whether a plan is unfinished.
func (s *sender) busy() bool { return s.next < len(s.ranges) }

func (s *sender) left() [][]byte { return s.ranges[s.next:] }

// start makes room for a new plan.
func (s *sender) start() {
	if s.scratch == nil {
		s.scratch = s.pools.scratch()
	}
	s.scratch, s.open, s.payload, s.size, s.gone = s.scratch[:0], false, 0, 0, 0
}

// finish gives everything back.
func (s *sender) finish() {
	clear(s.ranges)
	s.ranges, s.owners, s.next, s.open = s.ranges[:0], s.owners[:0], 0, false
	if s.scratch != nil {
		s.pools.putScratch(s.scratch)
		s.scratch = nil
	}
}

// room returns how many bytes of scratch are free.
func (s *sender) room() int { return cap(s.scratch) - len(s.scratch) }

// slots returns how many more ranges fit.
func (s *sender) slots() int { return planRanges - len(s.ranges) }

// reserve appends n bytes of scratch to the plan; the caller has looked at room.
func (s *sender) reserve(n int) []byte {
	at := len(s.scratch)
	s.size += n
	s.scratch = s.scratch[:at+n]
	b := s.scratch[at:]
	if s.open {
		last := &s.ranges[len(s.ranges)-1]
		*last = s.scratch[at-len(*last):]
		return b
	}
	s.ranges, s.owners, s.open = append(s.ranges, b), append(s.owners, -1), true
	return b
}

// refer appends a payload that is sent from where it lies.
func (s *sender) refer(b []byte, owner int32) {
	s.size += len(b)
	s.ranges, s.owners, s.open = append(s.ranges, b), append(s.owners, owner), false
}

// advance counts n bytes as sent.
func (s *sender) advance(n int) {
	s.gone += n
	for n > 0 {
		b := s.ranges[s.next]
		if n < len(b) {
			s.ranges[s.next] = b[n:]
			break
		}
		n -= len(b)
		s.ranges[s.next] = nil
		s.next++
	}
	for s.next < len(s.ranges) && len(s.ranges[s.next]) == 0 {
		s.next++
	}
}

// control appends a frame without payload and returns its meta, which the
// caller fills in before it calls wire.Seal on head.
func (s *sender) control(h wire.Header) (head []byte) {
	head = s.reserve(wire.HeaderSize + int(h.Meta))
	h.Put(head)
	return head
}

// putTrailer fills in a trailer: sums, if there is room for them, and the end
// word of a whole frame.
func putTrailer(trailer []byte, sums []uint64) {
	if len(trailer) > wire.EndSize {
		for k, sum := range sums {
			binary.LittleEndian.PutUint64(trailer[k*wire.SumSize:], sum)
		}
	}
	putEnd(trailer[len(trailer)-wire.EndSize:], wire.EndWhole)
}

func putEnd(end []byte, word uint64) { binary.LittleEndian.PutUint64(end, word) }
