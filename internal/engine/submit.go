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
	ts, err := b.take(reqs)
	if err != nil {
		for _, d := range call {
			e.give(d.tenant, d.requests, d.bytes)
		}
		release(reqs)
		return err
	}
	e.counts.requests.Add(uint64(len(reqs)))
	e.start(ts)
	return nil
}

// hold takes a use of each local buffer, all or none.
func hold(reqs []Request) error {
	for at := 0; at < len(reqs); {
		b, n := neighbours(reqs[at:])
		if b != nil && !b.r.Use(n) {
			release(reqs[:at])
			return errs.New(errs.Revoked, reqs[at].Op.String(), "local buffer %q is closed", b.Desc().Name)
		}
		at += n
	}
	return nil
}

func release(reqs []Request) {
	for len(reqs) > 0 {
		b, n := neighbours(reqs)
		if b != nil {
			b.r.Done(n)
		}
		reqs = reqs[n:]
	}
}

// neighbours returns the local buffer of the first request, nil for plain memory,
// and how many from there on have the same.
func neighbours(reqs []Request) (b *Buffer, n int) {
	b = reqs[0].Local.Buffer
	for n < len(reqs) && reqs[n].Local.Buffer == b {
		n++
	}
	return b, n
}

// scratch is what scheduling one call needs; the arrays are used again.
type scratch struct {
	specs   []core.Transfer
	runs    [][]*transfer // of each spec: routed, to peers of one shard
	ids     []core.TransferID
	lengths []uint32
	count   int // transfers in runs
}

// start routes transfers of one call and schedules them. What is wrong at the
// peer ends that transfer alone.
func (e *Engine) start(ts []*transfer) {
	w, _ := e.scratch.Get().(*scratch)
	if w == nil {
		w = new(scratch)
	}
	var unknown []*transfer
	for len(ts) > 0 {
		n := 1
		switch spec, err := w.route(e, ts[0]); {
		case err == errResolve:
			unknown = append(unknown, ts[0])
		case err != nil:
			e.fail(ts[0], err)
		default:
			n = w.add(ts, spec)
		}
		ts = ts[n:]
	}
	w.submit()
	e.scratch.Put(w)
	e.resolve(unknown)
}

// route is the transfer's own, or where the one before it in the call goes: the
// paths are the same where the buffers are.
func (w *scratch) route(e *Engine, t *transfer) (core.Transfer, error) {
	last := len(w.runs) - 1
	if last < 0 || !t.follow(w.runs[last][0]) {
		return t.route(e)
	}
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

// add collects the first of ts, which is routed, for its peer's shard, and with it
// those behind it that can be one run with it. It returns how many those are.
func (w *scratch) add(ts []*transfer, spec core.Transfer) int {
	first := ts[0]
	if w.count+core.RunLen > runMax || w.count > 0 && w.runs[0][0].view.peer.shard != first.view.peer.shard {
		w.submit()
	}
	n := 1
	for most := min(len(ts), core.RunLen); n < most && first.length-1 < runBytes && ts[n].alike(first); {
		n++
	}
	if n > 1 {
		at := len(w.lengths)
		for _, t := range ts[:n] {
			w.lengths = append(w.lengths, uint32(t.length))
		}
		spec.Lengths = w.lengths[at:]
	}
	w.specs, w.runs, w.ids = append(w.specs, spec), append(w.runs, ts[:n:n]), append(w.ids, 0)
	w.count += n
	return n
}

// submit gives what was collected to the machine. A Cancel that came too early
// to find the transfers there is made up for.
func (w *scratch) submit() {
	if w.count == 0 {
		return
	}
	first, late := w.runs[0][0], false
	s := first.view.peer.shard
	s.event(func(c *core.Shard, now core.Time, out *core.Actions) {
		for i, run := range w.runs {
			w.specs[i].Owner = s.mu.owners.add(run)
		}
		c.Submit(now, w.specs, w.ids, out)
		late = first.batch.scheduled(s, w, first.cancels)
	})
	if late {
		s.cancel(w.spans(s, nil))
	}
	clear(w.runs)
	clear(w.specs)
	w.specs, w.runs, w.ids, w.lengths, w.count = w.specs[:0], w.runs[:0], w.ids[:0], w.lengths[:0], 0
}

// span is transfers of one run in the machine of a shard.
type span struct {
	shard *shard
	id    core.TransferID // of the first; they count up
	n     int
}

// spans appends what was given to the machine.
func (w *scratch) spans(s *shard, to []span) []span {
	for i, run := range w.runs {
		to = append(to, span{s, w.ids[i], len(run)})
	}
	return to
}

// cancel withdraws those of the transfers, all of this shard, that have not ended.
func (s *shard) cancel(all []span) {
	for some := range slices.Chunk(all, runMax/core.RunLen) {
		s.event(func(c *core.Shard, now core.Time, out *core.Actions) {
			for _, it := range some {
				for i := range it.n {
					c.Cancel(now, it.id+core.TransferID(i), errs.Canceled, out)
				}
			}
		})
	}
}

// fail ends t with an error.
func (e *Engine) fail(t *transfer, err error) {
	code := errs.Of(err)
	e.counts.failed(code)
	if code != errs.Canceled && e.failures.allow() {
		e.log.Warn("request failed", "op", t.op.String(), "target", t.targetName(), "offset", t.remote.Offset,
			"length", t.length, "err", err, "not_logged", e.failures.skipped())
	}
	e.settle([]*transfer{t}, outcome{bytes: t.length, err: err})
}

// outcome is how transfers have ended.
type outcome struct {
	bytes   uint64 // the lengths of all
	carrier string // empty if nothing carried them
	err     error
}

// settle gives back what transfers that join held, and tells their batch.
func (e *Engine) settle(ts []*transfer, how outcome) {
	first := ts[0]
	if how.err == nil && first.op == transport.Read {
		e.counts.bytesRead.Add(how.bytes)
	} else if how.err == nil {
		e.counts.bytesWritten.Add(how.bytes)
	}
	first.held.done(len(ts))
	e.give(first.tenant, int64(len(ts)), int64(how.bytes))
	first.batch.ended(ts, how)
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
	if b.Satisfied() { // perhaps just after ctx
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
