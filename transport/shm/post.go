package shm

import (
	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
)

// flushAt is how many completions are delivered at once.
const flushAt = 64

// post is one call of Post under way: what it has gathered to be done, or
// reported, together.
type post struct {
	e      *endpoint
	budget int // bytes that it may still move itself

	buf  *segment.Buffer // of the slice before, so that a run of slices binds once
	b    *binding
	code errs.Code // why there is no b
	held *mapping  // in use

	done  [flushAt]transport.Completion
	ended int

	pulls  []byte // the message under way, with so many of one class in it
	asked  int
	class  transport.Class
	record request
}

// Post implements transport.Endpoint.
func (e *endpoint) Post(s []transport.Slice) (n int, err error) {
	var first *segment.Buffer
	if len(s) > 0 {
		first = s[0].Buffer
	}
	b, code, err := e.enter(first)
	if err != nil {
		return 0, err
	}
	p, _ := e.t.posts.Get().(*post)
	if p == nil {
		p = new(post)
	}
	p.e, p.budget, p.buf, p.b, p.code = e, inlinePost, first, b, code
	for n < len(s) {
		if err = p.add(&s[n]); err != nil {
			break
		}
		n++
	}
	p.finish()
	e.leave(1)
	return n, err
}

// add does one slice, gathers it, or makes it a job. An error refuses it.
func (p *post) add(s *transport.Slice) error {
	if s.Op != transport.Read && s.Op != transport.Write || s.Rail != 0 || s.Buffer == nil {
		return refuse(errs.Invalid, "post", "op %v, rail %d, buffer given: %t; want read or write, rail 0, a buffer", s.Op, s.Rail, s.Buffer != nil)
	}
	if s.Buffer != p.buf {
		p.letGo()
		p.buf = s.Buffer
		p.b, p.code = p.e.bind(s.Buffer)
	}
	b := p.b
	if b == nil {
		if p.code == errs.NotRegistered {
			return p.leave(s, asking)
		}
		p.end(s.Tag, p.code, nil)
		return nil
	}
	if code := b.check(s.Op, s.Offset, uint64(len(s.Local))); code != errs.OK || len(s.Local) == 0 {
		p.end(s.Tag, code, nil)
		return nil
	}
	if b.from == nil || b.from.state.Load() == useless {
		return p.attached(s)
	}
	return p.mapped(s)
}

// mapped copies a slice whose buffer can be mapped, or leaves it to a worker.
func (p *post) mapped(s *transport.Slice) error {
	m := p.b.from
	if p.held == nil && m.use() {
		p.held = m
	}
	switch {
	case p.held == nil && m.state.Load() < open:
		return p.leave(s, opening)
	case p.held != nil && p.small(s):
		code := p.b.copy(s.Op, s.Local, s.Offset)
		p.e.count(s.Op, len(s.Local), code)
		p.end(s.Tag, code, nil)
		return nil
	}
	return p.leave(s, running)
}

// small reports whether Post does the slice itself, and counts it.
func (p *post) small(s *transport.Slice) bool {
	if len(s.Local) > min(inlineSlice, p.budget) {
		return false
	}
	p.budget -= len(s.Local)
	return true
}

// leave makes a job of a slice, for the workers now or when the peer has answered.
func (p *post) leave(s *transport.Slice, ph phase) error {
	j, work, err := p.e.newJob(s, p.b, ph, nil)
	if work && !j.schedule() {
		p.e.discard(j)
		err = p.e.t.tooMuch()
	}
	return err
}

// attached leaves a slice to a worker that reads it, or asks the target to pull
// it. It reads nothing itself: the peer's memory may be such that the kernel
// takes its time.
func (p *post) attached(s *transport.Slice) error {
	switch {
	case s.Op == transport.Write && p.e.noPull == nil:
		return p.pull(s)
	case s.Op == transport.Write:
		p.end(s.Tag, errs.Unsupported, p.e.noPull)
		return nil
	case p.e.noRead != nil:
		p.end(s.Tag, errs.Unsupported, p.e.noRead)
		return nil
	}
	return p.leave(s, reading)
}

// pull adds a slice to the message that asks the target to pull.
func (p *post) pull(s *transport.Slice) error {
	if p.asked == maxBatch || p.asked > 0 && p.class != s.Class {
		p.send()
	}
	if _, _, err := p.e.newJob(s, p.b, pulling, &p.record); err != nil {
		return err
	}
	if p.class = s.Class; p.asked == 0 {
		p.pulls = appendHead(p.pulls[:0], head{kind: kindPull, class: s.Class})
	}
	p.pulls = appendRequest(p.pulls, &p.record)
	p.asked++
	return nil
}

// send sends the message under way. If the link has ended, its end ends the
// slices.
func (p *post) send() {
	if p.asked == 0 {
		return
	}
	setCount(p.pulls, p.asked)
	p.e.link.send(p.pulls, -1)
	p.asked = 0
}

// end keeps a completion for flush.
func (p *post) end(tag transport.Tag, code errs.Code, why error) {
	p.done[p.ended] = transport.Completion{Tag: tag, Code: code, Err: why}
	if p.ended++; p.ended == flushAt {
		p.flush()
	}
}

// flush delivers what end has kept.
func (p *post) flush() {
	if p.ended == 0 {
		return
	}
	p.e.t.env.Sink.Complete(p.done[:p.ended])
	clear(p.done[:p.ended])
	p.ended = 0
}

// letGo ends the use of the buffer of the slices before.
func (p *post) letGo() {
	if p.held != nil {
		p.held.drop()
	}
	p.held, p.buf, p.b, p.code = nil, nil, nil, errs.OK
}

// finish does all that is gathered and frees p.
func (p *post) finish() {
	p.send()
	p.flush()
	p.letGo()
	t := p.e.t
	p.e = nil
	t.posts.Put(p)
}
