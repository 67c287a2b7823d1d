package rail

import (
	"math"
	"math/rand/v2"
	"testing"
	"testing/quick"
)

const ms = int64(1e6)

func config(window uint64) Config {
	return Config{Window: window, Slices: 16, Small: 64, Penalty: 1, HalfLife: 100 * ms, Backoff: Backoff{Min: 10 * ms, Max: 80 * ms}}
}

func TestRestDoublesPerRestAndDecays(t *testing.T) {
	b := Backoff{Free: 1, Min: 10 * ms, Max: 50 * ms}
	var r Rest
	for _, step := range []struct {
		at    int64
		ok    bool // else it fails
		until int64
		trial bool
		why   string
	}{
		{5 * ms, true, 0, false, "what has never failed needs no trial"},
		{10 * ms, false, 10 * ms, true, "the first failure is free"},
		{10 * ms, false, 20 * ms, true, "the second one rests"},
		{15 * ms, false, 20 * ms, true, "a failure during the rest is the same trouble"},
		{18 * ms, true, 20 * ms, true, "a success during the rest was started before"},
		{20 * ms, false, 40 * ms, true, "twice as long"},
		{40 * ms, true, 40 * ms, false, "it works again"},
		{45 * ms, false, 85 * ms, true, "not for as long as it rested: twice as long again"},
		{90 * ms, false, 140 * ms, true, "no longer than the longest"},
		{150 * ms, true, 140 * ms, false, "it works again"},
		{200 * ms, false, 200 * ms, true, "as long as its last rest: as good as new"},
	} {
		if step.ok {
			r.OK(step.at)
		} else {
			r.Fail(step.at, b)
		}
		if r.Until() != step.until || r.Trial() != step.trial {
			t.Errorf("%s: at %d ms it rests until %d ms, trial %v; want %d ms, %v", step.why, step.at/ms, r.Until()/ms, r.Trial(), step.until/ms, step.trial)
		}
	}
}

func TestRestNeverOverflows(t *testing.T) {
	b := Backoff{Min: 1, Max: math.MaxInt64 / 4}
	var r Rest
	now := int64(0)
	for i := range 300 {
		if until := r.Fail(now, b); until < now || until-now > b.Max {
			t.Fatalf("failure %d rests for %d", i, until-now)
		}
		r.until = now // the rest is over at once
	}
}

func TestReserve(t *testing.T) {
	r := New(config(1024)) // 896 and 14 for bulk, 128 and 2 kept back
	fill := func(n int, bytes uint64, k Kind) {
		t.Helper()
		for range n {
			if !r.Room(bytes, 1, k) {
				t.Fatalf("no room for %d bytes, kind %d, beside %+v", bytes, k, r)
			}
			r.Start(0, bytes, 1, k)
		}
	}
	if r.Room(897, 1, Bulk) || !r.Room(896, 1, Bulk) || !r.Room(1024, 1, Small) {
		t.Error("an idle rail takes less or more than its share")
	}
	fill(3, 298, Bulk)
	if r.Room(3, 1, Bulk) {
		t.Error("bulk takes more than its share")
	}
	fill(2, 64, Reserve)
	if r.Room(1, 1, Reserve) {
		t.Error("small slices take more than the reserve while bulk is due")
	}
	if !r.Room(2, 1, Small) || r.Room(3, 1, Small) {
		t.Error("small slices do not fill the window when no bulk is due")
	}
	if bytes, n := r.InFlight(); bytes != 1022 || n != 5 {
		t.Errorf("%d bytes in %d slices in flight, want 1022 in 5", bytes, n)
	}
	r = New(config(1 << 30))
	fill(14, 1, Bulk)
	if r.Room(1, 1, Bulk) || !r.Room(1, 1, Small) {
		t.Error("slots are not kept back")
	}
}

func TestTinyWindowStillMoves(t *testing.T) {
	for window := uint64(0); window < 300; window++ {
		r := New(config(window))
		if r.Share() < 1 || r.Share() > max(window, 1) || !r.Room(r.Share(), 1, Bulk) || !r.Room(r.Window(), 1, Small) {
			t.Errorf("window %d: share %d", window, r.Share())
		}
	}
}

