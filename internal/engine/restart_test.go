package engine

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/mooncake"
	"github.com/tideway-io/tideway/segment"
)

// describe puts a peer's descriptor into a store under "b".
func (s *shop) describe(t *testing.T, d *segment.Desc) {
	t.Helper()
	d.Name = "b"
	value, err := mooncake.EncodeDesc(d, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Store.Put(t.Context(), mooncake.DescKey("", "b"), value); err != nil {
		t.Fatal(err)
	}
}

// TestRestartElsewhere: with a store a peer comes back at another address. Where
// it was nobody answers, and its old handles are stale all the same.
func TestRestartElsewhere(t *testing.T) {
	var dead atomic.Bool
	f, s := &fake{}, newShop()
	f.connect = func(_ context.Context, d *segment.Desc) error {
		if dead.Load() && d.Addr == "old:1" {
			return errs.New(errs.Refused, "connect", "nobody there")
		}
		return nil
	}
	e := openFake(t, f, &network{}, inStore(s, "n"))
	s.describe(t, peerDesc("old:1", 7))
	seg, old := lookUp(t, e, "b")
	dead.Store(true)
	if err := e.Do(t.Context(), writes(1, old)...); errs.Of(err) != errs.Refused {
		t.Errorf("a peer that is gone: %v, want refused", err)
	}
	s.do(func(ctx context.Context, _ string) error { <-ctx.Done(); return ctx.Err() })
	start := time.Now()
	if err := e.Do(t.Context(), writes(1, old)...); errs.Of(err) != errs.Refused || time.Since(start) > testTime/2 {
		t.Errorf("a peer that is gone, as is the store: %v after %v, want refused, soon", err, time.Since(start))
	}
	s.do(nil)
	s.describe(t, peerDesc("new:1", 8))
	b := e.NewBatch()
	add(t, b, append(writes(3, old), byAddr(seg, 0x10000))...)
	b.Seal()
	_ = done(t, b)
	for i, r := range b.Results() {
		if !errors.Is(r.Err, errs.ErrStale) || errors.Is(r.Err, errs.ErrUnreachable) {
			t.Errorf("request %d to the life before: %v, want stale", i, r.Err)
		}
	}
	connects := f.mu.connects
	if err := e.Do(t.Context(), writes(1, old)...); errs.Of(err) != errs.Restarted || f.mu.connects != connects {
		t.Errorf("once the restart is known: %v, %d connection attempts", err, f.mu.connects-connects)
	}
	now, err := seg.Buffer(t.Context(), "kv")
	if err != nil {
		t.Fatal(err)
	}
	next := e.NewBatch()
	add(t, next, append(writes(1, now), byAddr(seg, 0x10000))...)
	next.Seal()
	holding(t, f, 2)
	f.complete(errs.OK)
	if err := done(t, next); err != nil {
		t.Errorf("after a look-up: %v", err)
	}
}
