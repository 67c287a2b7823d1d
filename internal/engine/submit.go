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

// runMax bounds how many transfers are given to a shard at once, and so how long
// its lock is held and how much the arrays on the way keep.
const runMax = 1024

// start schedules transfers, those of one shard together. What is wrong at the
// peer ends that transfer alone.
func (e *Engine) start(ts []*transfer) {
	for len(ts) > 0 {
		n := 0
		sh := ts[0].home()
		for n < min(len(ts), runMax) && ts[n].home() == sh {
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

// scratch is what scheduling one call needs; the arrays are used again.
type scratch struct {
	specs []core.Transfer
	ready []*transfer
	ids   []core.TransferID
}

// route is the transfer's own, or where the one before it in the call goes: the
// paths are the same where the buffers are.
func (w *scratch) route(e *Engine, t *transfer) (core.Transfer, error) {
	last := len(w.ready) - 1
	if last < 0 || !t.follows(w.ready[last]) {
		return t.route(e)
	}
	t.peer, t.target, t.offset = w.ready[last].peer, w.ready[last].target, t.remote.Offset
	if err := t.permitted(); err != nil {
		return core.Transfer{}, err
	}
	spec := t.spec()
	spec.Ladder, spec.Rungs = w.specs[last].Ladder, w.specs[last].Rungs
	return spec, nil
}

// schedule routes transfers and hands those that can go to sh.
func (e *Engine) schedule(sh *shard, ts []*transfer) {
	w, _ := e.scratch.Get().(*scratch)
	if w == nil {
		w = new(scratch)
	}
	for _, t := range ts {
		spec, err := w.route(e, t)
		switch {
		case err == errResolve:
			e.resolve(t)
		case err != nil:
			e.fail(t, err)
		default:
			w.specs, w.ready, w.ids = append(w.specs, spec), append(w.ready, t), append(w.ids, 0)
		}
	}
	if len(w.ready) > 0 {
		sh.submit(w)
	}
	clear(w.ready)
	w.specs, w.ready, w.ids = w.specs[:0], w.ready[:0], w.ids[:0]
	e.scratch.Put(w)
}

// submit gives transfers to the machine.
func (s *shard) submit(w *scratch) {
	s.event(func(c *core.Shard, now core.Time, out *core.Actions) {
		for i, t := range w.ready {
			w.specs[i].Owner = s.mu.owners.add(t)
		}
		c.Submit(now, w.specs, w.ids, out)
		for i, t := range w.ready {
			t.id, t.shard = w.ids[i], s
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
func (e *Engine) settle(t *transfer) { e.settleRun([]*transfer{t}) }

// settleRun is settle for transfers of one batch and tenant.
func (e *Engine) settleRun(ts []*transfer) {
	var moved [2]uint64 // by whether it is a Write
	var bytes int64
	for _, t := range ts {
		if t.result.Err == nil && t.op == transport.Read {
			moved[0] += t.length
		} else if t.result.Err == nil {
			moved[1] += t.length
		}
		if t.held != nil {
			t.held.r.Done()
		}
		t.local = nil
		bytes += int64(t.length)
	}
	e.counts.bytesRead.Add(moved[0])
	e.counts.bytesWritten.Add(moved[1])
	e.give(ts[0].tenant, int64(len(ts)), bytes)
	ts[0].batch.ended(ts)
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
