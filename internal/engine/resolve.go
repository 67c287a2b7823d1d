package engine

import (
	"context"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/core"
)

// resolve has the descriptors fetched that transfers of one call wait for: one
// goroutine and one fetch for each segment, however many the transfers are.
func (e *Engine) resolve(ts []*transfer) {
	for len(ts) > 0 {
		s := ts[0].remote.Segment
		var same, rest []*transfer
		for _, t := range ts {
			if t.remote.Segment == s {
				same = append(same, t)
			} else {
				rest = append(rest, t)
			}
		}
		canceled := same[0].batch.canceled(same[0].cancels)
		e.background(func() { e.fetchFor(s, same, canceled) })
		ts = rest
	}
}

// fetchFor fetches the descriptor of s and then schedules ts. Until then they are
// this goroutine's: it ends those whose deadline comes first, and all of them
// when they are cancelled.
func (e *Engine) fetchFor(s *Segment, ts []*transfer, canceled <-chan struct{}) {
	ctx, cancel := context.WithTimeout(e.ctx, e.cfg.ConnectTimeout)
	defer cancel()
	fetched := make(chan error, 1)
	e.background(func() { fetched <- s.Refresh(ctx) })
	for ts, due := e.expire(ts); len(ts) > 0; ts, due = e.expire(ts) {
		select {
		case err := <-fetched:
			e.resolved(ts, err)
			return
		case <-canceled:
			for _, t := range ts {
				e.fail(t, t.wrong(errs.New(errs.Canceled, t.op.String(), "cancelled before it was sent")))
			}
			return
		case <-due:
		}
	}
}

// resolved goes on with transfers whose descriptor was fetched, or was not.
func (e *Engine) resolved(ts []*transfer, err error) {
	if err == nil {
		for _, t := range ts {
			t.resolved = true
		}
		e.start(ts)
		return
	}
	if why := e.over(); why != nil {
		err = why
	}
	for _, t := range ts {
		e.fail(t, t.wrong(err))
	}
}

// expire ends those of the transfers whose deadline has passed. It returns the
// others, and what fires at the next deadline.
func (e *Engine) expire(ts []*transfer) ([]*transfer, <-chan time.Time) {
	now, next := e.now(), core.Never
	live := ts[:0]
	for _, t := range ts {
		if t.deadline != 0 && t.deadline <= now {
			e.fail(t, t.wrong(errs.New(errs.Deadline, t.op.String(), "it came while the descriptor was fetched")))
			continue
		}
		if t.deadline != 0 {
			next = min(next, t.deadline)
		}
		live = append(live, t)
	}
	if next == core.Never {
		return live, nil
	}
	return live, time.After(time.Duration(next - now))
}
