package tcp

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tideway-io/tideway/transport"
)

// Spinning. A thread that sleeps costs 50 us to wake on a virtual machine, at both
// ends of a round trip; a request of 4 KiB takes 10. So after traffic a target's
// receiver looks at its empty socket for a while before it parks, and at the
// initiator whoever is the only one to wait receives himself, see Progress. Both
// give way to other threads at each look, and stop trying where it was of no use.

// spinTime is how long an empty socket is looked at.
const spinTime = 100 * time.Microsecond

// crowded is how long giving way takes when another thread used it. Then it is
// better to sleep: who wakes up is given an idle processor, who spins on a shared
// one is not moved to another, and two that wait for each other take turns there.
const crowded = 20 * time.Microsecond

// service is what the peer needs for so many bytes at 4 GB/s, at most for 1 MiB: by
// then some of it must have come.
func service(n uint64) time.Duration { return time.Duration(min(n, 1<<20) / 4) }

// spinner is a transport's permission to spin: one of its goroutines at a time.
type spinner struct{ taken atomic.Bool }

func (s *spinner) take() bool {
	return s != nil && !s.taken.Load() && s.taken.CompareAndSwap(false, true)
}
func (s *spinner) give() { s.taken.Store(false) }

// patience says whether to spin: after each time in vain not for the next so many
// occasions, twice as many each time. An idle or slow lane so costs nothing.
type patience struct{ skip, last uint8 }

const maxSkip = 63

func (p *patience) may() bool {
	if p.skip > 0 {
		p.skip--
		return false
	}
	return true
}

func (p *patience) count(useful bool) {
	if useful {
		*p = patience{}
		return
	}
	p.last = min(2*p.last+1, maxSkip)
	p.skip = p.last
}

// linger spins until something was received, or for spinTime. The caller is the
// receiver and holds recv.
func (l *lane) linger() bool {
	if l.blocked.Load() || !l.spin.may() || !l.spinner.take() {
		return false
	}
	defer l.spinner.give()
	if !l.hush() {
		return false
	}
	start := time.Now()
	for !l.ending.Load() {
		if l.receive() > 0 {
			l.spin.count(true)
			return true
		}
		now := time.Now()
		if now.Sub(start) > spinTime {
			break
		}
		if yield(); time.Since(now) > crowded {
			return false
		}
	}
	l.spin.count(false)
	return false
}

// hush has what arrives wake nobody. The caller holds recv and is in a call of
// the link.
func (l *lane) hush() bool {
	if !l.hushed {
		l.hushed = l.link.hush(true)
	}
	return l.hushed
}

// unhush ends that and reports whether it had to.
func (l *lane) unhush() bool {
	if !l.hushed {
		return false
	}
	l.hushed = false
	l.link.hush(false)
	return true
}

// yield lets another thread have the CPU if one is waiting for it.
func yield() { _, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

// Progress receives for a sole waiter: it looks at the lanes that owe something
// until he is satisfied, see transport.Progressor. Their receivers stay in the
// netpoller, and are not woken.
func (e *Endpoint) Progress(w transport.Waiter, budget time.Duration) (done int) {
	if !e.t.spinner.take() {
		return 0
	}
	defer e.t.spinner.give()
	if e.owed() > leadMost || !e.patience.may() {
		return 0
	}
	var few [maxLanes + 2]*outbound // as many as one rail has; more allocate
	led := few[:0]
	for _, o := range *e.table.Load() {
		if o != nil && o.init.load.Load() > 0 && o.lane.recv.TryLock() {
			if o.lane.lead(leadStart); o.lane.hushed {
				led = append(led, o)
				continue
			}
			o.lane.recv.Unlock()
		}
	}
	if len(led) > 0 {
		done = e.lead(led, w, budget)
	}
	for _, o := range led {
		o.lane.lead(leadEnd)
		o.lane.recv.Unlock()
	}
	return done
}

// leadMost is up to how many bytes under way a waiter receives itself.
const leadMost = 16 << 20

// owed returns the bytes under way.
func (e *Endpoint) owed() (n uint64) {
	for _, o := range *e.table.Load() {
		if o != nil {
			n += o.init.load.Load()
		}
	}
	return n
}

// lead looks at lanes in turns. The caller holds their recv.
func (e *Endpoint) lead(led []*outbound, w transport.Waiter, budget time.Duration) (done int) {
	start := time.Now()
	last := start
	limit := spinTime + service(e.owed())
	for {
		found, ended := false, 0
		for _, o := range led {
			ended += o.lane.lead(leadOn)
			found = found || o.lane.found > 0
		}
		if done += ended; ended > 0 && w.Satisfied() {
			e.patience.count(true)
			return done
		}
		now := time.Now()
		switch {
		case found:
			last = now
		case now.Sub(last) > limit:
			e.patience.count(done > 0)
			return done
		default:
			if yield(); time.Since(now) > crowded {
				return done
			}
		}
		if now.Sub(start) > budget {
			return done
		}
	}
}

// The parts of leading a lane, each in a call of its link.
const (
	leadStart = iota
	leadOn
	leadEnd
)

// lead does one part and returns how many slices completed. The caller holds recv.
func (l *lane) lead(part int) int {
	i, ok := l.m.(*initiator)
	if !ok {
		return 0
	}
	before := i.completed
	l.part, l.found = part, 0
	_ = l.link.poll() // fails if the lane has ended: the receiver does the rest
	return i.completed - before
}

// step is what poll calls.
func (l *lane) step() {
	switch l.part {
	case leadStart:
		l.hush()
	case leadOn:
		l.found = l.receive()
	case leadEnd:
		l.rx.Lock()
		l.m.park()
		l.rx.Unlock()
		l.unhush() // which tells the receiver of what has come meanwhile
	}
}
