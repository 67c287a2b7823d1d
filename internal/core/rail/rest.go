package rail

// Backoff says how long to rest after failures. Times are nanoseconds.
type Backoff struct {
	Free     uint8 // this many failures in a row cost no rest
	Min, Max int64 // the first rest, and the longest
}

// Rest is the cooldown of a rail or a path: each rest is twice as long as the
// one before, and what then stays well for as long as its last rest is as good
// as new. The zero value has never failed.
type Rest struct {
	fails uint8
	until int64 // end of the present or last rest
	well  int64 // since when it has worked again; 0: not yet
}

// Fail notes a failure and returns when the rest ends, now if there is none.
// Failures while it rests are the same trouble and do not count again.
func (r *Rest) Fail(now int64, b Backoff) int64 {
	if now < r.until {
		return r.until
	}
	if r.well != 0 && now-r.well >= max(r.length(b), b.Min) {
		r.fails = 0
	}
	if r.fails < 255 {
		r.fails++
	}
	r.well = 0
	r.until = now + r.length(b)
	return r.until
}

// length is the rest after the failures so far.
func (r *Rest) length(b Backoff) int64 {
	if r.fails <= b.Free {
		return 0
	}
	n := b.Min
	for range r.fails - b.Free - 1 {
		if n >= b.Max/2 {
			return b.Max
		}
		n *= 2
	}
	return min(n, b.Max)
}

// OK notes that it works. It means nothing during a rest: what succeeds then
// was started before.
func (r *Rest) OK(now int64) {
	if r.fails > 0 && r.well == 0 && now >= r.until {
		r.well = max(now, 1)
	}
}

// Until returns the end of the present or last rest.
func (r *Rest) Until() int64 { return r.until }

// Resting reports whether it must be left alone.
func (r *Rest) Resting(now int64) bool { return now < r.until }

// Trial reports whether it has failed and has not worked since: it may be tried
// once at a time (half-open).
func (r *Rest) Trial() bool { return r.fails > 0 && r.well == 0 }
