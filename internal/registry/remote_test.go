package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/segment"
)

// peer is an owner that answers fetches when it is told to.
type peer struct {
	desc    atomic.Pointer[segment.Desc]
	asked   atomic.Int32
	stopped atomic.Int32 // fetches whose context ended first
	answer  chan error   // nil: at once
}

func (p *peer) fetch(ctx context.Context) (*segment.Desc, error) {
	p.asked.Add(1)
	if p.answer == nil {
		return p.desc.Load(), nil
	}
	select {
	case err := <-p.answer:
		return p.desc.Load(), err
	case <-ctx.Done():
		p.stopped.Add(1)
		return nil, ctx.Err()
	}
}

func (p *peer) is(inc segment.Incarnation, version uint64) *segment.Desc {
	d := &segment.Desc{Name: "b:1", Addr: "10.0.0.2:1", Incarnation: inc, Version: version}
	p.desc.Store(d)
	return d
}

func opened(t *testing.T, table *Remotes, name segment.Name, p *peer) *Remote {
	t.Helper()
	r, err := table.Open(t.Context(), name, p.fetch)
	if err != nil {
		t.Fatalf("open %s: %v", name, err)
	}
	return r
}

func TestRefreshSeesLateBuffersAndRestarts(t *testing.T) {
	table := NewRemotes(0)
	defer table.Close()
	p := &peer{}
	first := p.is(7, 1)
	r := opened(t, table, "b:1", p)
	if r.Desc() != first {
		t.Fatal("Open gives another descriptor")
	}
	for _, c := range []struct {
		inc       segment.Incarnation
		version   uint64
		news      bool
		restarted bool
	}{{7, 2, true, false}, {7, 2, false, false}, {7, 1, false, false}, {9, 1, true, true}, {0, 0, true, true}, {0, 0, true, false}} {
		seen := r.Desc()
		sent := p.is(c.inc, c.version)
		now, restarted, err := r.Refresh(t.Context(), seen)
		want := seen
		if c.news {
			want = sent
		}
		if err != nil || now != want || r.Desc() != want || restarted != c.restarted {
			t.Errorf("after %v version %d: %v version %d, restarted %t, %v; want news %t, restarted %t", c.inc, c.version, now.Incarnation, now.Version, restarted, err, c.news, c.restarted)
		}
	}
	asked := p.asked.Load()
	if now, _, _ := r.Refresh(t.Context(), first); now != r.Desc() || p.asked.Load() != asked {
		t.Error("Refresh of what was replaced already asked the peer again")
	}
}

func TestCallersShareOneFetch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := NewRemotes(0)
		defer table.Close()
		p := &peer{answer: make(chan error)}
		p.is(7, 1)
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() { opened(t, table, "b:1", p) })
		}
		synctest.Wait()
		p.answer <- nil
		wg.Wait()
		if n := p.asked.Load(); n != 1 {
			t.Errorf("50 times Open asked %d times, want once", n)
		}

		r := table.All()[0]
		stale := r.Desc()
		p.is(8, 1)
		for range 50 { // a storm of requests that all failed
			wg.Go(func() {
				if _, restarted, err := r.Refresh(t.Context(), stale); err != nil || !restarted {
					t.Errorf("Refresh: %v, restarted %t", err, restarted)
				}
			})
		}
		synctest.Wait()
		p.answer <- nil
		wg.Wait()
		if n := p.asked.Load(); n != 2 {
			t.Errorf("50 times Refresh asked %d times, want once more", n-1)
		}

		p.is(9, 1)
		p.answer = make(chan error, 1)
		p.answer <- errs.New(errs.Unreachable, "dial", "nobody")
		if _, _, err := r.Refresh(t.Context(), r.Desc()); !errors.Is(err, errs.ErrUnreachable) || r.Desc().Incarnation != 8 {
			t.Errorf("a failed Refresh: %v, descriptor of %v; want the error and the old one", err, r.Desc().Incarnation)
		}
		for range 50 {
			r.Close()
		}
		if len(table.All()) != 0 {
			t.Error("a segment that everybody closed is still there")
		}
	})
}

