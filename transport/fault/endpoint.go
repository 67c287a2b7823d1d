package fault

import (
	"sync"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
)

// maxFlying bounds the slices of one endpoint that have not completed: while
// completions are held back, the transport inside has room for more.
const maxFlying = 1 << 16

// endpoint is an endpoint under a plan.
type endpoint struct {
	transport.Endpoint
	f        *faulty
	peer     *segment.Desc
	canceler transport.Canceler // nil: the endpoint inside cannot cancel
	timers   sync.WaitGroup     // held completions whose timer may fire

	// The rest is guarded by faulty.mu.
	flying  int
	busy    time.Time // until when a Slow rule keeps the endpoint busy
	down    time.Time // until when Post refuses
	broken  *Rule     // the Lose or Kill that broke it
	closing bool
}

// cancelable is an endpoint whose slices can be withdrawn.
type cancelable struct{ *endpoint }

// Unwrap returns the endpoint inside.
func (e *endpoint) Unwrap() any { return e.Endpoint }

// Post hands slices on in runs, up to each that a rule keeps from the endpoint
// inside.
func (e *endpoint) Post(s []transport.Slice) (n int, _ error) {
	for n < len(s) {
		run, stop, barred := e.admit(s[n:])
		if len(run) > 0 {
			k, err := e.Endpoint.Post(s[n : n+len(run)])
			n += k
			if err != nil {
				e.withdraw(run[k:], stop)
				return n, err
			}
		}
		switch {
		case barred != nil:
			return n, barred
		case stop != nil:
			if err := e.strike(&s[n], stop); err != nil {
				return n, err
			}
			n++
		}
	}
	return n, nil
}

// admit asks the plan about slices until a rule wants to stop one, or the
// endpoint takes no more, and records those before it as under way.
func (e *endpoint) admit(s []transport.Slice) (run []*flight, stop *verdict, barred error) {
	e.f.mu.Lock()
	defer e.f.mu.Unlock()
	for i := range s {
		if err := e.barred(); err != nil {
			return run, nil, err
		}
		v := e.f.plan.slice(e.peer.Name, s[i].Op, e.flying > 0)
		if v.rule != nil && v.rule.stops() {
			return run, &v, nil
		}
		run = append(run, e.launch(&s[i], v))
	}
	return run, nil, nil
}

// stops reports whether a slice that r strikes does not reach the endpoint
// inside.
func (r *Rule) stops() bool {
	return r.Do == Refuse || r.Do == Fail || r.Do == Lose || r.Do == Kill
}

// barred returns why the endpoint takes no slice now; faulty.mu is held.
func (e *endpoint) barred() error {
	switch {
	case e.closing:
		return e.refuse(errs.Closed, "the endpoint is closed: connect again")
	case e.broken != nil && (e.broken.Do == Kill || time.Now().Before(e.down)):
		return e.f.failure(e.broken, "post", e.peer)
	case e.flying >= maxFlying:
		return e.refuse(errs.Overloaded, "65536 slices have not completed")
	}
	return nil
}

// launch records a slice as under way; faulty.mu is held.
func (e *endpoint) launch(s *transport.Slice, v verdict) *flight {
	fl := &flight{ep: e, op: s.Op, bytes: uint64(len(s.Local)), verdict: v, done: transport.Completion{Tag: s.Tag}}
	e.f.mu.flights[s.Tag] = fl
	e.flying++
	return fl
}

// withdraw takes back slices that the endpoint inside refused, and what was to
// come after them.
func (e *endpoint) withdraw(run []*flight, stop *verdict) {
	e.f.mu.Lock()
	defer e.f.mu.Unlock()
	for _, fl := range run {
		delete(e.f.mu.flights, fl.done.Tag)
		e.flying--
		e.f.plan.undo(fl.verdict)
	}
	if stop != nil {
		e.f.plan.undo(*stop)
	}
}

// strike does to s what v says: nil when it was accepted, to fail by itself.
func (e *endpoint) strike(s *transport.Slice, v *verdict) error {
	e.f.mu.Lock()
	if err := e.barred(); err != nil {
		e.f.mu.Unlock()
		e.f.plan.undo(*v)
		return err
	}
	var ended []*flight
	var cancel []transport.Tag
	err := error(e.f.failure(v.rule, "post", e.peer))
	switch v.rule.Do {
	case Lose, Kill:
		ended, cancel = e.lose(v.rule)
	case Fail:
		fl := e.launch(s, *v)
		fl.ended, fl.done.Code, fl.done.Err, err = true, v.rule.code(), err, nil
		if v.rule.Delay > 0 {
			e.f.hold(fl, v.rule.Delay)
		} else {
			ended = append(ended, fl)
		}
	}
	e.f.mu.Unlock()
	e.f.release(ended)
	if e.canceler != nil && len(cancel) > 0 {
		e.canceler.Cancel(cancel)
	}
	return err
}

func (e *endpoint) refuse(code errs.Code, detail string) error {
	return &errs.Error{Op: "post", Peer: e.peer.Addr, Transport: e.f.name, Stage: "post", Reason: code, Detail: detail, Retryable: code == errs.Overloaded}
}

// lose breaks the endpoint. It returns the slices that have ended and are held
// back, and the tags of those that are still under way; faulty.mu is held.
func (e *endpoint) lose(r *Rule) (ended []*flight, tags []transport.Tag) {
	e.broken, e.down = r, time.Now().Add(r.Delay)
	for tag, fl := range e.f.mu.flights {
		if fl.ep != e {
			continue
		}
		fl.lost = r
		if fl.ended {
			ended = append(ended, fl)
		} else {
			tags = append(tags, tag)
		}
	}
	return ended, tags
}

// Cancel ends slices early: those that are held back at once, the others as the
// endpoint inside can.
func (e *cancelable) Cancel(tags []transport.Tag) {
	var held []*flight
	e.f.mu.Lock()
	for _, tag := range tags {
		if fl := e.f.mu.flights[tag]; fl != nil && fl.ep == e.endpoint && fl.ended {
			held = append(held, fl)
		}
	}
	e.f.mu.Unlock()
	e.f.release(held)
	e.canceler.Cancel(tags)
}

// Close closes the endpoint inside and delivers what is held back.
func (e *endpoint) Close() error {
	e.f.mu.Lock()
	e.closing = true
	e.f.mu.Unlock()
	err := e.Endpoint.Close()
	var held []*flight
	e.f.mu.Lock()
	for _, fl := range e.f.mu.flights {
		if fl.ep == e && fl.ended { // the others are being refused at this moment
			held = append(held, fl)
		}
	}
	e.f.mu.Unlock()
	e.f.release(held)
	e.timers.Wait()
	return err
}
