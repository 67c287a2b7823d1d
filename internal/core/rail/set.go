package rail

// sampleEvery is how many choices pass before an idle rail is taken although it
// is not the best, so that an old measurement does not stand for ever.
const sampleEvery = 64

// Set is the rails of one path.
type Set struct {
	rails []Rail
	picks int
}

// Clear forgets all rails and keeps their memory.
func (s *Set) Clear() { s.rails, s.picks = s.rails[:0], 0 }

// Add adds an idle rail.
func (s *Set) Add(cfg Config) { s.rails = append(s.rails, New(cfg)) }

// Len returns the number of rails.
func (s *Set) Len() int { return len(s.rails) }

// At returns rail i, valid until the next Add or Clear.
func (s *Set) At(i int) *Rail { return &s.rails[i] }

// Only returns the rail of a path that has one, else nil.
func (s *Set) Only() *Rail {
	if len(s.rails) == 1 {
		return &s.rails[0]
	}
	return nil
}

// Pick returns the rail that a slice of n bytes finishes on first, or -1 when
// there is no room. A rail that rests is taken only when all do, the one that
// rests no longer first; one whose rest is over gets one slice at a time until
// it has worked.
func (s *Set) Pick(now int64, n uint64, k Kind) int {
	if len(s.rails) == 1 {
		if s.rails[0].Room(n, 1, k) {
			return 0
		}
		return -1
	}
	s.picks++
	trusted, rate := s.look(now)
	if !trusted {
		return s.leastBad(n, k)
	}
	if s.picks%sampleEvery == 0 {
		if i := s.stalest(n, k); i >= 0 {
			return i
		}
	}
	best, least := -1, 0.0
	for i := range s.rails {
		r := &s.rails[i]
		if !r.trusted && (r.Resting(now) || !r.idle()) || !r.Room(n, 1, k) {
			continue
		}
		if !r.trusted {
			return i // the one slice that tries it again
		}
		f := r.finish(n, rate)
		if r.rate > 0 {
			f = r.finish(n, r.rate)
		}
		if best < 0 || f < least {
			best, least = i, f
		}
	}
	return best
}

// look finds out which rails are trusted, and the best rate among them, which
// stands in for a rate that has not been measured yet.
func (s *Set) look(now int64) (trusted bool, rate float64) {
	rate = 1
	for i := range s.rails {
		r := &s.rails[i]
		r.trusted = !r.rest.Trial() && !r.Resting(now)
		trusted = trusted || r.trusted
		rate = max(rate, r.rate)
	}
	return trusted, rate
}

// stalest returns the idle trusted rail whose measurement is oldest, or -1.
func (s *Set) stalest(n uint64, k Kind) int {
	best := -1
	for i := range s.rails {
		r := &s.rails[i]
		if r.trusted && r.idle() && r.Room(n, 1, k) && (best < 0 || r.mark < s.rails[best].mark) {
			best = i
		}
	}
	return best
}

// leastBad returns the rail with room whose rest ends first, when none is trusted.
func (s *Set) leastBad(n uint64, k Kind) int {
	best := -1
	for i := range s.rails {
		if s.rails[i].Room(n, 1, k) && (best < 0 || s.rails[i].rest.Until() < s.rails[best].rest.Until()) {
			best = i
		}
	}
	return best
}

// Trusted reports whether any rail neither rests nor waits for its trial.
func (s *Set) Trusted(now int64) bool {
	trusted, _ := s.look(now)
	return trusted
}

// Settle measures every rail after a run of completions.
func (s *Set) Settle(now int64) {
	for i := range s.rails {
		s.rails[i].Settle(now)
	}
}

// Longest returns the longest slice of the kind that fits every rail when idle.
func (s *Set) Longest(k Kind) uint64 {
	longest := ^uint64(0)
	for i := range s.rails {
		if k == Bulk {
			longest = min(longest, s.rails[i].Share())
		} else {
			longest = min(longest, s.rails[i].Window())
		}
	}
	return longest
}