// TestRateIsService keeps a rail busy at 1 byte a nanosecond, with a queue that
// makes each slice take much longer than its service.
func TestRateIsService(t *testing.T) {
	r := New(config(1 << 30))
	for range 8 {
		r.Start(0, 1000, 1, Bulk)
	}
	now := int64(0)
	for range 1000 {
		now += 1000
		r.Done(1000, 1, Bulk, true, 0)
		r.Start(now, 1000, 1, Bulk)
		r.Settle(now)
	}
	if got := r.BytesPerSecond(); math.Abs(got-1e9) > 1e6 {
		t.Errorf("measured %.3g bytes per second, want 1e9", got)
	}
	// Half the speed for one half-life: the mean of old and new.
	for end := now + 100*ms; now < end; {
		now += 2000
		r.Done(1000, 1, Bulk, true, 0)
		r.Start(now, 1000, 1, Bulk)
		r.Settle(now)
	}
	if got := r.BytesPerSecond(); math.Abs(got-0.75e9) > 1e7 {
		t.Errorf("measured %.3g bytes per second after one half-life at 0.5e9, want 0.75e9", got)
	}
	// A trickle says nothing of how fast the rail is.
	for range 8 {
		r.Done(1000, 1, Bulk, false, 0)
	}
	before := r.BytesPerSecond()
	for range 100 {
		r.Start(now, 10, 1, Small)
		now += ms
		r.Done(10, 1, Small, true, 0)
		r.Settle(now)
	}
	if got := r.BytesPerSecond(); got != before {
		t.Errorf("a trickle changed the measured speed from %.3g to %.3g", before, got)
	}
}

// TestWindowFollowsRoundTrip keeps a window full over a line of 1 byte a
// nanosecond and a long round trip.
func TestWindowFollowsRoundTrip(t *testing.T) {
	cfg := config(1000)
	cfg.MaxWindow, cfg.HalfLife = 1e6, 1
	const trip, slice = 20_000, 100
	r := New(cfg)
	for now, rounds := int64(0), 0; rounds < 40; rounds++ {
		n := 0
		for ; r.Room(slice, 1, Bulk); n++ {
			r.Start(now, slice, 1, Bulk)
		}
		now += trip
		for range n - 1 {
			r.Done(slice, 1, Bulk, true, trip)
			now += slice
			r.Settle(now)
		}
		r.Done(slice, 1, Bulk, true, trip+slice)
	}
	if w := r.Window(); w < trip || w > 2.5*trip {
		t.Errorf("the window is %d bytes where %d are under way", w, trip)
	}
	fixed := New(config(1000))
	fixed.Start(0, slice, 1, Bulk)
	fixed.Done(slice, 1, Bulk, true, 1e9)
	fixed.Settle(1)
	if fixed.Window() != 1000 {
		t.Errorf("a fixed window is now %d bytes", fixed.Window())
	}
}

func TestPickFollowsSpeed(t *testing.T) {
	var s Set
	s.Add(config(1 << 20))
	s.Add(config(1 << 20))
	s.rails[0].rate, s.rails[1].rate = 3, 1
	got := [2]int{}
	for range 40 {
		i := s.Pick(0, 1000, Bulk)
		s.At(i).Start(0, 1000, 1, Bulk)
		if got[i]++; got[0]+got[1] == 12 {
			break
		}
	}
	if got != [2]int{9, 3} {
		t.Errorf("a rail three times as fast took %d of 12 slices, want 9", got[0])
	}
	s = Set{}
	s.Add(config(1 << 20))
	far := config(1 << 20)
	far.Penalty = 2
	s.Add(far)
	if a, b := s.Pick(0, 10, Bulk), s.Pick(0, 10, Bulk); a != 0 || b != 0 {
		t.Errorf("idle rails %d and %d were picked before the nearer one", a, b)
	}
}

func TestPickSamplesIdleRails(t *testing.T) {
	var s Set
	for range 3 {
		s.Add(config(1 << 20))
	}
	s.rails[0].rate, s.rails[1].rate, s.rails[2].rate = 100, 1, 1
	picked := [3]int{}
	for i := range 10 * sampleEvery {
		now := int64(i) * 1000
		r := s.Pick(now, 10, Small)
		picked[r]++
		s.At(r).Start(now, 10, 1, Small)
		s.At(r).Done(10, 1, Small, true, 0)
		s.Settle(now + 1)
	}
	if picked[1] == 0 || picked[2] == 0 || picked[1]+picked[2] > 10 {
		t.Errorf("slow rails were picked %v times of 640, want a few each", picked)
	}
}

