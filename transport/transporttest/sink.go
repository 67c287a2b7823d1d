package transporttest

import (
	"fmt"
	"sync"
	"time"

	"github.com/tideway-io/tideway/transport"
)

// sink records completions and everything that is wrong with them: a second one
// for the same slice, one for a slice that was refused, one that nobody knows.
type sink struct {
	mu struct {
		sync.Mutex
		ops    map[transport.Tag]*op
		faults []string
		ended  int           // completions of accepted or offered slices so far
		moved  chan struct{} // closed and renewed with each batch
	}
}

// op is what the sink knows of one slice.
type op struct {
	slice   transport.Slice
	refused bool
	ended   bool // a completion was delivered
	visible bool // its hook has returned: waiters may see it
	done    transport.Completion
	hook    func(*op) // runs in the completing goroutine, before anybody is told
}

func newSink() *sink {
	s := &sink{}
	s.mu.ops = map[transport.Tag]*op{}
	s.mu.moved = make(chan struct{})
	return s
}

// offer announces slices that are about to be posted: their completions may
// come from inside Post.
func (s *sink) offer(slices []transport.Slice, hook func(*op)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sl := range slices {
		s.mu.ops[sl.Tag] = &op{slice: sl, hook: hook}
	}
}

// refuse records that slices were not accepted.
func (s *sink) refuse(slices []transport.Slice) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sl := range slices {
		o := s.mu.ops[sl.Tag]
		o.refused = true
		if o.ended {
			s.fault("slice %d was refused by Post, but completed with %v", sl.Tag, o.done.Code)
		}
	}
}

// fault notes a broken rule; s.mu is held.
func (s *sink) fault(format string, args ...any) {
	if len(s.mu.faults) < 20 {
		s.mu.faults = append(s.mu.faults, fmt.Sprintf(format, args...))
	}
}

// Complete takes completions from the transport.
func (s *sink) Complete(done []transport.Completion) {
	fresh := make([]*op, 0, len(done))
	s.mu.Lock()
	for _, c := range done {
		if o := s.admit(c); o != nil {
			fresh = append(fresh, o)
		}
	}
	s.mu.Unlock()
	for _, o := range fresh {
		if o.hook != nil {
			o.hook(o)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range fresh {
		o.visible = true
		s.mu.ended++
	}
	close(s.mu.moved)
	s.mu.moved = make(chan struct{})
}

// admit records one completion and returns its op if it is the first one.
func (s *sink) admit(c transport.Completion) *op {
	o := s.mu.ops[c.Tag]
	switch {
	case o == nil:
		s.fault("completion for tag %d (%v), which was never posted", c.Tag, c.Code)
		return nil
	case o.ended:
		s.fault("slice %d completed twice: %v, then %v", c.Tag, o.done.Code, c.Code)
		return nil
	case o.refused:
		s.fault("slice %d was refused by Post, but completed with %v", c.Tag, c.Code)
		return nil
	}
	o.ended, o.done = true, c
	return o
}

// faults returns what was wrong so far.
func (s *sink) faults() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.mu.faults...)
}

// count returns how many slices have ended, and a channel that is closed when
// more do.
func (s *sink) count() (int, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.ended, s.mu.moved
}

// pending returns those of tags that have not ended.
func (s *sink) pending(tags []transport.Tag) (open []transport.Tag, moved <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range tags {
		if o := s.mu.ops[t]; o == nil || !o.visible && !o.refused {
			open = append(open, t)
		}
	}
	return open, s.mu.moved
}

// accepted returns the tags that were accepted and have not ended.
func (s *sink) accepted() (open []transport.Tag) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for t, o := range s.mu.ops {
		if !o.visible && !o.refused {
			open = append(open, t)
		}
	}
	return open
}

// wait returns those of tags that have not ended within d.
func (s *sink) wait(tags []transport.Tag, d time.Duration) []transport.Tag {
	timeout := time.NewTimer(d)
	defer timeout.Stop()
	for {
		open, moved := s.pending(tags)
		if len(open) == 0 {
			return nil
		}
		tags = open
		select {
		case <-moved:
		case <-timeout.C:
			return open
		}
	}
}

// outcome returns how the slice tagged t ended.
func (s *sink) outcome(t transport.Tag) transport.Completion {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.ops[t].done
}
