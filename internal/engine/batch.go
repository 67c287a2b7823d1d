package engine

import (
	"bytes"
	"context"
	"errors"
	"iter"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/transport"
)

// Result is how one request ended.
type Result struct {
	Bytes     uint64 // bytes moved: all of them, or 0 when Err is set
	Err       error  // nil, or an *errs.Error
	Transport string // the transport that carried it; empty if none did
}

// Batch is a set of requests that are waited on together. Add may be called
// from several goroutines until Seal.
type Batch struct {
	e     *Engine
	group uint64 // its number: batches take turns
	// cancels counts the calls of Cancel. A transfer that is on its way to the
	// scheduler when it changes is cancelled by whoever brings it there.
	cancels atomic.Uint32
	path    atomic.Pointer[path] // where slices of it were posted last
	mu      struct {
		sync.Mutex
		transfers []*transfer // in the order of Add
		slabs     [][]transfer
		spans     []span        // what was given to the scheduler
		order     []uint32      // indexes in the order of their ends
		open      int           // transfers not ended, plus one until sealed, plus one for a pending notification
		sealed    bool          // no more Adds
		failed    int           // transfers that ended with an error
		notices   []notice      // sent when all ended well
		owes      bool          // it is counted as one that will send notices
		noticeErr error         // why a notice was not delivered
		watch     chan struct{} // closed at the next end; nil while nobody watches
		cancel    chan struct{} // closed by the next Cancel; nil while nobody waits for it
		done      chan struct{} // closed when open reaches zero; nil until asked for
	}
}

// notice is a notification attached to a batch.
type notice struct {
	to   *Segment
	note Notification
}

// NewBatch returns an empty batch.
func (e *Engine) NewBatch() *Batch {
	b := &Batch{e: e, group: e.counts.groups.Add(1)}
	b.mu.open = 1
	e.counts.batches.Add(1)
	return b
}

// Add submits requests as part of the batch: all of them are taken, or none and
// the error says why. Ctx bounds admission only.
func (b *Batch) Add(ctx context.Context, reqs []Request) error {
	return b.e.submit(ctx, b, reqs)
}

// NotifyOnSuccess sends a notification to seg after every request has ended
// well. It must be called before Seal.
func (b *Batch) NotifyOnSuccess(seg *Segment, n Notification) error {
	if err := n.check(b.e, seg); err != nil {
		return err
	}
	n.Body = bytes.Clone(n.Body)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.sealed {
		return errs.New(errs.Closed, "attach notification", "the batch is sealed; attach before Seal or Wait")
	}
	if len(b.mu.notices) == maxNotices {
		return errs.New(errs.Overloaded, "attach notification", "%d are attached, the limit", maxNotices)
	}
	b.mu.notices = append(b.mu.notices, notice{seg, n})
	return nil
}

// maxNotices bounds the notifications attached to one batch.
const maxNotices = 64

// Seal says that no more requests will be added; the batch can then be done.
func (b *Batch) Seal() {
	b.mu.Lock()
	last := b.seal()
	b.mu.Unlock()
	if last {
		b.sendNotices()
	}
}

// seal is Seal with the lock held; true: its notices must be sent then.
func (b *Batch) seal() (last bool) {
	if !b.mu.sealed {
		b.mu.sealed = true
		if len(b.mu.notices) > 0 {
			b.mu.owes = true
			b.e.admission.owe(1)
		}
		last = b.settle()
	}
	return last
}

var errSealed = errs.New(errs.Closed, "add", "the batch is sealed; Reset it or use a new one")

// takes says why the batch takes nothing more, nil if it does.
func (b *Batch) takes() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.sealed {
		return errSealed
	}
	return nil
}

// take makes transfers of the requests of an Add, or fails if the batch is sealed.
func (b *Batch) take(reqs []Request) ([]*transfer, error) {
	n := len(reqs)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.sealed {
		return nil, errSealed
	}
	first := len(b.mu.transfers)
	b.mu.order = slices.Grow(b.mu.order, first+n-len(b.mu.order))
	for len(b.mu.transfers) < first+n {
		b.mu.transfers = append(b.mu.transfers, b.spare(n))
	}
	b.mu.open += n
	got := b.mu.transfers[first : first+n : first+n]
	cancels := b.cancels.Load()
	for i, t := range got {
		t.fill(b.e, &reqs[i])
		t.batch, t.index, t.cancels = b, uint32(first+i), cancels
	}
	return got, nil
}

