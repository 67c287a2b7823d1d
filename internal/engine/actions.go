package engine

import (
	"fmt"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/core"
	"github.com/tideway-io/tideway/transport"
)

// do carries out actions without the lock. It runs in one goroutine at a time.
func (s *shard) do(a *core.Actions) {
	for i := range a.Posts {
		s.postRun(&a.Posts[i])
	}
	for _, c := range a.Cancels {
		if canceler, ok := transport.As[transport.Canceler](s.path(c.Path).endpoint()); ok {
			canceler.Cancel(c.Tags)
		}
	}
	for _, id := range a.Close {
		s.path(id).drop()
	}
	for _, id := range a.Connect {
		if q := s.path(id); q != nil {
			s.connect(q)
		}
	}
	s.ends(a.Ends)
	if a.Fault != "" {
		s.e.poison(a.Fault)
	}
}

// path returns a path by its number, nil when it was removed long ago.
func (s *shard) path(id core.PathID) *path {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.paths[id]
}

// nameOf is what carried a transfer over q.
func nameOf(q *path) string {
	if q == nil {
		return ""
	}
	return q.tr.name
}

// carrier is the name of the transport of a path, empty for a transfer that
// ended before it had one.
func (s *shard) carrier(id core.PathID) string {
	return nameOf(s.path(id))
}

// addPath gives q a number in the machine; false when it has no room.
func (s *shard) addPath(q *path) bool {
	caps := q.tr.transport.Caps()
	s.mu.Lock()
	defer s.mu.Unlock()
	q.id = s.mu.core.AddPath(core.PathSpec{MaxSlice: caps.MaxSlice, Fences: caps.Fences})
	if q.id == 0 {
		return false
	}
	s.mu.paths[q.id] = q
	return true
}

// connect opens q's endpoint in a goroutine and reports how that went.
func (s *shard) connect(q *path) {
	started := s.e.spawn(func() {
		ep, err := q.connect(s.e.ctx)
		s.event(func(c *core.Shard, now core.Time, out *core.Actions) {
			if err != nil {
				c.ConnectFailed(now, q.id, errs.Of(err), err, out)
				return
			}
			c.Connected(now, q.id, rails(ep), out)
		})
	})
	if !started {
		s.event(func(c *core.Shard, now core.Time, out *core.Actions) {
			c.ConnectFailed(now, q.id, errs.Closed, errClosed, out)
		})
	}
}

func rails(ep transport.Endpoint) []core.RailSpec {
	list := ep.Rails()
	out := make([]core.RailSpec, len(list))
	for i, r := range list {
		out[i].Window = r.Window
	}
	return out
}

var errGone = errs.New(errs.LaneLost, "post", "the endpoint is gone")

// postRun hands a run of slices to the endpoint and gives back to the machine
// those that it refused.
func (s *shard) postRun(p *core.Post) {
	s.post = s.post[:0]
	s.mu.Lock()
	q := s.mu.paths[p.Path]
	for i := range p.Slices {
		c := &p.Slices[i]
		ts := s.mu.owners.at(c.Owner, max(int(c.Run), 1))
		ts[0].batch.path.Store(q)
		for k, t := range ts {
			local := t.local
			if c.Run == 0 {
				local = local[c.Offset : c.Offset+c.Length]
			}
			s.post = append(s.post, transport.Slice{
				Op: c.Op, Class: c.Class, Rail: c.Rail, Retry: c.Retry,
				Local: local, Buffer: t.target, Offset: t.offset + c.Offset, Tag: c.Tag + transport.Tag(k),
			})
		}
	}
	s.mu.Unlock()
	n, err := 0, error(errGone)
	if ep := q.endpoint(); ep != nil {
		n, err = ep.Post(s.post)
	}
	s.back = s.back[:0]
	for i := range s.post[n:] {
		s.back = append(s.back, s.post[n+i].Tag)
	}
	clear(s.post)
	if len(s.back) == 0 {
		return
	}
	s.event(func(c *core.Shard, now core.Time, out *core.Actions) {
		c.Refused(now, p.Path, s.back, errs.Of(err), err, out)
	})
}

