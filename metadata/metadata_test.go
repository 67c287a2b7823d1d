package metadata

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tideway-io/tideway/errs"
)

// renewals counts, and says what it is told to.
type renewals struct {
	n    atomic.Int32
	gone atomic.Bool
}

func (r *renewals) renew(context.Context) bool { r.n.Add(1); return !r.gone.Load() }

func (r *renewals) put() (Renew, error) { return r.renew, nil }

func TestLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Leases
		ctx, cancel := context.WithCancel(t.Context())
		var first, second, other renewals
		change := func(ctx context.Context, key string, f func() (Renew, error)) {
			t.Helper()
			if err := l.Change(ctx, key, 3*time.Second, f); err != nil {
				t.Fatal(err)
			}
		}
		count := func(want1, want2 int32) {
			t.Helper()
			synctest.Wait()
			if a, b := first.n.Load(), second.n.Load(); a != want1 || b != want2 {
				t.Errorf("renewed %d and %d times, want %d and %d", a, b, want1, want2)
			}
		}
		change(t.Context(), "k", first.put)
		time.Sleep(3500 * time.Millisecond)
		count(3, 0)
		boom := errors.New("boom")
		if err := l.Change(t.Context(), "k", time.Second, func() (Renew, error) { return nil, boom }); err != boom {
			t.Error(err)
		}
		time.Sleep(time.Second) // a change that failed left the value as it was
		count(4, 0)
		change(ctx, "k", second.put)
		time.Sleep(2 * time.Second)
		count(4, 2)
		cancel()
		time.Sleep(2 * time.Second)
		count(4, 2)
		change(t.Context(), "k", first.put)
		change(t.Context(), "k", func() (Renew, error) { return nil, nil })
		time.Sleep(2 * time.Second)
		count(4, 2)
		change(t.Context(), "k", first.put)
		first.gone.Store(true)
		time.Sleep(5 * time.Second)
		count(5, 2)
		change(t.Context(), "other", other.put)
		l.Close()
		if len(l.mu.keys) != 0 {
			t.Errorf("%d keys are left", len(l.mu.keys))
		}
		change(t.Context(), "k", second.put) // renewed no more
		time.Sleep(2 * time.Second)
		count(5, 2)
	})
}

func TestOneChangeOfAKeyAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Leases
		gate := make(chan struct{})
		go l.Change(t.Context(), "k", 0, func() (Renew, error) { <-gate; return nil, nil })
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := l.Change(ctx, "k", 0, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if err := l.Change(t.Context(), "other", 0, func() (Renew, error) { return nil, nil }); err != nil {
			t.Error(err)
		}
		close(gate)
		synctest.Wait()
		if len(l.mu.keys) != 0 {
			t.Errorf("%d keys are left", len(l.mu.keys))
		}
	})
}

// slate is a store of one answer.
type slate struct{ atomic.Pointer[said] }

type said struct {
	value []byte
	err   error
}

func (s *slate) Get(context.Context, string) ([]byte, error) { a := s.Load(); return a.value, a.err }

func (s *slate) Put(context.Context, string, []byte) error { return nil }

func (s *slate) Delete(context.Context, string) error { return nil }

func TestPoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone := errs.New(errs.NotFound, "get", "no key")
		away := errs.New(errs.Unreachable, "get", "away")
		s := &slate{}
		s.Store(&said{err: away})
		ctx, cancel := context.WithCancel(t.Context())
		var seen []string
		ended := make(chan error, 1)
		go func() {
			ended <- Poll(ctx, s, "k", time.Second, func(v []byte) {
				if v == nil {
					seen = append(seen, "nil")
				} else {
					seen = append(seen, string(v))
				}
			})
		}()
		step := func(value []byte, err error) {
			synctest.Wait()
			s.Store(&said{value, err})
			time.Sleep(2500 * time.Millisecond)
		}
		for _, v := range []string{"a", "a", "b", ""} {
			step([]byte(v), nil)
		}
		step(nil, nil) // empty as well
		step(nil, gone)
		step(nil, gone)
		step([]byte("b"), away)
		step([]byte("c"), nil)
		step(nil, gone)
		step([]byte{}, nil)
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		want := []string{"a", "b", "", "nil", "c", "nil", ""}
		if len(seen) != len(want) {
			t.Fatalf("%q, want %q", seen, want)
		}
		for i := range want {
			if seen[i] != want[i] {
				t.Fatalf("%q, want %q", seen, want)
			}
		}
	})
}
