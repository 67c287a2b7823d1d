package tideway

import (
	"context"
	"iter"

	"github.com/tideway-io/tideway/internal/engine"
)

// Batch is a set of requests that are submitted and waited on together. Within
// it there is no order. Add may be called from several goroutines.
type Batch struct {
	e *Engine
	b *engine.Batch
}

// Result is how one request ended.
type Result struct {
	Bytes     uint64 // bytes moved: all of them, or 0 when Err is set
	Err       error  // nil, or an *Error
	Transport string // the transport that carried it; empty if none did
}

// NewBatch returns an empty batch that takes requests until it is sealed.
func (e *Engine) NewBatch() *Batch { return &Batch{e, e.e.NewBatch()} }

// Add submits requests as part of the batch, all or none, like Submit. It is
// ErrClosed once the batch is sealed.
func (b *Batch) Add(ctx context.Context, reqs ...Request) error {
	return b.b.Add(ctx, inner(reqs))
}

// Seal says that no more requests will be added, so that the batch can be done.
// Wait seals as well.
func (b *Batch) Seal() { b.b.Seal() }

// NotifyOnSuccess sends n to the owner of s after every request of the batch
// has ended well; the batch is done when it is delivered. Call it before Seal. The
// body is copied.
func (b *Batch) NotifyOnSuccess(s *Segment, n Notification) error {
	return b.b.NotifyOnSuccess(s.s, engine.Notification(n))
}

// Wait seals the batch and waits until every request has ended. It returns nil
// when all ended well, else their failures joined (the first 16). When ctx ends
// first it returns an error that matches the context's, and the requests go on;
// a batch that is done counts as such even if ctx has ended.
func (b *Batch) Wait(ctx context.Context) error { return b.b.Wait(ctx) }

// Done is closed when the batch is sealed and every request has ended.
func (b *Batch) Done() <-chan struct{} { return b.b.Done() }

// Err joins the failures so far (the first 16); nil if there are none.
func (b *Batch) Err() error { return b.b.Err() }

// Cancel withdraws every request that has not ended. It does not wait: the
// batch is done when each of them is quiet.
func (b *Batch) Cancel() { b.b.Cancel() }

// Len returns the number of requests added.
func (b *Batch) Len() int { return b.b.Len() }

// Results yields the requests that have ended by now, in the order of Add.
func (b *Batch) Results() iter.Seq2[int, Result] { return results(b.b.Results()) }

// Finished yields each request once, in the order in which they end, waiting
// for the next one until the batch is done or ctx ends.
func (b *Batch) Finished(ctx context.Context) iter.Seq2[int, Result] {
	return results(b.b.Finished(ctx))
}

func results(seq iter.Seq2[int, engine.Result]) iter.Seq2[int, Result] {
	return func(yield func(int, Result) bool) {
		seq(func(i int, r engine.Result) bool { return yield(i, Result(r)) })
	}
}

// Reset makes the batch empty and open again and keeps its memory. It is ErrBusy
// while requests are in flight or notifications on their way.
func (b *Batch) Reset() error { return b.b.Reset() }