// spare returns the next unused transfer, from slabs that keep their addresses.
func (b *Batch) spare(want int) *transfer {
	i := len(b.mu.transfers)
	for _, s := range b.mu.slabs {
		if i < len(s) {
			return &s[i]
		}
		i -= len(s)
	}
	// Slabs at least double what there is, so that their number stays small.
	b.mu.slabs = append(b.mu.slabs, make([]transfer, max(want, len(b.mu.transfers), 1)))
	s := b.mu.slabs[len(b.mu.slabs)-1]
	return &s[0]
}

// ended records that transfers have ended alike.
func (b *Batch) ended(ts []*transfer, how outcome) {
	b.mu.Lock()
	for _, t := range ts {
		b.mu.order = append(b.mu.order, t.index)
		t.over, t.local, t.carrier, t.err = true, nil, how.carrier, how.err
	}
	if how.err != nil {
		b.mu.failed += len(ts)
	}
	b.wake()
	b.mu.open -= len(ts) - 1
	last := b.settle()
	b.mu.Unlock()
	if last {
		b.sendNotices()
	}
}

// settle takes one from what is open; at zero the batch is done, unless it
// reports true: then its notices must be sent first. The lock is held.
func (b *Batch) settle() bool {
	if b.mu.open--; b.mu.open > 0 {
		return false
	}
	if len(b.mu.notices) > 0 && b.mu.failed == 0 {
		b.mu.open = 1
		return true
	}
	b.e.counts.batches.Add(-1)
	if b.mu.owes {
		b.mu.owes = false
		b.e.admission.owe(-1)
	}
	b.wake()
	if b.mu.done != nil {
		close(b.mu.done)
	}
	return false
}

// sendNotices delivers the attached notifications in the background; then the
// batch is done.
func (b *Batch) sendNotices() {
	b.e.background(func() {
		b.mu.Lock()
		notices := b.mu.notices
		b.mu.notices = nil
		b.mu.Unlock()
		var failed []error
		for _, n := range notices {
			if err := b.e.send(n.to, n.note); err != nil {
				failed = append(failed, err)
			}
		}
		b.mu.Lock()
		b.mu.noticeErr = errors.Join(failed...)
		b.settle()
		b.mu.Unlock()
	})
}

func (b *Batch) wake() {
	if b.mu.watch != nil {
		close(b.mu.watch)
		b.mu.watch = nil
	}
}

// watching returns a channel that is closed at the next end, and whether the
// batch is done.
func (b *Batch) watching() (<-chan struct{}, bool) {
	if b.mu.watch == nil {
		b.mu.watch = make(chan struct{})
	}
	return b.mu.watch, b.mu.open == 0
}

// Done returns a channel that is closed when the batch is sealed and every
// request has ended.
func (b *Batch) Done() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.done == nil {
		b.mu.done = make(chan struct{})
		if b.mu.open == 0 {
			close(b.mu.done)
		}
	}
	return b.mu.done
}

// Wait seals the batch and waits until every request has ended or ctx has. It
// returns nil when all ended well, the context's error when the wait was cut
// short, else the failures joined (the first 16).
func (b *Batch) Wait(ctx context.Context) error {
	b.mu.Lock()
	last := b.seal()
	done, err := b.mu.open == 0, error(nil)
	if done {
		err = b.err()
	}
	b.mu.Unlock()
	if last {
		b.sendNotices()
	}
	if done {
		return err
	}
	b.e.counts.waiters.Add(1)
	defer b.e.counts.waiters.Add(-1)
	if b.lead(ctx) {
		return b.Err()
	}
	select {
	case <-b.Done():
		return b.Err()
	case <-ctx.Done():
	}
	if b.Satisfied() { // just now
		return b.Err()
	}
	return ended(ctx, "wait")
}

// leadTime bounds how long a waiter receives before it looks at its context.
const leadTime = 10 * time.Millisecond

// lead has the transport that the batch is on driven by this goroutine, while it
// is the only one that waits and that brings ends, and reports whether the batch
// is done. So the goroutine that wants the result is not woken by another one.
func (b *Batch) lead(ctx context.Context) bool {
	for ctx.Err() == nil && b.e.counts.waiters.Load() == 1 {
		p, ok := transport.As[transport.Progressor](b.path.Load().endpoint())
		if !ok || p.Progress(b, leadTime) == 0 {
			break
		}
		if b.Satisfied() {
			return true
		}
	}
	return b.Satisfied()
}

