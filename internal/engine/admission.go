package engine

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/core/admit"
)

// admission is the bounded queue in front of scheduling: admit's door, and the
// calls that wait for room behind it, first come first served.
type admission struct {
	mu struct {
		sync.Mutex
		door    *admit.Door
		waiters []*waiter
		owed    int           // batches that will send notifications
		empty   chan struct{} // closed when nothing is inside or owed; nil until asked for
		closed  error
	}
}

// waiter is a call that did not fit yet.
type waiter struct {
	call  []demand
	ready chan error
}

// demand is what one call asks for one tenant.
type demand struct {
	tenant          string
	requests, bytes int64
}

// maxWaiters bounds the calls that wait for room; more are refused at once.
const maxWaiters = 4096

// demands adds up what a call asks, by tenant, into into.
func demands(reqs []Request, into []demand) ([]demand, error) {
	var total int64
	at := 0 // neighbours mostly have one tenant
	for i := range reqs {
		n := reqs[i].Local.Length
		if n > uint64(math.MaxInt64-total) {
			return nil, errs.New(errs.Overflow, "submit", "the requests' lengths add up to more than 63 bits")
		}
		total += int64(n)
		if at >= len(into) || !same(into[at].tenant, reqs[i].Tenant) {
			at = slices.IndexFunc(into, func(d demand) bool { return d.tenant == reqs[i].Tenant })
		}
		if at < 0 {
			at = len(into)
			into = append(into, demand{tenant: reqs[i].Tenant})
		}
		into[at].requests++
		into[at].bytes += int64(n)
	}
	return into, nil
}

// same is a == b, quick for empty strings.
func same(a, b string) bool { return len(a) == len(b) && (len(a) == 0 || a == b) }

// take makes room for a whole call, waiting for it until ctx ends.
func (a *admission) take(ctx context.Context, call []demand) error {
	w, err := a.enter(ctx, call)
	if w == nil {
		return err
	}
	select {
	case err := <-w.ready:
		return err
	case <-ctx.Done():
		return a.leave(ctx, w)
	}
}

// enter takes the call in, refuses it, or lets it wait.
func (a *admission) enter(ctx context.Context, call []demand) (*waiter, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.closed != nil {
		return nil, a.mu.closed
	}
	if len(a.mu.waiters) == 0 {
		if err := a.fit(call); !errors.Is(err, errs.ErrOverloaded) {
			return nil, err
		}
	}
	if ctx.Err() != nil {
		return nil, a.full(ctx)
	}
	if len(a.mu.waiters) == maxWaiters {
		return nil, errs.New(errs.Overloaded, "submit", "%d calls wait for admission, the limit; submit from fewer goroutines", maxWaiters)
	}
	w := &waiter{slices.Clone(call), make(chan error, 1)}
	a.mu.waiters = append(a.mu.waiters, w)
	return w, nil
}

// fit takes all of a call or nothing. What does not fit into an empty engine
// never will, and is invalid.
func (a *admission) fit(call []demand) error {
	inside, _ := a.mu.door.Inside()
	for i, d := range call {
		err := a.mu.door.Take(d.tenant, d.requests, d.bytes)
		if err == nil {
			continue
		}
		for _, d := range call[:i] {
			err = errors.Join(err, a.mu.door.Give(d.tenant, d.requests, d.bytes))
		}
		if inside == 0 {
			return errs.New(errs.Invalid, "submit", "one call asks for more than the engine takes in: %v; split it, or raise MaxRequests or MaxBytes", err)
		}
		return err
	}
	return nil
}

// full is the error of a call that there was no room for while ctx lasted.
func (a *admission) full(ctx context.Context) error {
	requests, bytes := a.mu.door.Inside()
	err := errs.New(errs.Overloaded, "submit", "no room in time: %d requests of %d bytes are inside, %d calls wait; wait for some to end, or raise MaxRequests or MaxBytes", requests, bytes, len(a.mu.waiters))
	err.Stage, err.Retryable, err.Err = "admit", true, context.Cause(ctx)
	return err
}

// leave withdraws w, unless it was let in meanwhile.
func (a *admission) leave(ctx context.Context, w *waiter) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	i := slices.Index(a.mu.waiters, w)
	if i < 0 {
		return <-w.ready
	}
	a.mu.waiters = slices.Delete(a.mu.waiters, i, i+1)
	a.admit() // those behind may fit where w did not
	return a.full(ctx)
}

// give takes n requests out and lets waiters in. The error is a broken invariant.
func (a *admission) give(tenant string, requests, bytes int64) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	err := a.mu.door.Give(tenant, requests, bytes)
	a.admit()
	a.drain()
	return err
}

// owe counts batches whose end is more than that of their requests.
func (a *admission) owe(n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mu.owed += n
	a.drain()
}

// drain tells who waits for it that nothing is left. The lock is held.
func (a *admission) drain() {
	if n, _ := a.mu.door.Inside(); n == 0 && a.mu.owed == 0 && a.mu.empty != nil {
		close(a.mu.empty)
		a.mu.empty = nil
	}
}

func (a *admission) admit() {
	for len(a.mu.waiters) > 0 && a.mu.closed == nil {
		w := a.mu.waiters[0]
		err := a.fit(w.call)
		if errors.Is(err, errs.ErrOverloaded) {
			return
		}
		a.mu.waiters = a.mu.waiters[1:]
		w.ready <- err
	}
}

// close refuses everybody from now on with err.
func (a *admission) close(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.closed != nil {
		return
	}
	a.mu.closed = err
	for _, w := range a.mu.waiters {
		w.ready <- err
	}
	a.mu.waiters = nil
}

// inside returns what is admitted and has not ended.
func (a *admission) inside() (requests, bytes int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.mu.door.Inside()
}

// drained returns a channel that is closed when nothing is inside.
func (a *admission) drained() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.empty == nil {
		a.mu.empty = make(chan struct{})
	}
	empty := a.mu.empty
	a.drain()
	return empty
}
