package engine

import (
	"sync"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/core"
	"github.com/tideway-io/tideway/transport"
)

// shard runs one core machine. Any goroutine that brings an event feeds it
// under the lock; the actions that follow are carried out, in order, by one
// goroutine at a time after the lock is released: the one that found nobody
// doing it. So an event from inside Post only adds to what the runner will do.
type shard struct {
	e      *Engine
	number int
	mu     struct {
		sync.Mutex
		core    *core.Shard
		todo    core.Actions // what the runner takes next
		spare   core.Actions // the arrays that it gave back
		running bool
		quiet   chan struct{} // closed when there is nothing more to do; nil while nobody waits
		owners  owners
		paths   map[core.PathID]*path
		removed []core.PathID // the last ones, still in paths because an End may name them
		timer   *time.Timer
		wake    core.Time // when timer fires; core.Never: it does not
	}
	post []transport.Slice // the runner's
	back []transport.Tag   // the runner's
	over []*transfer       // the runner's
}

// owners maps the scheduler's owner numbers to transfers: an owner is a slot,
// which a run has to itself, and a place in it.
type owners struct {
	slots []owned
	free  []uint64
}

type owned struct {
	ts   []*transfer // at most core.RunLen; not changed while it is here
	left int         // not removed
}

// add returns the owner number of the first; the others count up from it.
func (o *owners) add(ts []*transfer) uint64 {
	i := uint64(len(o.slots))
	if n := len(o.free); n > 0 {
		i = o.free[n-1]
		o.free = o.free[:n-1]
	} else {
		o.slots = append(o.slots, owned{})
	}
	o.slots[i] = owned{ts, len(ts)}
	return i * core.RunLen
}

// at returns n transfers from an owner number on.
func (o *owners) at(owner uint64, n int) []*transfer {
	first := int(owner % core.RunLen)
	return o.slots[owner/core.RunLen].ts[first : first+n]
}

// remove is at for transfers that have ended.
func (o *owners) remove(owner uint64, n int) []*transfer {
	ts, slot := o.at(owner, n), &o.slots[owner/core.RunLen]
	if slot.left -= n; slot.left == 0 {
		slot.ts = nil
		o.free = append(o.free, owner/core.RunLen)
	}
	return ts
}

// rounds is how many batches of actions a goroutine that came with an event of
// its own carries out before it hands the work to another one.
const rounds = 64

// event feeds the machine and sees to what follows.
func (s *shard) event(feed func(c *core.Shard, now core.Time, out *core.Actions)) {
	now := s.e.now()
	s.mu.Lock()
	feed(s.mu.core, now, &s.mu.todo)
	s.arm(now)
	s.run()
}

// run is called with the lock held and releases it.
func (s *shard) run() {
	if s.mu.running {
		s.mu.Unlock()
		return
	}
	s.mu.running = true
	for round := 0; !idle(&s.mu.todo); round++ {
		if round == rounds {
			s.mu.running = false
			s.mu.Unlock()
			s.e.background(func() {
				s.mu.Lock()
				s.run()
			})
			return
		}
		acts := s.mu.todo
		s.mu.todo = s.mu.spare
		s.mu.Unlock()
		s.do(&acts)
		acts.Reset()
		s.mu.Lock()
		s.mu.spare = acts
	}
	s.mu.running = false
	if s.mu.quiet != nil {
		close(s.mu.quiet)
		s.mu.quiet = nil
	}
	s.mu.Unlock()
}

// arm sets the timer to what the machine wants next. The lock is held.
func (s *shard) arm(now core.Time) {
	wake := s.mu.core.NextWake()
	if wake == s.mu.wake {
		return
	}
	s.mu.wake = wake
	if wake == core.Never {
		s.mu.timer.Stop()
		return
	}
	s.mu.timer.Reset(max(time.Duration(wake-now), 0))
}

// tick is what the timer runs.
func (s *shard) tick() {
	s.event(func(c *core.Shard, now core.Time, out *core.Actions) {
		s.mu.wake = core.Never
		c.Tick(now, out)
	})
}

// idle reports whether there is nothing to do.
func idle(a *core.Actions) bool {
	return len(a.Connect)+len(a.Posts)+len(a.Cancels)+len(a.Close)+len(a.Ends) == 0 && a.Fault == ""
}

func newShard(e *Engine, number int, cfg core.Config) *shard {
	cfg.Shard = number
	s := &shard{e: e, number: number}
	s.mu.core = core.NewShard(cfg)
	s.mu.paths = make(map[core.PathID]*path)
	s.mu.wake = core.Never
	s.mu.timer = time.AfterFunc(time.Hour, s.tick)
	s.mu.timer.Stop()
	return s
}

// look describes a path.
func (s *shard) look(id core.PathID, info *core.PathInfo) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.core.Path(s.e.now(), id, info)
}

// maxRemoved bounds the removed paths that are remembered for their names.
const maxRemoved = 256

// removePath takes q out of the machine; what is on it ends.
func (s *shard) removePath(q *path) {
	q.close()
	s.mu.Lock()
	s.mu.removed = append(s.mu.removed, q.id)
	if len(s.mu.removed) > maxRemoved {
		delete(s.mu.paths, s.mu.removed[0])
		s.mu.removed = s.mu.removed[1:]
	}
	s.mu.Unlock()
	s.event(func(c *core.Shard, now core.Time, out *core.Actions) {
		c.RemovePath(now, q.id, errs.Closed, errClosed, out)
	})
}

// close stops the clock of a shard whose transfers have all ended. What it
// returns is closed when whoever runs its actions is through with them.
func (s *shard) close() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.timer.Stop()
	quiet := make(chan struct{})
	if s.mu.running || !idle(&s.mu.todo) {
		s.mu.quiet = quiet
	} else {
		close(quiet)
	}
	return quiet
}
