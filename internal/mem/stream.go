package mem

import "sync/atomic"

const (
	// streamFrom is the length from which Move may write around the caches:
	// filling lines one by one costs shorter copies more than it spares.
	streamFrom = 16 << 10
	// streamUnit is what stream moves at a time, and how dst must be aligned.
	streamUnit = 64
	// warm is how many bytes may have moved since a destination was written for
	// it to be in a second-level cache still, together with their sources: half
	// of the 1 MiB that servers have at least.
	warm = 512 << 10
	// recent is how many destinations a Mover remembers: twice what it takes to
	// walk warm in the shortest copies that matter.
	recent = 2 * warm / streamFrom
)

// Mover copies memory and remembers where it copied to lately, so as to know a
// destination that is likely to be in a cache. The zero value is ready. Several
// goroutines may use it at once.
type Mover struct {
	moved atomic.Uint64 // bytes so far, of copies that may go around the caches
	// last has, for destinations by their hash, a part of the address and the
	// KiB that had moved. What two of them overwrite of each other, and a
	// mistaken one, costs a slower copy and no more.
	last [recent]atomic.Uint64
}

// Move copies src to dst, which must be as long, as fast as memory allows: it
// writes around the caches unless dst was written lately. The ranges may
// overlap. All of it is visible to other processors, and processes, when Move
// returns.
func (m *Mover) Move(dst, src []byte) {
	if !canStream || len(src) < streamFrom || !around(len(src), m.age(dst)) || near(dst, src) {
		copy(dst, src)
		return
	}
	head := int(-Addr(dst) & (streamUnit - 1))
	body := (len(src) - head) &^ (streamUnit - 1)
	copy(dst[:head], src)
	stream(&dst[head], &src[head], body/streamUnit)
	copy(dst[head+body:], src[head+body:])
}

// around says whether a copy of n bytes is to go around the caches, when so many
// bytes, these included, have moved since the last one to the same place.
func around(n int, age uint64) bool { return n >= streamFrom && age > warm }

// age returns how many bytes have moved since the last copy to where dst begins,
// with this one, which it counts; a large number where none is remembered.
func (m *Mover) age(dst []byte) uint64 {
	const mix = 0x9e3779b97f4a7c15 // of Fibonacci hashing: its high bits spread what comes in equal steps
	h := uint64(Addr(dst)) * mix
	slot, tag := &m.last[h>>32*recent>>32], h>>32|1
	now := m.moved.Add(uint64(len(dst))) >> 10
	before := slot.Load()
	slot.Store(now<<32 | tag)
	if uint32(before) != uint32(tag) {
		return 1 << 42
	}
	return uint64(uint32(now)-uint32(before>>32)) << 10
}

// near reports whether the two ranges of one length overlap.
func near(dst, src []byte) bool {
	d, s, n := Addr(dst), Addr(src), uintptr(len(src))
	return d-s < n || s-d < n
}
