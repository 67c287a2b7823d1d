// Package fault is a decorator that makes a transport fail by rule: connections
// that cannot be made, posts that are refused, slices that fail before or after
// they are done, slow and late completions, lost lanes, dead endpoints.
//
// The decorated transport keeps the promises of the contract whatever the rules
// do: each accepted slice completes once, a refused one was not started, and
// nothing is said to be beyond doubt that is not. So what an engine does wrong
// with it is wrong. With a Plan without rules nothing changes.
package fault

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
)

// Wrap returns d with the failures that p plans.
func Wrap(d transport.Driver, p *Plan) transport.Driver { return &driver{d, p} }

type driver struct {
	transport.Driver
	plan *Plan
}

// Unwrap returns the driver inside.
func (d *driver) Unwrap() any { return d.Driver }

// Open opens the transport inside with a sink that comes first.
func (d *driver) Open(ctx context.Context, env transport.Env) (transport.Transport, error) {
	f := &faulty{plan: d.plan, name: d.Name(), sink: env.Sink}
	f.mu.flights = map[transport.Tag]*flight{}
	env.Sink = f
	var err error
	f.Transport, err = d.Driver.Open(ctx, env)
	if err != nil {
		return nil, err
	}
	return f, nil
}

// faulty is a transport and the sink that its slices complete to.
type faulty struct {
	transport.Transport
	plan *Plan
	name string
	sink transport.Sink

	mu struct {
		sync.Mutex
		flights map[transport.Tag]*flight
	}
}

// flight is one accepted slice. Fields are guarded by faulty.mu.
type flight struct {
	verdict
	ep    *endpoint
	op    transport.Op
	bytes uint64
	lost  *Rule                // the Lose or Kill that came over it, or nil
	ended bool                 // done is its end; only the rules hold it back
	done  transport.Completion // before that, only the tag
	timer *time.Timer          // runs while the completion is held back
}

// Unwrap returns the transport inside.
func (f *faulty) Unwrap() any { return f.Transport }

// Connect connects, unless a rule is against it.
func (f *faulty) Connect(ctx context.Context, peer *segment.Desc) (transport.Endpoint, error) {
	if r := f.plan.connect(peer.Name); r != nil {
		if r.Do == FailConnect {
			return nil, f.failure(r, "connect", peer)
		}
		select {
		case <-time.After(r.Delay):
		case <-ctx.Done():
			return nil, &errs.Error{Op: "connect", Peer: peer.Addr, Transport: f.name, Stage: "connect", Reason: errs.Of(ctx.Err()), Detail: "delayed by a rule", Err: ctx.Err()}
		}
	}
	inner, err := f.Transport.Connect(ctx, peer)
	if err != nil {
		return nil, err
	}
	e := &endpoint{Endpoint: inner, f: f, peer: peer}
	if c, ok := transport.As[transport.Canceler](inner); ok {
		e.canceler = c
		return &cancelable{e}, nil
	}
	return e, nil
}

// failure is the error that r gives.
func (f *faulty) failure(r *Rule, op string, peer *segment.Desc) *errs.Error {
	return &errs.Error{
		Op: op, Peer: peer.Addr, Transport: f.name, Stage: op, Reason: r.code(), Retryable: true,
		Detail: fmt.Sprintf("a rule says so (%v)", r.Do),
	}
}

// Complete takes completions from the transport inside, falsifies what the rules
// say, and passes on what is not held back.
func (f *faulty) Complete(done []transport.Completion) {
	out := make([]transport.Completion, 0, len(done))
	f.mu.Lock()
	for _, c := range done {
		fl := f.mu.flights[c.Tag]
		if fl == nil { // not ours to judge
			out = append(out, c)
			continue
		}
		fl.ended, fl.done = true, c
		if d := fl.heldBack(time.Now()); d > 0 {
			f.hold(fl, d)
			continue
		}
		out = append(out, f.land(fl))
	}
	f.mu.Unlock()
	if len(out) > 0 {
		f.sink.Complete(out)
	}
}

// heldBack returns for how long the completion of a slice that ended at now is
// held back; faulty.mu is held.
func (fl *flight) heldBack(now time.Time) time.Duration {
	if fl.rule == nil || fl.ep.closing || fl.lost != nil {
		return 0
	}
	switch fl.rule.Do {
	case Delay:
		return fl.rule.Delay
	case Slow:
		if now.After(fl.ep.busy) {
			fl.ep.busy = now
		}
		fl.ep.busy = fl.ep.busy.Add(time.Duration(float64(fl.bytes) / float64(max(fl.rule.Rate, 1)) * float64(time.Second)))
		return fl.ep.busy.Sub(now)
	}
	return 0
}

// hold keeps a completion back; faulty.mu is held.
func (f *faulty) hold(fl *flight, d time.Duration) {
	fl.ep.timers.Add(1)
	fl.timer = time.AfterFunc(d, func() {
		defer fl.ep.timers.Done()
		f.release([]*flight{fl})
	})
}

// release delivers completions that were held back, as far as nobody else has.
func (f *faulty) release(held []*flight) {
	var out []transport.Completion
	f.mu.Lock()
	for _, fl := range held {
		if f.mu.flights[fl.done.Tag] == fl {
			out = append(out, f.land(fl))
		}
	}
	f.mu.Unlock()
	if len(out) > 0 {
		f.sink.Complete(out)
	}
}

// land ends a flight and returns its completion as the rules want it;
// faulty.mu is held.
func (f *faulty) land(fl *flight) transport.Completion {
	delete(f.mu.flights, fl.done.Tag)
	fl.ep.flying--
	if fl.timer != nil && fl.timer.Stop() {
		fl.ep.timers.Done()
	}
	c := fl.done
	r := fl.lost
	if fl.rule != nil && fl.rule.Do == Spoil && c.Code == errs.OK {
		r = fl.rule
	}
	if r != nil && (c.Code == errs.OK || c.Code == errs.Canceled) {
		c.Code, c.Err = r.code(), f.failure(r, "post", fl.ep.peer)
		c.InDoubt = c.InDoubt || r.Doubt && fl.op == transport.Write
	}
	return c
}

// String returns the action's name.
func (a Action) String() string {
	names := [...]string{"invalid", "fail connect", "delay connect", "refuse", "fail", "spoil", "delay", "slow", "lose", "kill", "watch"}
	if int(a) < len(names) {
		return names[a]
	}
	return names[0]
}
