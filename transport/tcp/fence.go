package tcp

import (
	"context"
	"slices"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/transport"
)

// fenceWait bounds what a fence may take: half of StallTimeout, at most 2 s; a
// tenth of it, at most half a second, when the lane was lost because the peer is
// silent, since one that is not silent after all answers at once.
func (e *Endpoint) fenceWait(why errs.Code) time.Duration {
	stall := e.t.env.Limits.StallTimeout
	if why == errs.Unresponsive {
		return min(stall/10, 500*time.Millisecond)
	}
	return min(stall/2, 2*time.Second)
}

// settle completes Writes whose lane ended before they were acknowledged: after
// a fence they can touch nothing any more; without one they are in doubt.
func (e *Endpoint) settle(o *outbound, cause error) {
	code, err := lostCode(cause), cause
	doubt := code == errs.Closed // the endpoint is being closed: nobody will try again here
	if !doubt {
		if ferr := e.fence(o, e.fenceWait(code)); ferr != nil {
			code, err, doubt = fenceCode(ferr), ferr, true
		}
	}
	e.mu.Lock()
	unsure := e.mu.unsure[o]
	delete(e.mu.unsure, o)
	e.mu.Unlock()
	for k := range unsure {
		unsure[k].Code, unsure[k].InDoubt, unsure[k].Err = code, doubt, err
	}
	if len(unsure) > 0 {
		e.t.env.Sink.Complete(unsure)
	}
}

// cancelUnsure takes Writes that wait for a fence out of what settle will
// complete. Their local ranges are quiet already.
func (e *Endpoint) cancelUnsure(tags map[transport.Tag]struct{}) (done []transport.Completion) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for o, unsure := range e.mu.unsure {
		e.mu.unsure[o] = slices.DeleteFunc(unsure, func(c transport.Completion) bool {
			_, ok := tags[c.Tag]
			if ok {
				done = append(done, transport.Completion{Tag: c.Tag, Code: errs.Canceled, InDoubt: true})
			}
			return ok
		})
	}
	return done
}

// fenceCode is the code of Writes that could not be fenced because of err.
func fenceCode(err error) errs.Code {
	switch code := errs.Of(err); code {
	case errs.Refused, errs.Restarted, errs.Unresponsive, errs.NameLookup, errs.Closed:
		return code
	case errs.Deadline:
		return errs.Unresponsive
	}
	return errs.LaneLost
}

// fence has the target end a lost lane and returns nil once it has. It asks on
// another lane of the endpoint, or opens one.
func (e *Endpoint) fence(lost *outbound, wait time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	table := *e.table.Load()
	first := lost.slot / e.per * e.per // of its rail, which may be what is broken: asked last
	for _, via := range slices.Concat(table[:first], table[first+e.per:], table[first:first+e.per]) {
		if via != nil && via != lost && e.fenceOver(ctx, via, lost) == nil {
			return nil
		}
	}
	if ctx.Err() != nil {
		return errs.New(errs.Unresponsive, "fence", "no answer on another lane within %v", wait)
	}
	via, err := e.dial(ctx, lost.slot)
	if err != nil {
		return err
	}
	err = e.fenceOver(ctx, via, lost)
	e.keep(via)
	return err
}

// fenceOver asks on one lane.
func (e *Endpoint) fenceOver(ctx context.Context, via, lost *outbound) error {
	f := fence{session: e.session, lane: lost.number}
	answered := make(chan struct{})
	e.mu.Lock()
	e.mu.fences[f] = answered
	e.mu.Unlock()
	defer func() {
		e.mu.Lock()
		delete(e.mu.fences, f)
		e.mu.Unlock()
	}()
	via.init.sendFence(f)
	via.lane.post()
	select {
	case <-answered:
		return nil
	case <-via.lane.closing:
		return via.lane.cause()
	case <-ctx.Done():
		return errs.New(errs.Unresponsive, "fence", "the peer did not answer in time")
	}
}

// sendFence plans a Fence frame.
func (i *initiator) sendFence(f fence) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if !i.mu.dead {
		i.mu.fences = append(i.mu.fences, f)
	}
}

// fenced takes the answer.
func (e *Endpoint) fenced(f fence) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if answered, ok := e.mu.fences[f]; ok {
		close(answered)
		delete(e.mu.fences, f)
	}
}

// maxFences bounds the fences of one lane that are under way, and the answers to
// them that wait for a peer to take them.
const maxFences = 64

// fence ends another lane of the same peer for it, and answers once nothing on
// it can touch memory any more.
//
// A lane that is not in the table is answered at once: an initiator sends Writes
// only after its welcome, and a lane enters the table before that and leaves it
// when all that it started has returned. So it never had a Write or is quiet.
func (in *inbound) fence(f fence) error {
	t := in.t
	t.in.Lock()
	victim := t.in.lanes[laneID{in.id.from, f.session, f.lane}]
	t.in.Unlock()
	switch {
	case victim == nil:
		in.target.reply = true // called by the receiver
		return in.target.answerFence(f)
	case victim == in:
		return errs.New(errs.Invalid, "receive fence", "lane %d asks to end itself", f.lane)
	case in.fences.Add(1) > maxFences:
		return errs.New(errs.Overloaded, "receive fence", "%d fences are under way", maxFences)
	}
	victim.lane.fail(errs.New(errs.LaneLost, "serve", "the initiator gave the lane up"))
	t.in.wg.Go(func() {
		select {
		case <-victim.lane.done:
			if err := in.target.answerFence(f); err != nil {
				in.lane.fail(err)
			}
			in.lane.post()
		case <-in.lane.closing:
		}
		in.fences.Add(-1)
	})
	return nil
}

// answerFence plans a Fenced frame. The error ends the lane of a peer that asks
// and takes no answers.
func (t *target) answerFence(f fence) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.mu.fenced) == maxFences {
		return errs.New(errs.Overloaded, "answer fence", "%d answers wait for the peer to take them", maxFences)
	}
	t.mu.fenced = append(t.mu.fenced, f)
	return nil
}
