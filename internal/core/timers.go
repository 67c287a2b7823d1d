package core

// timers is a binary heap of instants, one for each transfer with a deadline and
// each path that waits for one. Every transfer and path knows its place in it.
type timers struct{ heap []timer }

type timer struct {
	at  Time
	ref uint32 // slot, with the lowest bit telling the tables apart
}

func transferRef(ti uint32) uint32 { return ti << 1 }

func pathRef(pi uint32) uint32 { return pi<<1 | 1 }

// place returns where the owner of ref keeps its position, which counts from 1.
func (s *Shard) timerOf(ref uint32) *uint32 {
	if ref&1 != 0 {
		return &s.paths[ref>>1].timer
	}
	return &s.transfers[ref>>1].timer
}

// setTimer makes ref due at an instant, instead of any other one.
func (s *Shard) setTimer(ref uint32, at Time) {
	pos := *s.timerOf(ref)
	if pos == 0 {
		s.timers.heap = append(s.timers.heap, timer{})
		pos = uint32(len(s.timers.heap))
	}
	s.putTimer(pos-1, timer{at, ref})
	s.upTimer(s.downTimer(pos - 1))
}

// clearTimer makes ref never due.
func (s *Shard) clearTimer(ref uint32) {
	pos := *s.timerOf(ref)
	if pos == 0 {
		return
	}
	*s.timerOf(ref) = 0
	h := s.timers.heap
	last := uint32(len(h) - 1)
	moved := h[last]
	s.timers.heap = h[:last]
	if pos-1 < last {
		s.putTimer(pos-1, moved)
		s.upTimer(s.downTimer(pos - 1))
	}
}

func (s *Shard) putTimer(i uint32, t timer) {
	s.timers.heap[i] = t
	*s.timerOf(t.ref) = i + 1
}

func (s *Shard) swapTimers(i, j uint32) {
	a, b := s.timers.heap[i], s.timers.heap[j]
	s.putTimer(i, b)
	s.putTimer(j, a)
}

func (s *Shard) upTimer(i uint32) {
	for h := s.timers.heap; i > 0 && h[i].at < h[(i-1)/2].at; i = (i - 1) / 2 {
		s.swapTimers(i, (i-1)/2)
	}
}

func (s *Shard) downTimer(i uint32) uint32 {
	h := s.timers.heap
	for {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && int(child) < len(h); child++ {
			if h[child].at < h[least].at {
				least = child
			}
		}
		if least == i {
			return i
		}
		s.swapTimers(i, least)
		i = least
	}
}
