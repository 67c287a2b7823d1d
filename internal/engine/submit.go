package engine

import (
	"context"
	"errors"
	"slices"
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
	if ctx.Err() != nil {
		return ended(ctx, "submit")
	}
	if err := b.takes(); err != nil || len(reqs) == 0 {
		return err
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

// scratch is what scheduling one call needs; the arrays are used again.
type scratch struct {
	specs []core.Transfer
	ready []*transfer // routed, to peers of one shard
	ids   []core.TransferID
}

// start routes transfers of one call and schedules them. What is wrong at the
// peer ends that transfer alone.
func (e *Engine) start(ts []*transfer) {
	w, _ := e.scratch.Get().(*scratch)
	if w == nil {
		w = new(scratch)
	}
	var unknown []*transfer
	for _, t := range ts {
		spec, err := w.route(e, t)
		switch {
		case err == errResolve:
			unknown = append(unknown, t)
		case err != nil:
			e.fail(t, err)
		default:
			w.add(t, spec)
		}
	}
	w.submit()
	e.scratch.Put(w)
	e.resolve(unknown)
}

// route is the transfer's own, or where the one before it in the call goes: the
// paths are the same where the buffers are.
func (w *scratch) route(e *Engine, t *transfer) (core.Transfer, error) {
	last := len(w.ready) - 1
	if last < 0 || !t.follows(w.ready[last]) {
		return t.route(e)
	}
	t.view, t.target, t.offset = w.ready[last].view, w.ready[last].target, t.remote.Offset
	if err := t.permitted(); err != nil {
		return core.Transfer{}, err
	}
	spec := t.spec()
	spec.Ladder, spec.Rungs = w.specs[last].Ladder, w.specs[last].Rungs
	return spec, nil
}

// runMax bounds how many transfers are given to a shard at once, and so how long
// its lock is held and how much the arrays on the way keep.
const runMax = 1024

// add collects t for its peer's shard.
func (w *scratch) add(t *transfer, spec core.Transfer) {
	if n := len(w.ready); n == runMax || n > 0 && w.ready[0].view.peer.shard != t.view.peer.shard {
		w.submit()
	}
	w.specs, w.ready, w.ids = append(w.specs, spec), append(w.ready, t), append(w.ids, 0)
}

// submit gives what was collected to the machine. A Cancel that came too early
// to find the transfers there is made up for.
func (w *scratch) submit() {
	if len(w.ready) == 0 {
		return
	}
	s, b, cancels := w.ready[0].view.peer.shard, w.ready[0].batch, w.ready[0].cancels
	s.event(func(c *core.Shard, now core.Time, out *core.Actions) {
		for i, t := range w.ready {
			w.specs[i].Owner = s.mu.owners.add(t)
		}
		c.Submit(now, w.specs, w.ids, out)
		for i, t := range w.ready {
			t.id = w.ids[i]
			t.scheduled.Store(true)
		}
	})
	if b.cancels.Load() != cancels {
		s.cancel(w.ids)
	}
	clear(w.ready)
	w.specs, w.ready, w.ids = w.specs[:0], w.ready[:0], w.ids[:0]
}

// cancel withdraws those of the transfers that have not ended.
func (s *shard) cancel(ids []core.TransferID) {
	for run := range slices.Chunk(ids, runMax) {
		s.event(func(c *core.Shard, now core.Time, out *core.Actions) {
			for _, id := range run {
				c.Cancel(now, id, errs.Canceled, out)
			}
		})
	}
}

// fail ends t with an error.
func (e *Engine) fail(t *transfer, err error) {
	t.result = Result{Err: err}
	code := errs.Of(err)
	e.counts.failed(code)
	if code != errs.Canceled && e.failures.allow() {
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
	if b.isDone() { // perhaps just after ctx
		return b.Err()
	}
	b.Cancel()
	<-b.Done()
	if failed := b.Err(); failed != nil {
		return errors.Join(err, failed)
	}
	return nil
}

// ended is the error of a call that ctx ended: it matches the context's error
// and its cause.
func ended(ctx context.Context, op string) error {
	return &errs.Error{Op: op, Reason: errs.Of(ctx.Err()), Err: context.Cause(ctx)}
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