// TestGivingUp has callers leave: the fetch goes on for the others and ends
// with the last one.
func TestGivingUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := NewRemotes(1)
		defer table.Close()
		p := &peer{answer: make(chan error)}
		p.is(7, 1)
		open := func(ctx context.Context, result chan<- error) {
			_, err := table.Open(ctx, "b:1", p.fetch)
			result <- err
		}
		impatient, cancel := context.WithCancelCause(t.Context())
		left, stayed := make(chan error, 1), make(chan error, 1)
		go open(impatient, left)
		synctest.Wait()
		go open(t.Context(), stayed)
		synctest.Wait()
		cancel(io.EOF)
		if err := <-left; !errors.Is(err, io.EOF) || errs.Of(err) != errs.Canceled {
			t.Errorf("one who gave up: %v", err)
		}
		p.answer <- nil
		if err := <-stayed; err != nil {
			t.Errorf("one who stayed: %v", err)
		}
		if n := p.stopped.Load(); n != 0 {
			t.Errorf("%d fetches were stopped", n)
		}

		r := table.All()[0]
		last, cancelLast := context.WithCancel(t.Context())
		go func() {
			_, _, err := r.Refresh(last, r.Desc())
			left <- err
		}()
		synctest.Wait()
		cancelLast()
		synctest.Wait()
		if err := <-left; !errors.Is(err, context.Canceled) || p.stopped.Load() != 1 {
			t.Errorf("the last one gave up: %v, %d fetches stopped, want 1", err, p.stopped.Load())
		}
		if _, err := table.Open(t.Context(), "c:1", p.fetch); !errors.Is(err, errs.ErrOverloaded) {
			t.Errorf("the second segment of one: %v, want ErrOverloaded", err)
		}
		r.Close()
		failing := func(context.Context) (*segment.Desc, error) { return nil, errs.New(errs.NotFound, "get", "") }
		for range 3 { // a failed Open takes no place
			if _, err := table.Open(t.Context(), "c:1", failing); !errors.Is(err, errs.ErrNotFound) {
				t.Errorf("open what is not there: %v", err)
			}
		}
		if _, err := table.Open(t.Context(), "c:1", func(context.Context) (*segment.Desc, error) { return nil, nil }); !errors.Is(err, errs.ErrInternal) {
			t.Errorf("a fetch without result: %v", err)
		}
	})
}

// TestAbandonedFetchChangesNothing lets a slow answer arrive after a newer one.
func TestAbandonedFetchChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := NewRemotes(0)
		defer table.Close()
		p := &peer{}
		old := p.is(7, 1)
		late := make(chan bool)
		slow := false
		r, err := table.Open(t.Context(), "b:1", func(ctx context.Context) (*segment.Desc, error) {
			if slow {
				slow = false
				<-late // deaf to ctx
				return &segment.Desc{Incarnation: 6, Version: 9}, nil
			}
			return p.fetch(ctx)
		})
		if err != nil {
			t.Fatal(err)
		}
		slow = true
		ctx, cancel := context.WithCancel(t.Context())
		gone := make(chan error)
		go func() { _, _, err := r.Refresh(ctx, old); gone <- err }()
		synctest.Wait()
		cancel()
		<-gone
		fresh := p.is(8, 1)
		if now, restarted, err := r.Refresh(t.Context(), old); now != fresh || !restarted || err != nil {
			t.Errorf("Refresh beside a hung fetch: %+v, %v", now, err)
		}
		late <- true
		synctest.Wait()
		if r.Desc() != fresh {
			t.Errorf("the late answer replaced the newer descriptor by %+v", r.Desc())
		}
	})
}

func TestSpellingsOfOnePeerAreOneIdentity(t *testing.T) {
	table := NewRemotes(0)
	defer table.Close()
	good, evil := &peer{}, &peer{}
	good.is(7, 1)
	seen := map[Identity]bool{}
	for _, name := range []segment.Name{"localhost:1", "127.0.0.1:1", "[::1]:1"} {
		seen[opened(t, table, name, good).Identity()] = true
	}
	if len(seen) != 1 {
		t.Errorf("three names of one peer have %d identities", len(seen))
	}
	// A peer that claims to be another one changes nothing for those who opened that.
	evil.desc.Store(&segment.Desc{Incarnation: 7, Addr: "10.0.0.2:1", Version: 99, Buffers: []segment.Buffer{{Name: "trap"}}})
	opened(t, table, "evil:1", evil)
	if r := opened(t, table, "localhost:1", good); len(r.Desc().Buffers) != 0 {
		t.Error("one peer's descriptor was replaced by what another one said")
	}
	evil.desc.Store(&segment.Desc{Incarnation: 7, Addr: "10.6.6.6:1"})
	if id := opened(t, table, "evil:2", evil).Identity(); seen[id] {
		t.Error("an incarnation at another address has the same identity")
	}
	mooncake := &peer{}
	mooncake.is(0, 0)
	if a, b := opened(t, table, "m:1", mooncake).Identity(), opened(t, table, "m:2", mooncake).Identity(); a == b {
		t.Error("two peers that say nothing of themselves have one identity")
	}
}

func TestRemotesCloseStopsFetches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := NewRemotes(0)
		p := &peer{answer: make(chan error)}
		p.is(7, 1)
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() {
				if _, err := table.Open(context.Background(), segment.Name(fmt.Sprint(i)), p.fetch); err == nil {
					t.Error("Open succeeded")
				}
			})
		}
		synctest.Wait()
		table.Close()
		wg.Wait()
		if n := p.stopped.Load(); n != 10 {
			t.Errorf("%d of 10 fetches were stopped", n)
		}
		if _, err := table.Open(t.Context(), "x", p.fetch); !errors.Is(err, errs.ErrClosed) {
			t.Errorf("Open after Close: %v", err)
		}
	})
}
