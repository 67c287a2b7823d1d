package memory

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/mem"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
)

// TestTargetGoes closes and drains a target with slices inside.
func TestTargetGoes(t *testing.T) {
	st := newStopper()
	hub := NewHub()
	from, to := open(t, hub.Driver(), nil), open(t, hub.Driver(), st.wrap)
	const n = 4 * mem.Step
	buf := to.register(make([]byte, n), segment.ReadWrite)
	ep := from.connect(to)
	s := []transport.Slice{{Op: transport.Write, Local: make([]byte, n), Buffer: buf, Tag: 1}}
	if _, err := ep.Post(s); err != nil {
		t.Fatal(err)
	}
	<-st.entered
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := to.tr.(*Transport).Drain(ctx); !errors.Is(err, errs.ErrBusy) {
		t.Errorf("Drain with a slice inside and no time: %v, want ErrBusy", err)
	}
	if took, err := ep.Post(s); took != 0 || errs.Of(err) != errs.Draining {
		t.Errorf("Post to a draining target: %d, %v", took, err)
	}
	if _, err := from.tr.Connect(t.Context(), to.desc()); errs.Of(err) != errs.Draining {
		t.Errorf("Connect to a draining target: %v", err)
	}
	gone := make(chan struct{})
	go func() { _ = to.tr.Close(); close(gone) }()
	for !to.tr.(*Transport).in.isClosed() {
		select {
		case <-gone:
			t.Fatal("Close of the target returned with a slice inside")
		default:
		}
	}
	close(st.pass)
	<-gone
	if c := from.await(1)[1]; c.Code != errs.LaneLost {
		t.Errorf("the slice ended with %v, want lane_lost", c.Code)
	}
	if took, err := ep.Post(s); took != 0 || !errors.Is(err, errs.ErrUnreachable) {
		t.Errorf("Post to a closed target: %d, %v", took, err)
	}
}

// TestRevokedHalfway closes the target's buffer in the middle of a slice.
func TestRevokedHalfway(t *testing.T) {
	st := newStopper()
	hub := NewHub()
	from, to := open(t, hub.Driver(), nil), open(t, hub.Driver(), st.wrap)
	target := make([]byte, 64*mem.Step)
	b := to.enrol(target, segment.ReadWrite)
	ep := from.connect(to)
	if _, err := ep.Post([]transport.Slice{{Op: transport.Read, Local: make([]byte, len(target)), Buffer: b.Desc(), Tag: 1}}); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		<-st.entered
		st.pass <- struct{}{}
	}
	<-st.entered
	if err := b.Close(t.Context()); err != nil {
		t.Errorf("Close between two steps: %v", err)
	}
	clear(target) // it is ours again: a race if not
	close(st.pass)
	if c := from.await(1)[1]; c.Code != errs.Revoked {
		t.Errorf("the slice ended with %v, want revoked", c.Code)
	}
}

func TestIdleWorkersEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := open(t, New(), nil)
		buf := e.register(make([]byte, mem.Step), segment.ReadWrite)
		ep := e.connect(e)
		p := &e.tr.(*Transport).large
		workers := func() int { p.mu.Lock(); defer p.mu.Unlock(); return p.mu.workers }
		for round := range 3 {
			tag := transport.Tag(round)
			if _, err := ep.Post([]transport.Slice{{Op: transport.Read, Local: make([]byte, mem.Step), Buffer: buf, Tag: tag}}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if n, w := e.count(), workers(); n != round+1 || w != 1 {
				t.Fatalf("round %d: %d completions, %d workers; want one more and 1", round, n, w)
			}
			time.Sleep(idleTime + 1) // virtual
			synctest.Wait()
			if w := workers(); w != 0 {
				t.Errorf("%d workers are left after %v of nothing to do", w, idleTime)
			}
		}
		if err := e.tr.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestStorm has everything happen at once; the ledger finds what completes
// twice or never.
func TestStorm(t *testing.T) {
	hub := NewHub()
	from, to := open(t, hub.Driver(), nil), open(t, hub.Driver(), nil)
	target := make([]byte, 8<<20)
	buf := to.register(target, segment.ReadWrite)
	var accepted, tags struct {
		sync.Mutex
		n int
	}
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(g)))
			for range 5 {
				ep := from.connect(to)
				for range 10 {
					s := make([]transport.Slice, 1+rng.IntN(20))
					tags.Lock()
					for i := range s {
						s[i] = transport.Slice{Op: transport.Read, Buffer: buf, Local: make([]byte, rng.IntN(1<<(10+rng.IntN(12)))), Tag: transport.Tag(tags.n)}
						tags.n++
					}
					tags.Unlock()
					n, _ := ep.Post(s)
					accepted.Lock()
					accepted.n += n
					accepted.Unlock()
					ep.(transport.Canceler).Cancel([]transport.Tag{s[0].Tag})
				}
				_ = ep.Close()
			}
		})
	}
	wg.Wait()
	if got := from.count(); got != accepted.n {
		t.Errorf("%d completions for %d accepted slices", got, accepted.n)
	}
	if n := len(from.tr.(*Transport).mu.endpoints); n != 0 {
		t.Errorf("%d closed endpoints are remembered", n)
	}
	_, _ = from.tr.Close(), to.tr.Close()
	if n := len(hub.mu.members); n != 0 {
		t.Errorf("%d closed engines are members", n)
	}
}

func TestPoolUsesAllItsWorkers(t *testing.T) {
	st := newStopper()
	e := open(t, New(), st.wrap)
	e.tr.(*Transport).large.max = 3
	buf := e.register(make([]byte, mem.Step), segment.ReadWrite)
	ep := e.connect(e)
	for i := range 5 {
		if _, err := ep.Post([]transport.Slice{{Op: transport.Read, Local: make([]byte, mem.Step), Buffer: buf, Tag: transport.Tag(i)}}); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 { // they are inside at the same time
		<-st.entered
	}
	close(st.pass)
	e.await(5)
}

func TestWorkerStaysForAJobThatCameInTime(t *testing.T) {
	var p pool
	p.init(1)
	p.mu.workers, p.mu.pending = 1, 1
	p.urgent <- &job{}
	if p.retire() || p.mu.workers != 1 {
		t.Error("the only worker left a job behind")
	}
}

func TestShutWakesEveryWaiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g gate
		g.init()
		if code := g.enter(); code != errs.OK {
			t.Fatal(code)
		}
		done := make(chan bool, 3)
		for _, bit := range []uint64{draining, draining, closed} {
			go func() { done <- g.shut(t.Context(), bit) }()
		}
		synctest.Wait()
		if len(done) != 0 {
			t.Fatal("shut returned with somebody inside")
		}
		g.leave()
		for range 3 {
			if !<-done {
				t.Error("shut gave up")
			}
		}
		if code := g.enter(); code != errs.Refused {
			t.Errorf("enter through a closed gate: %v", code)
		}
	})
}

// TestByAddress is for peers whose descriptors have no keys.
func TestByAddress(t *testing.T) {
	e := open(t, New(), nil)
	whole := make([]byte, 200)
	e.register(whole[:100], segment.ReadWrite)
	b := *e.register(whole[100:], segment.ReadWrite)
	b.Key = 0
	ep := e.connect(e)
	for i, c := range []struct {
		off  uint64
		want errs.Code
	}{{0, errs.OK}, {90, errs.OK}, {91, errs.OutOfRange}, {^uint64(49), errs.OutOfRange}} {
		clear(whole)
		tag := transport.Tag(i)
		if _, err := ep.Post([]transport.Slice{{Op: transport.Write, Local: bytes.Repeat([]byte{1}, 10), Buffer: &b, Offset: c.off, Tag: tag}}); err != nil {
			t.Fatal(err)
		}
		if got := e.await(i + 1)[tag].Code; got != c.want || (bytes.IndexByte(whole, 1) == 100+int(c.off)) != (c.want == errs.OK) {
			t.Errorf("10 bytes at %d: %v, want %v; first byte at %d", int64(c.off), got, c.want, bytes.IndexByte(whole, 1))
		}
	}
}