// Satisfied implements transport.Waiter: everything submitted has ended.
func (b *Batch) Satisfied() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mu.open == 0
}

// Err joins the failures so far (the first 16), nil if there are none.
func (b *Batch) Err() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err()
}

// err is Err with the lock held.
func (b *Batch) err() error {
	if b.mu.failed == 0 {
		return b.mu.noticeErr
	}
	failed := make([]error, 0, min(b.mu.failed, 16))
	for _, i := range b.mu.order {
		if err := b.mu.transfers[i].err; err != nil && len(failed) < cap(failed) {
			failed = append(failed, err)
		}
	}
	if len(failed) == 1 {
		return failed[0]
	}
	return errors.Join(failed...)
}

// Cancel withdraws every request that has not ended. It does not wait; the
// batch is done when each has become quiet. Calling it again does nothing.
func (b *Batch) Cancel() {
	var live [numShards][]span
	b.mu.Lock()
	b.cancels.Add(1)
	if b.mu.cancel != nil {
		close(b.mu.cancel)
		b.mu.cancel = nil
	}
	for _, it := range b.mu.spans {
		live[it.shard.number] = append(live[it.shard.number], it)
	}
	b.mu.Unlock()
	for i, spans := range live {
		b.e.shards[i].cancel(spans)
	}
}

// scheduled notes what was given to the machine of a shard, and reports whether
// there was a Cancel since the count was what it says.
func (b *Batch) scheduled(s *shard, w *scratch, cancels uint32) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.spans = w.spans(s, b.mu.spans)
	return b.cancels.Load() != cancels
}

// canceled returns a channel that is closed once Cancel was called since the
// count was what it says.
func (b *Batch) canceled(cancels uint32) <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.cancels.Load() != cancels {
		over := make(chan struct{})
		close(over)
		return over
	}
	if b.mu.cancel == nil {
		b.mu.cancel = make(chan struct{})
	}
	return b.mu.cancel
}

// Len returns the number of requests added.
func (b *Batch) Len() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.mu.transfers)
}

// Results yields the requests that have ended, in the order of Add.
func (b *Batch) Results() iter.Seq2[int, Result] {
	return func(yield func(int, Result) bool) {
		for i := 0; ; i++ {
			b.mu.Lock()
			if i >= len(b.mu.transfers) {
				b.mu.Unlock()
				return
			}
			t := b.mu.transfers[i]
			over, r := t.over, Result{}
			if over { // else it is being written
				r = t.result()
			}
			b.mu.Unlock()
			if over && !yield(i, r) {
				return
			}
		}
	}
}

// Finished yields each request once, in the order of their ends, waiting for
// the next until the batch is done or ctx ends.
func (b *Batch) Finished(ctx context.Context) iter.Seq2[int, Result] {
	return func(yield func(int, Result) bool) {
		for next := 0; ; {
			b.mu.Lock()
			if next < len(b.mu.order) {
				i := int(b.mu.order[next])
				r := b.mu.transfers[i].result()
				b.mu.Unlock()
				if next++; !yield(i, r) {
					return
				}
				continue
			}
			more, done := b.watching()
			b.mu.Unlock()
			if done {
				return
			}
			select {
			case <-more:
			case <-ctx.Done():
				return
			}
		}
	}
}

// Reset makes a batch empty and open again, keeping its memory; it fails with
// errs.ErrBusy while requests are in flight or notifications on their way.
func (b *Batch) Reset() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n := len(b.mu.transfers) - len(b.mu.order); n > 0 {
		return errs.New(errs.Busy, "reset batch", "%d requests have not ended; Wait, or Cancel and Wait, first", n)
	}
	if b.mu.sealed && b.mu.open > 0 {
		return errs.New(errs.Busy, "reset batch", "its notifications are being delivered; Wait first")
	}
	b.mu.transfers, b.mu.order, b.mu.spans = b.mu.transfers[:0], b.mu.order[:0], b.mu.spans[:0]
	if b.mu.open == 0 {
		b.e.counts.batches.Add(1)
		b.mu.done = nil // of the life that has ended
	}
	b.mu.open, b.mu.sealed, b.mu.failed = 1, false, 0
	b.mu.notices, b.mu.noticeErr = nil, nil
	return nil
}
