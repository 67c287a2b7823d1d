// Package rail weighs the rails of one path: how much is in flight on each, how
// fast it is, whether it must rest, and which takes the next slice.
//
// It is told of starts and ends and knows nothing of slices' content, transfers
// or time beyond the now it is given, in nanoseconds.
package rail

import "math"

// Config configures one rail. Every field is set.
type Config struct {
	Window    uint64  // bytes in flight at most
	MaxWindow uint64  // up to where the window follows what is measured; not above Window: it is fixed
	Slices    int     // slices in flight at most
	Small     uint64  // bytes up to which a transfer is small, for sizing the reserve
	Penalty   float64 // multiplies the predicted finish
	HalfLife  int64   // nanoseconds after which a measurement counts half
	Backoff   Backoff
}

// load is bytes and slices in flight.
type load struct {
	bytes  uint64
	slices int
}

// has reports whether l with more slices of n bytes in all stays within most.
func (l load) has(n uint64, slices int, most load) bool {
	return l.bytes+n <= most.bytes && l.slices+slices <= most.slices
}

// Rail is one rail's present state.
//
// Of its window a part, the reserve, is kept free of bulk, so that small slices
// never wait for bulk ones to come back; they may use the whole window while no
// bulk is due.
type Rail struct {
	cfg         Config
	window      load // for all
	share       load // for bulk
	reserve     load // for small slices while bulk is due
	bulk, small load // in flight

	served  uint64  // bytes completed since mark
	mark    int64   // start of the present measurement
	rate    float64 // bytes per nanosecond, 0 until measured
	trip    int64   // the shortest time that a slice took, 0 until measured
	rest    Rest
	trusted bool // not resting and not on trial, as of the last look
}

// New returns an idle rail.
func New(cfg Config) Rail {
	n := max(cfg.Slices, 1)
	r := Rail{cfg: cfg, trusted: true}
	r.window.slices, r.reserve.slices = n, n/8
	r.share.slices = n - r.reserve.slices
	r.resize(max(cfg.Window, 1))
	return r
}

// resize sets the bytes of the window and of its parts.
func (r *Rail) resize(w uint64) {
	r.window.bytes, r.reserve.bytes = w, max(w/8, min(r.cfg.Small, w/2))
	r.share.bytes = w - r.reserve.bytes
}

// Kind says who wants room.
type Kind uint8

// The kinds of slices, by the transfer that they belong to.
const (
	Bulk    Kind = iota // up to the share
	Small               // up to the whole window
	Reserve             // small, while bulk is due and waits for room
)

// Room reports whether slices of n bytes in all fit beside what is in flight.
func (r *Rail) Room(n uint64, slices int, k Kind) bool {
	all := load{r.bulk.bytes + r.small.bytes, r.bulk.slices + r.small.slices}
	switch k {
	case Bulk:
		return all.has(n, slices, r.window) && r.bulk.has(n, slices, r.share)
	case Reserve:
		return all.has(n, slices, r.window) && r.small.has(n, slices, r.reserve)
	}
	return all.has(n, slices, r.window)
}

// Start notes slices of n bytes in all as in flight.
func (r *Rail) Start(now int64, n uint64, slices int, k Kind) {
	if r.bulk.slices+r.small.slices == 0 {
		r.mark = now
	}
	l := &r.small
	if k == Bulk {
		l = &r.bulk
	}
	l.bytes += n
	l.slices += slices
}

// Done notes that slices with n bytes in all are not in flight any more, whether
// they were served, and how long it took since they were posted; 0: not known.
func (r *Rail) Done(n uint64, slices int, k Kind, served bool, took int64) {
	l := &r.small
	if k == Bulk {
		l = &r.bulk
	}
	l.bytes -= n
	l.slices -= slices
	if !served {
		return
	}
	r.served += n
	if took > 0 && (r.trip == 0 || took < r.trip) {
		r.trip = took
	}
}

// Settle measures after a run of Done. The sample is bytes served per time that
// the rail was busy, so it is service and not queueing. A rail that ran dry may
// have been faster than what it was given: then only a higher sample counts.
// The window becomes twice what is under way at that rate: a window too small
// for the round trip holds the rate down, so the one lifts the other until the
// rate is the rail's own.
func (r *Rail) Settle(now int64) {
	if r.served == 0 {
		return
	}
	r.rest.OK(now)
	elapsed := now - r.mark
	if elapsed <= 0 {
		return
	}
	sample := float64(r.served) / float64(elapsed)
	r.served, r.mark = 0, now
	dry := r.bulk.slices+r.small.slices == 0
	switch {
	case r.rate == 0:
		r.rate = sample
	case !dry || sample > r.rate:
		r.rate += (sample - r.rate) * (1 - math.Exp2(-float64(elapsed)/float64(r.cfg.HalfLife)))
	}
	if most := r.cfg.MaxWindow; most > r.cfg.Window {
		r.resize(max(r.cfg.Window, uint64(min(2*r.rate*float64(r.trip), float64(most)))))
	}
}

// Fail notes that the rail failed a slice. It rests.
func (r *Rail) Fail(now int64) { r.rest.Fail(now, r.cfg.Backoff) }

// InFlight returns the bytes and slices in flight.
func (r *Rail) InFlight() (bytes uint64, slices int) {
	return r.bulk.bytes + r.small.bytes, r.bulk.slices + r.small.slices
}

// Window returns the bytes that may be in flight now.
func (r *Rail) Window() uint64 { return r.window.bytes }

// Share returns the bytes of bulk that may be in flight: the longest bulk slice.
func (r *Rail) Share() uint64 { return r.share.bytes }

// BytesPerSecond returns the measured speed, 0 before the first measurement.
func (r *Rail) BytesPerSecond() float64 { return r.rate * 1e9 }

// Resting reports whether the rail is left alone where another one will do.
func (r *Rail) Resting(now int64) bool { return r.rest.Resting(now) }

// finish predicts how long n more bytes take, from now.
func (r *Rail) finish(n uint64, rate float64) float64 {
	return float64(r.bulk.bytes+r.small.bytes+n) / rate * r.cfg.Penalty
}

// idle reports whether nothing is in flight.
func (r *Rail) idle() bool { return r.bulk.slices+r.small.slices == 0 }
