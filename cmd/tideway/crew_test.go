package main

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/testenv"
)

// ownRig is a rig on the engine's own segment.
func ownRig(t *testing.T, size uint64) *rig {
	t.Helper()
	o := &client{c: &console{err: io.Discard}, transport: ownTransport, stall: 10 * time.Second, connect: 5 * time.Second}
	r, err := openRig(t.Context(), o, place{}, size, tuning{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func someCrew(t *testing.T, r *rig, p point, via string) *crew {
	t.Helper()
	c, err := newCrew(r, p, via)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// Every kind of wrong byte is found by the check of a round: old ones, those of
// another place, poison that nothing overwrote.
func TestVerifyFinds(t *testing.T) {
	testenv.Leak(t)
	r := ownRig(t, 1<<20)
	for _, op := range []string{"read", "write", "mix"} {
		c := someCrew(t, r, point{op: op, size: 5000, batch: 4, threads: 2, span: 50000}, ownTransport)
		lap := func(w *worker) error {
			w.tally, w.lap = tally{}, true
			return w.loop(t.Context(), func(*worker) bool { return false })
		}
		for name, wrong := range map[string]func(w *worker) error{
			"right":     lap,
			"not moved": func(*worker) error { return nil },
			"one is less": func(w *worker) error {
				last := &w.turns[len(w.turns)-1]
				all := *last
				defer func() { *last = all }()
				*last = all[:2]
				return lap(w)
			},
		} {
			if err := c.prepare(t.Context()); err != nil {
				t.Fatal(err)
			}
			for _, w := range c.workers {
				if err := wrong(w); err != nil {
					t.Fatal(err)
				}
			}
			if err := c.verify(t.Context()); (err == nil) != (name == "right") || err != nil && !errors.Is(err, errs.ErrChecksum) {
				t.Errorf("%s, %s: %v", op, name, err)
			}
		}
	}
}

// A path other than the one asked for fails the row.
func TestOtherPathFails(t *testing.T) {
	c := someCrew(t, ownRig(t, 1<<16), point{op: "read", size: 4096, batch: 2, threads: 1}, ownTransport)
	c.via = "tcp"
	_, _, err := c.timed(t.Context(), false, func(*worker) bool { return false })
	if !errors.Is(err, errs.ErrUnsupported) || !strings.Contains(err.Error(), "over memory and not over tcp") {
		t.Errorf("got %v", err)
	}
}

// The timed loop allocates nothing of its own, and nothing per request.
func TestTimedLoopAllocations(t *testing.T) {
	r := ownRig(t, 1<<20)
	for _, batch := range []int{1, 16, 128} {
		w := someCrew(t, r, point{op: "read", size: 4096, batch: batch, threads: 1}, ownTransport).workers[0]
		testenv.MaxAllocs(t, 3, func() { // what waiting for one batch costs
			if err := w.loop(t.Context(), func(*worker) bool { return false }); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// An interrupted row ends, with its batches quiet.
func TestTimedIsInterrupted(t *testing.T) {
	c := someCrew(t, ownRig(t, 1<<20), point{op: "write", size: 4096, batch: 16, threads: 3}, ownTransport)
	ctx, cancel := context.WithCancel(t.Context())
	_, _, err := c.timed(ctx, false, func(w *worker) bool {
		if w.batches == 20 {
			cancel()
		}
		return true
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	for _, w := range c.workers {
		select {
		case <-w.batch.Done():
		default:
			t.Error("a batch is under way")
		}
		if w.failed != 0 {
			t.Errorf("%d requests count as failed, and all were withdrawn", w.failed)
		}
	}
}