// Complete implements transport.Sink for every endpoint of the engine.
func (e *Engine) Complete(done []transport.Completion) {
	for len(done) > 0 {
		shard := core.TagShard(done[0].Tag)
		n := 1
		for n < len(done) && core.TagShard(done[n].Tag) == shard {
			n++
		}
		run := done[:n]
		if shard >= len(e.shards) {
			e.poison(fmt.Sprintf("completion of tag %#x (%v), which no shard made", uint64(done[0].Tag), done[0].Code))
			return
		}
		e.shards[shard].event(func(c *core.Shard, now core.Time, out *core.Actions) {
			c.Completed(now, run, out)
		})
		done = done[n:]
	}
}

// ends reports the ends of transfers to their batches, those of one batch
// together.
func (s *shard) ends(ends []core.End) {
	if len(ends) == 0 {
		return
	}
	s.mu.Lock()
	of, carrier := ends[0].Path, nameOf(s.mu.paths[ends[0].Path])
	for i := range ends {
		s.over = append(s.over, s.mu.owners.remove(ends[i].Owner, max(ends[i].Run, 1))...)
	}
	s.mu.Unlock()
	for over := s.over; len(ends) > 0; {
		path, n, bytes, first := ends[0].Path, 0, uint64(0), over[0]
		for len(ends) > 0 && ends[0].Code == errs.OK && ends[0].Path == path && over[n].joins(first) {
			s.e.counts.attempts(ends[0].Attempts)
			n += max(ends[0].Run, 1)
			bytes += ends[0].Bytes
			ends = ends[1:]
		}
		if n > 0 {
			if path != of {
				of, carrier = path, s.carrier(path)
			}
			s.e.settle(over[:n], outcome{bytes: bytes, carrier: carrier})
			over = over[n:]
			continue
		}
		s.failed(first, &ends[0])
		ends, over = ends[1:], over[1:]
	}
	clear(s.over)
	s.over = s.over[:0]
}

// failed ends t with the error that the scheduler found.
func (s *shard) failed(t *transfer, end *core.End) {
	s.e.counts.attempts(end.Attempts)
	err := s.failure(t, end)
	foreign := t.view.desc.Incarnation == 0 // which may have come back with another data port, and nothing tells
	if err.Is(errs.ErrStale) || end.Code == errs.NotRegistered || foreign && err.Is(errs.ErrUnreachable) {
		t.remote.Segment.stale.Store(true)
	}
	if t.suspicious(s.e, err) {
		t.remote.Segment.suspect(t, err)
		return
	}
	s.e.fail(t, err)
}

// failure builds the error of a transfer that the scheduler ended.
func (s *shard) failure(t *transfer, end *core.End) *errs.Error {
	err := &errs.Error{
		Op: t.op.String(), Segment: t.targetName(), Peer: t.view.peer.addr(), Transport: s.carrier(end.Path), Stage: "wire",
		Reason: end.Code, Retryable: end.Retryable, InDoubt: end.InDoubt, Err: end.Err,
	}
	if why := s.e.over(); why != nil && cutShort(end.Code) {
		err.Reason, err.Retryable, err.Err = why.Reason, false, why
	}
	for _, a := range end.Attempts {
		err.Stage = "wire" // of the last one
		if a.Rail < 0 {
			err.Stage = "connect"
		}
		err.Attempts = append(err.Attempts, errs.Attempt{Transport: s.carrier(a.Path), Reason: a.Code, Err: a.Err})
	}
	if err.Err == nil {
		err.Detail = advice(end.Code)
	}
	return err
}

// cutShort reports whether the end of the engine can look like c to a transfer.
func cutShort(c errs.Code) bool {
	k := c.Kind()
	return k == errs.ErrClosed || k == errs.ErrUnreachable
}

// advice says what a code means for a request, and what to do, where nobody said
// more.
func advice(c errs.Code) string {
	switch c {
	case errs.Canceled:
		return "withdrawn by Cancel, or by the end of the context of Do"
	case errs.Deadline:
		return "the request's deadline passed before it was done"
	case errs.Revoked, errs.NotRegistered:
		return "the owner has closed the buffer; look it up again"
	case errs.Restarted, errs.Stale:
		return "the buffer is not what it was, or its owner restarted; look the buffer up again"
	case errs.Denied:
		return "the owner does not allow it; it chooses the access when it registers the buffer"
	}
	return ""
}
