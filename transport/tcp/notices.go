package tcp

import (
	"context"
	"slices"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/transport"
)

// laneNotices is what one lane's initiator tells its endpoint.
type laneNotices struct {
	e *Endpoint
	o *outbound
}

func (n laneNotices) fenced(f fence)    { n.e.fenced(f) }
func (n laneNotices) ponged(seq uint64) { n.e.ponged(n.o, seq) }

func (n laneNotices) goaway(code errs.Code) {
	detail := "the peer is shutting down"
	if code != errs.Draining { // the reason says that much
		detail += " (" + code.String() + ")"
	}
	why := &errs.Error{Op: "post", Peer: n.e.peer.Addr, Transport: name, Stage: "post", Reason: errs.Draining, Retryable: true, Detail: detail}
	n.e.refusal.CompareAndSwap(nil, why)
}

func (n laneNotices) drained() {
	n.o.lane.fail(errs.New(errs.Draining, "drain", "the peer is shutting down"))
}

func (n laneNotices) unsure(writes []transport.Completion) {
	if len(writes) > 0 {
		n.e.mu.Lock()
		n.e.mu.unsure[n.o] = writes
		n.e.mu.Unlock()
	}
}

func (n laneNotices) lost(i *initiator, cause error) {
	e := n.e
	e.mu.Lock()
	e.mu.cause = cause
	if (*e.table.Load())[n.o.slot] == n.o {
		e.replace(n.o.slot, nil)
		e.restSlot(n.o.slot)
		e.mu.past[n.o.slot/e.per].Reconnects++
	}
	past := &e.mu.past[n.o.slot/e.per]
	past.BytesIn += n.o.lane.in.Load()
	past.BytesOut += n.o.lane.out.Load()
	past.Checksums += i.mismatches()
	unsure, closed := len(e.mu.unsure[n.o]), e.mu.closed
	switch {
	case unsure == 0:
		delete(e.mu.unsure, n.o) // all of them were cancelled
	case !closed:
		e.fencing.Add(1)
	}
	e.mu.Unlock()
	e.t.log.Debug("lane lost", "peer", e.peer.Addr, "lane", n.o.number, "unacknowledged", unsure, "why", cause)
	switch {
	case unsure == 0:
	case closed:
		e.settle(n.o, errs.New(errs.Closed, "close endpoint", "closed with writes unacknowledged"))
	default:
		e.wg.Go(func() {
			defer e.fencing.Done()
			e.settle(n.o, cause)
		})
	}
}

// probe waits for a pong.
type probe struct {
	o        *outbound
	seq      uint64
	answered chan struct{}
}

// maxProbes bounds the probes under way.
const maxProbes = 16

// Probe measures a round trip on one lane.
func (e *Endpoint) Probe(ctx context.Context) (time.Duration, error) {
	at := e.any(*e.table.Load())
	if at < 0 {
		return 0, e.gone()
	}
	p := probe{o: (*e.table.Load())[at], answered: make(chan struct{})}
	if p.o == nil {
		return 0, e.gone()
	}
	start := e.t.env.Now()
	e.mu.Lock()
	if len(e.mu.probes) == maxProbes {
		e.mu.Unlock()
		return 0, errs.New(errs.Overloaded, "probe", "%d probes are under way", maxProbes)
	}
	p.seq = p.o.init.ping()
	e.mu.probes = append(e.mu.probes, p)
	e.mu.Unlock()
	p.o.lane.post()
	e.attend()
	var err error
	select {
	case <-p.answered:
		return e.t.env.Now().Sub(start), nil
	case <-p.o.lane.closing:
		err = p.o.lane.cause()
	case <-ctx.Done():
		err = ctx.Err()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mu.probes = slices.DeleteFunc(e.mu.probes, func(q probe) bool { return q.answered == p.answered })
	return 0, &errs.Error{Op: "probe", Peer: e.peer.Addr, Transport: name, Reason: errs.Of(err), Err: err}
}

// ponged ends the probes that a pong answers.
func (e *Endpoint) ponged(o *outbound, seq uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mu.probes = slices.DeleteFunc(e.mu.probes, func(p probe) bool {
		if p.o != o || p.seq > seq {
			return false
		}
		close(p.answered)
		return true
	})
}
