package engine

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/testenv"
	"github.com/tideway-io/tideway/segment"
)

// startBatch opens an engine, its peer's "kv" and a batch.
func startBatch(t *testing.T, change ...func(*Config)) (*Engine, *fake, *Found, *Batch) {
	t.Helper()
	f, net := &fake{}, &network{}
	net.put(peerDesc("b:1", 7))
	e := openFake(t, f, net, change...)
	_, kv := lookUp(t, e, "b:1")
	return e, f, kv, e.NewBatch()
}

func TestBatchOfNothing(t *testing.T) {
	e, _, _, b := startBatch(t)
	add(t, b)
	early := b.Done()
	select {
	case <-early:
		t.Fatal("done before it is sealed")
	default:
	}
	b.Seal()
	b.Seal()
	<-early
	<-b.Done() // asked for when it is done already
	if err := b.Wait(t.Context()); err != nil || b.Len() != 0 {
		t.Errorf("%v, %d requests", err, b.Len())
	}
	if n := e.Inspect().Counts.BatchesLive; n != 0 {
		t.Errorf("%d batches live, want none", n)
	}
}

func TestAddAfterSeal(t *testing.T) {
	e, f, kv, b := startBatch(t, func(c *Config) { c.MaxRequests = 1 })
	add(t, b, writes(1, kv)...)
	b.Seal()
	holding(t, f, 1)
	// There is no room either; that must not matter.
	if err := b.Add(t.Context(), writes(1, kv)); !errors.Is(err, errs.ErrClosed) {
		t.Errorf("Add after Seal: %v", err)
	}
	f.complete(errs.OK)
	if err := done(t, b); err != nil || b.Len() != 1 {
		t.Errorf("%v, %d requests", err, b.Len())
	}
	if n, bytes := e.admission.inside(); n != 0 || bytes != 0 {
		t.Errorf("%d requests of %d bytes are left inside", n, bytes)
	}
}

// TestSealWhileAddWaits: the call that waits for room when its batch is sealed
// is refused and leaves nothing behind.
func TestSealWhileAddWaits(t *testing.T) {
	e, f, kv, b := startBatch(t, func(c *Config) { c.MaxRequests = 1 })
	add(t, b, writes(1, kv)...)
	holding(t, f, 1)
	late := make(chan error, 1)
	go func() { late <- b.Add(t.Context(), writes(1, kv)) }()
	testenv.Eventually(t, testTime, func() bool { return waiting(e) == 1 }, "the second Add does not wait")
	b.Seal()
	f.complete(errs.OK)
	if err := <-late; !errors.Is(err, errs.ErrClosed) {
		t.Errorf("Add: %v", err)
	}
	if err := done(t, b); err != nil || b.Len() != 1 {
		t.Errorf("%v, %d requests", err, b.Len())
	}
	if n, _ := e.admission.inside(); n != 0 {
		t.Errorf("%d requests are left inside", n)
	}
}

// waiting returns how many calls wait for admission.
func waiting(e *Engine) int {
	e.admission.mu.Lock()
	defer e.admission.mu.Unlock()
	return len(e.admission.mu.waiters)
}

func TestConcurrentAdds(t *testing.T) {
	_, f, kv, b := startBatch(t)
	const callers, calls, each = 8, 20, 7
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for range calls {
				add(t, b, writes(each, kv)...)
			}
		})
	}
	wg.Wait()
	b.Seal()
	for !b.Satisfied() {
		f.complete(errs.OK)
	}
	seen := map[int]bool{}
	for i, r := range b.Finished(t.Context()) {
		if seen[i] || r.Err != nil || r.Bytes != 10 {
			t.Errorf("request %d: %+v, seen %v", i, r, seen[i])
		}
		seen[i] = true
	}
	if len(seen) != callers*calls*each || b.Len() != len(seen) {
		t.Errorf("%d ended of %d, want %d", len(seen), b.Len(), callers*calls*each)
	}
}

