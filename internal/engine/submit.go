package engine

import (
	"context"
	"errors"
	"strconv"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/core"
	"github.com/tideway-io/tideway/transport"
)

// submit takes all of reqs into b, or nothing.
func (e *Engine) submit(ctx context.Context, b *Batch, reqs []Request) error {
	if err := e.usable("submit"); err != nil {
		return err
	}
	if len(reqs) == 0 {
		return nil
	}
	for i := range reqs {
		if err := e.check(i, &reqs[i]); err != nil {
			return err
		}
	}
	var few [4]demand
	call, err := demands(reqs, few[:0])
	if err != nil {
		return err
	}
	if err := hold(reqs); err != nil {
		return err
	}
	if err := e.admission.take(ctx, call); err != nil {
		e.counts.refused.Add(1)
		release(reqs)
		return err
	}
	ts, err := b.take(len(reqs))
	if err != nil {
		for _, d := range call {
			e.give(d.tenant, d.requests, d.bytes)
		}
		release(reqs)
		return err
	}
	for i := range reqs {
		ts[i].fill(e, &reqs[i])
	}
	e.counts.requests.Add(uint64(len(reqs)))
	e.start(ts)
	return nil
}

// hold takes a use of each local buffer, all or none.
func hold(reqs []Request) error {
	for i := range reqs {
		b := reqs[i].Local.Buffer
		if b == nil || b.r.Use() {
			continue
		}
		release(reqs[:i])
		return errs.New(errs.Revoked, reqs[i].Op.String(), "local buffer %q is closed", b.Desc().Name)
	}
	return nil
}

func release(reqs []Request) {
	for i := range reqs {
		if b := reqs[i].Local.Buffer; b != nil {
			b.r.Done()
		}
	}
}

// start schedules transfers, those of one shard together. What is wrong at the
// peer ends that transfer alone.
func (e *Engine) start(ts []*transfer) {
	for len(ts) > 0 {
		n := 0
		sh := ts[0].home()
		for n < len(ts) && ts[n].home() == sh {
			n++
		}
		e.schedule(sh, ts[:n])
		ts = ts[n:]
	}
}

// home is the shard that will schedule t.
func (t *transfer) home() *shard {
	if f := t.remote.Found; f != nil {
		return f.peer.shard
	}
	return t.remote.Segment.now().peer.shard
}

// schedule routes transfers and hands those that can go to sh.
func (e *Engine) schedule(sh *shard, ts []*transfer) {
	var fewSpecs [32]core.Transfer
	var fewReady [32]*transfer
	specs, ready := fewSpecs[:0], fewReady[:0]
	if len(ts) > len(fewSpecs) {
		specs, ready = make([]core.Transfer, 0, len(ts)), make([]*transfer, 0, len(ts))
	}
	for _, t := range ts {
		spec, err := t.route(e)
		switch {
		case err == errResolve:
			e.resolve(t)
		case err != nil:
			e.fail(t, err)
		default:
			specs, ready = append(specs, spec), append(ready, t)
		}
	}
	if len(ready) > 0 {
		sh.submit(specs, ready)
	}
}

// submit gives transfers to the machine.
func (s *shard) submit(specs []core.Transfer, ts []*transfer) {
	var few [32]core.TransferID
	ids := few[:0]
	if len(ts) > len(few) {
		ids = make([]core.TransferID, 0, len(ts))
	}
	ids = ids[:len(ts)]
	s.event(func(c *core.Shard, now core.Time, out *core.Actions) {
		for i, t := range ts {
			specs[i].Owner = s.mu.owners.add(t)
		}
		c.Submit(now, specs, ids, out)
		for i, t := range ts {
			t.id, t.shard = ids[i], s
			t.phase.Store(phaseScheduled)
		}
	})
}

// cancel withdraws transfers that have not ended.
func (e *Engine) cancel(ts []*transfer) {
	for _, t := range ts {
		if t.phase.CompareAndSwap(phaseResolving, phaseEnded) {
			e.over(t, errs.New(errs.Canceled, t.op.String(), "cancelled before it was sent"))
			continue
		}
		if t.phase.Load() != phaseScheduled {
			continue
		}
		t.shard.event(func(c *core.Shard, now core.Time, out *core.Actions) {
			c.Cancel(now, t.id, errs.Canceled, out)
		})
	}
}

// finish ends t as the scheduler says.
func (e *Engine) finish(t *transfer, s *shard, end *core.End) {
	t.phase.Store(phaseEnded)
	e.counts.attempts(end.Attempts)
	if end.Code == errs.OK {
		t.result = Result{Bytes: t.length, Transport: s.carrier(end.Path)}
		e.settle(t)
		return
	}
	err := s.failure(t, end)
	if err.Is(errs.ErrStale) || end.Code == errs.NotRegistered {
		t.remote.Segment.stale.Store(true)
	}
	e.over(t, err)
}

// fail ends a transfer that never reached the scheduler.
func (e *Engine) fail(t *transfer, err error) {
	t.phase.Store(phaseEnded)
	e.over(t, err)
}

// over ends t with an error.
func (e *Engine) over(t *transfer, err error) {
	t.result = Result{Err: err}
	e.counts.failed(errs.Of(err))
	if e.failures.allow() {
		e.log.Warn("request failed", "op", t.op.String(), "target", t.targetName(), "offset", t.remote.Offset,
			"length", t.length, "err", err, "not_logged", e.failures.skipped())
	}
	e.settle(t)
}

// settle gives back what t held and tells the batch.
func (e *Engine) settle(t *transfer) {
	if t.result.Err == nil {
		if t.op == transport.Read {
			e.counts.bytesRead.Add(t.length)
		} else {
			e.counts.bytesWritten.Add(t.length)
		}
	}
	if t.held != nil {
		t.held.r.Done()
	}
	e.give(t.tenant, 1, int64(t.length))
	t.local = nil
	t.batch.ended(t)
}

// give takes room back; a miscount poisons the engine.
func (e *Engine) give(tenant string, requests, bytes int64) {
	if err := e.admission.give(tenant, requests, bytes); err != nil {
		e.poison(err.Error())
	}
}

// Do submits and waits like Finish.
func (e *Engine) Do(ctx context.Context, reqs ...Request) error {
	b := e.NewBatch()
	if err := b.Add(ctx, reqs); err != nil {
		b.Seal()
		return err
	}
	return b.Finish(ctx)
}

// Finish waits for the batch; when ctx ends first it cancels what is left and
// waits until that is quiet. The error then also matches the context's.
func (b *Batch) Finish(ctx context.Context) error {
	err := b.Wait(ctx)
	if b.isDone() {
		return err
	}
	b.Cancel()
	<-b.Done()
	if err := b.Err(); err != nil {
		return errors.Join(context.Cause(ctx), err)
	}
	return nil
}

// targetName names the remote range's buffer for people.
func (t *transfer) targetName() string {
	name := string(t.remote.Segment.name)
	if t.target != nil && t.target.Name != "" {
		return name + "/" + t.target.Name
	}
	if f := t.remote.Found; f != nil {
		return name + "/" + f.Desc.Name
	}
	return name
}

func itoa(i int) string { return strconv.Itoa(i) }
