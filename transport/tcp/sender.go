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
	sums    bool     // payloads are summed
	ranges  [][]byte // what is left of the plan from next on
	owners  []int32  // parallel: index in payloads of what a range belongs to, -1 for scratch
	next    int
	clipped []byte // the whole of range clip, of which the window has only a part
	clip    int

	payloads []payload // of the plan, in order; those sent from where they lie have ranges
	summing  int32     // the payload that digest is of
	summed   int       // bytes of it that are in digest
	digest   wire.Digest
	scratch  []byte
	open     bool // the last range ends where scratch does
	payload  int
	size     int // bytes planned
	gone     int // of which sent
}

// busy reports whether a plan is unfinished.
func (s *sender) busy() bool { return s.next < len(s.ranges) }

// payload is one request's bytes in the plan.
type payload struct {
	length int
	copied bool   // it is in scratch, or there are no bytes of it; sum is known
	sum    uint64 // of a copied one
	slot   []byte // of the trailer: where the sum of another one goes; nil: it is there, or not wanted
	held   int32  // a target's: index in answers.held
}

// sumAhead is how much is summed before it is sent: little enough to be still in
// the cache when the system call copies it.
const sumAhead = 2 * wire.SumPart

// window returns what the next system call sends: all that is left without sums,
// else about sumAhead bytes, after summing them.
func (s *sender) window() [][]byte {
	total := 0
	for k := s.next; k < len(s.ranges); k++ {
		b := s.ranges[k]
		if s.owners[k] < 0 || !s.sums {
			continue
		}
		take := min(len(b), sumAhead-total)
		s.sum(s.owners[k], b, take)
		if total += take; total == sumAhead {
			if take < len(b) {
				s.clipped, s.clip, s.ranges[k] = b, k, b[:take]
			}
			return s.ranges[s.next : k+1]
		}
	}
	return s.ranges[s.next:]
}

// sum sums payload o at least as far as the first n bytes of b, which is the end
// of it.
func (s *sender) sum(o int32, b []byte, n int) {
	p := &s.payloads[o]
	if p.slot == nil {
		return
	}
	if o != s.summing {
		s.summing, s.summed = o, 0
		s.digest.Reset()
	}
	start := p.length - len(b)
	for s.summed < start+n {
		at := s.summed - start
		part := b[at:min(len(b), at+wire.SumPart)]
		s.digest.Add(sum(part))
		s.summed += len(part)
	}
	if s.summed == p.length {
		binary.LittleEndian.PutUint64(p.slot, s.digest.Sum())
		p.slot = nil
	}
}

// forget stops summing a payload: what will be sent for it are zeros.
func (s *sender) forget(o int32) { s.payloads[o].slot = nil }

// start makes room for a new plan.
func (s *sender) start() {
	if s.scratch == nil {
		s.scratch = s.pools.scratch()
	}
	s.scratch, s.open, s.payload, s.size, s.gone = s.scratch[:0], false, 0, 0, 0
	s.summing = -1
}

// finish gives everything back.
func (s *sender) finish() {
	clear(s.ranges)
	clear(s.payloads)
	s.ranges, s.owners, s.payloads, s.next, s.open = s.ranges[:0], s.owners[:0], s.payloads[:0], 0, false
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

// refer appends bytes that are sent from where they lie; owner is their payload,
// -1 for none.
func (s *sender) refer(b []byte, owner int32) {
	s.size += len(b)
	s.ranges, s.owners, s.open = append(s.ranges, b), append(s.owners, owner), false
}

// referred appends a payload that is sent from where it lies.
func (s *sender) referred(b []byte) *payload {
	s.payloads = append(s.payloads, payload{length: len(b)})
	s.refer(b, int32(len(s.payloads)-1))
	return &s.payloads[len(s.payloads)-1]
}

// copied appends a payload that is sent from a copy; the caller has looked at
// room.
func (s *sender) copied(b []byte) {
	p := payload{copied: true}
	c := s.reserve(len(b))
	if move(c, b); s.sums {
		p.sum = sum(c)
	}
	s.payloads = append(s.payloads, p)
}

// absent takes the place of a payload that is not sent.
func (s *sender) absent() { s.payloads = append(s.payloads, payload{copied: true}) }

// trailer appends the trailer of a frame whose payloads are those from first on.
// The sums of those that lie elsewhere are filled in as they are sent.
func (s *sender) trailer(h *wire.Header, first int32) []byte {
	t := s.reserve(h.TrailerSize())
	if s.sums {
		for k := range s.payloads[first:] {
			p := &s.payloads[int(first)+k]
			if slot := t[k*wire.SumSize:][:wire.SumSize]; p.copied {
				binary.LittleEndian.PutUint64(slot, p.sum)
			} else {
				clear(slot) // until it is known, and if it never is
				p.slot = slot
			}
		}
	}
	putEnd(t[len(t)-wire.EndSize:], wire.EndWhole)
	return t
}

// advance counts n bytes as sent.
func (s *sender) advance(n int) {
	s.gone += n
	if s.clipped != nil {
		s.ranges[s.clip], s.clipped = s.clipped, nil
	}
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

func putEnd(end []byte, word uint64) { binary.LittleEndian.PutUint64(end, word) }