func TestResetWhileBusy(t *testing.T) {
	_, f, kv, b := startBatch(t)
	add(t, b, writes(2, kv)...)
	b.Seal()
	holding(t, f, 2)
	if err := b.Reset(); !errors.Is(err, errs.ErrBusy) || b.Len() != 2 {
		t.Errorf("a batch with requests in flight: %v, %d requests", err, b.Len())
	}
	f.complete(errs.OK)
	was := b.Done()
	if err := done(t, b); err != nil {
		t.Fatal(err)
	}
	if err := b.Reset(); err != nil {
		t.Fatal(err)
	}
	<-was
	select {
	case <-b.Done():
		t.Error("done again before it is sealed again")
	default:
	}
	b.Seal()
	if err := done(t, b); err != nil {
		t.Error(err)
	}
}

func TestFinishedEndsWithItsContext(t *testing.T) {
	_, f, kv, b := startBatch(t)
	add(t, b, writes(1, kv)...)
	holding(t, f, 1)
	f.complete(errs.OK)
	add(t, b, writes(2, kv)...)
	b.Seal()
	holding(t, f, 2)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var got []int
	for i := range b.Finished(ctx) {
		got = append(got, i)
		cancel() // the next one will not come
	}
	if len(got) != 1 || got[0] != 0 {
		t.Errorf("ended: %v, want request 0", got)
	}
	f.complete(errs.OK)
	for i := range b.Finished(t.Context()) { // each range begins anew
		got = append(got, i)
		if len(got) == 3 {
			break
		}
	}
	if len(got) != 3 {
		t.Errorf("ended: %v", got)
	}
	if err := b.Wait(ctx); err != nil {
		t.Errorf("waiting with a context that has ended for what is done: %v", err)
	}
}

// TestFinishTellsTheTruth: when all requests have ended well, that is the result,
// also if the context ended at the same moment.
func TestFinishTellsTheTruth(t *testing.T) {
	_, f, kv, b := startBatch(t)
	for range 500 {
		ctx, cancel := context.WithCancel(t.Context())
		add(t, b, writes(1, kv)...)
		var wg sync.WaitGroup
		wg.Go(cancel)
		wg.Go(func() { f.complete(errs.OK) })
		if err := b.Finish(ctx); (err == nil) != (b.Err() == nil) {
			t.Fatalf("Finish says %v, the batch %v", err, b.Err())
		}
		wg.Wait()
		if err := b.Reset(); err != nil {
			t.Fatal(err)
		}
	}
	b.Seal()
}

// TestCancelAndReuse cancels from one goroutine a batch that another one uses
// again and again: whatever is cancelled ends, and nothing else goes wrong.
func TestCancelAndReuse(t *testing.T) {
	_, f, kv, b := startBatch(t)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				b.Cancel()
				runtime.Gosched()
			}
		}
	})
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				f.complete(errs.OK)
				for range b.Results() {
				}
				runtime.Gosched()
			}
		}
	})
	for range 100 {
		add(t, b, writes(3, kv)...)
		if err := b.Finish(t.Context()); err != nil && !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		if err := b.Reset(); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	wg.Wait()
	b.Seal()
}

// TestCancelWhileConnecting and in flight: the batch ends as soon as it is quiet.
func TestCancelWhileConnecting(t *testing.T) {
	f, net := &fake{}, &network{}
	net.put(peerDesc("b:1", 7))
	f.connect = func(ctx context.Context, _ *segment.Desc) error { <-ctx.Done(); return ctx.Err() }
	e := openFake(t, f, net)
	_, kv := lookUp(t, e, "b:1")
	b := e.NewBatch()
	add(t, b, writes(3, kv)...)
	b.Seal()
	start := time.Now()
	b.Cancel()
	b.Cancel()
	if err := done(t, b); !errors.Is(err, context.Canceled) || time.Since(start) > time.Second {
		t.Errorf("%v after %v", err, time.Since(start))
	}
}

func TestCancelInFlight(t *testing.T) {
	_, f, kv, b := startBatch(t)
	add(t, b, writes(3, kv)...)
	b.Seal()
	holding(t, f, 3)
	b.Cancel()
	if err := done(t, b); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	for i, r := range b.Results() {
		if !errors.Is(r.Err, context.Canceled) || r.Bytes != 0 {
			t.Errorf("request %d: %+v", i, r)
		}
	}
	b.Cancel() // of what is done: nothing
}