func TestPickRestsAndTries(t *testing.T) {
	var s Set
	s.Add(config(1000))
	s.Add(config(1000))
	s.At(0).Fail(0) // until 10 ms
	for range 4 {
		if r := s.Pick(ms, 200, Bulk); r != 1 {
			t.Fatalf("rail %d picked while it rests", r)
		}
		s.At(1).Start(ms, 200, 1, Bulk)
	}
	if r := s.Pick(ms, 200, Bulk); r != -1 {
		t.Errorf("rail %d picked, want none: the resting one only when all rest", r)
	}
	if r := s.Pick(20*ms, 100, Bulk); r != 0 {
		t.Fatalf("rail %d picked, want a trial of 0", r)
	}
	s.At(0).Start(20*ms, 100, 1, Bulk)
	if r := s.Pick(20*ms, 100, Bulk); r != -1 {
		t.Errorf("rail %d picked while the trial is out", r)
	}
	s.At(0).Done(100, 1, Bulk, true, 0)
	s.Settle(21 * ms)
	if r := s.Pick(21*ms, 100, Bulk); r != 0 {
		t.Errorf("rail %d picked after a good trial, want 0", r)
	}
	for range 4 {
		s.At(1).Done(200, 1, Bulk, true, 0)
	}
	s.At(0).Fail(22 * ms)
	s.At(1).Fail(21 * ms)
	if r := s.Pick(23*ms, 100, Bulk); r != 1 {
		t.Errorf("rail %d picked when all rest, want 1, which rests no longer first", r)
	}
}

// TestNeverAboveWindow loads rails at random and counts anew.
func TestNeverAboveWindow(t *testing.T) {
	type flight struct {
		rail int
		n    uint64
		k    Kind
	}
	run := func(seed uint64) bool {
		r := rand.New(rand.NewPCG(seed, 4))
		var s Set
		for range 1 + r.IntN(4) {
			s.Add(config(r.Uint64N(2000)))
		}
		var out []flight
		for now := int64(0); now < 2000; now++ {
			if n := 1 + r.Uint64N(s.Longest(Bulk)); r.IntN(2) == 0 {
				k := Kind(r.IntN(3))
				if i := s.Pick(now, n, k); i >= 0 {
					s.At(i).Start(now, n, 1, k)
					out = append(out, flight{i, n, k})
				} else if len(out) == 0 && k != Reserve {
					return false // an idle set takes the longest slice
				}
			} else if len(out) > 0 {
				f := out[r.IntN(len(out))]
				out = out[:copy(out, without(out, f))]
				s.At(f.rail).Done(f.n, 1, f.k, r.IntN(4) != 0, 0)
				if r.IntN(20) == 0 {
					s.At(f.rail).Fail(now)
				}
				s.Settle(now)
			}
			for i := range s.rails {
				bytes, n := uint64(0), 0
				for _, f := range out {
					if f.rail == i {
						bytes, n = bytes+f.n, n+1
					}
				}
				if b, m := s.At(i).InFlight(); b != bytes || m != n || bytes > s.At(i).Window() || n > 16 {
					return false
				}
			}
		}
		return true
	}
	if err := quick.Check(run, &quick.Config{MaxCount: 50}); err != nil {
		t.Error(err)
	}
}

// without returns all but one of the elements equal to f.
func without[T comparable](all []T, f T) (rest []T) {
	found := false
	for _, x := range all {
		if x == f && !found {
			found = true
			continue
		}
		rest = append(rest, x)
	}
	return rest
}

func BenchmarkPick(b *testing.B) {
	var s Set
	for range 4 {
		s.Add(config(1 << 40))
	}
	for i := range b.N {
		r := s.Pick(int64(i), 4096, Small)
		s.At(r).Start(int64(i), 4096, 1, Small)
		s.At(r).Done(4096, 1, Small, true, 0)
	}
}
