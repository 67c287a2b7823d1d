package tideway_test

import (
	"context"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/tideway-io/tideway"
	"github.com/tideway-io/tideway/internal/testenv"
	"github.com/tideway-io/tideway/segment"
)

// peerEnv names, for a test inside a host, the host at the other end of its link.
const peerEnv = "TIDEWAY_TEST_PEER"

// linked runs the calling test inside a host whose link to another one carries
// 2 Gb/s with a short queue, which the CPUs can fill with ease. It returns the
// command words that put a process into the other host, nil outside.
func linked(t *testing.T) []string {
	t.Helper()
	testenv.NeedRoot(t)
	if isInside() {
		return []string{"ip", "netns", "exec", os.Getenv(peerEnv)}
	}
	lab := testenv.NewLab(t)
	a, b := lab.Host("a"), lab.Host("b")
	lab.Link(a, b, "10.31.0.1/24", "10.31.0.2/24")
	for _, h := range []*testenv.Host{a, b} { // at most 0.4 ms wait in the queue, burst included
		h.Run("tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", "rate", "2gbit", "burst", "64kb", "latency", "100us")
	}
	t.Setenv(peerEnv, b.Netns)
	inside(t, a)
	return nil
}

// beside keeps requests of 1 MiB in flight until stop is called, which returns
// the bytes per second that they moved.
func beside(t *testing.T, e *tideway.Engine, op tideway.Op, kv *tideway.RemoteBuffer) (stop func() float64) {
	t.Helper()
	const size, depth = 1 << 20, 64
	local := make([]byte, kv.Len())
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var mu sync.Mutex
	moved, start := 0, time.Now()
	for range depth {
		wg.Go(func() {
			for ctx.Err() == nil {
				mu.Lock()
				at := moved % len(local)
				moved += size
				mu.Unlock()
				req := tideway.Request{Op: op, Local: tideway.Bytes(local[at : at+size]), Remote: kv.At(uint64(at)), Priority: tideway.Bulk}
				if err := e.Do(ctx, req); err != nil && ctx.Err() == nil {
					t.Error(err)
					return
				}
			}
		})
	}
	return func() float64 {
		rate := float64(moved) / time.Since(start).Seconds()
		cancel()
		wg.Wait()
		return rate
	}
}

// besideBulk returns the p99 of small reads on the idle link with one process
// that burns CPU, and beside bulk of each op, whose rates it returns.
func besideBulk(t *testing.T, by []string, n int) (idle time.Duration, loaded [2]time.Duration, rates [2]float64) {
	const size = 64 << 20
	tg := startTargetBy(t, spec{Config: targetConfig{Listen: "10.31.0.2:0"}, Buffers: []targetBuffer{{Name: "kv", Size: size, Access: segment.ReadWrite}}}, by...)
	e := open(t, tideway.Config{})
	_, kv := find(t, e, tg.Addr, "kv")
	burner := testenv.Start(t, "sh", "-c", "while :; do :; done")
	reads(t, kv, 4096, 100)
	idle = percentile(reads(t, kv, 4096, n), 0.99)
	burner.Kill()
	for i, op := range []tideway.Op{tideway.Write, tideway.Read} {
		stop := beside(t, e, op, kv)
		reads(t, kv, 4096, 100) // until the bulk is at full speed
		loaded[i] = percentile(reads(t, kv, 4096, n), 0.99)
		rates[i] = stop()
	}
	return idle, loaded, rates
}

// TestB31SmallBesideBulk shows that small reads go on beside bulk and that bulk
// does too. How much slower they are is TestSpeedB31's to say.
func TestB31SmallBesideBulk(t *testing.T) {
	by := linked(t)
	if by == nil {
		return
	}
	idle, loaded, rates := besideBulk(t, by, 500)
	for i, op := range []tideway.Op{tideway.Write, tideway.Read} {
		t.Logf("4 KiB reads beside bulk %v of %.2f Gb/s: p99 %v, without %v", op, rates[i]*8/1e9, loaded[i], idle)
		if loaded[i] > 100*time.Millisecond {
			t.Errorf("beside bulk %v: p99 %v, want less than what waiting behind bulk would take", op, loaded[i])
		}
		if rates[i] < 20e6 {
			t.Errorf("bulk %v moved only %.0f bytes a second beside small reads", op, rates[i])
		}
	}
}

// TestSpeedB31 is the ratio that case B31 asks for.
func TestSpeedB31(t *testing.T) {
	testenv.NeedSpeed(t)
	by := linked(t)
	if by == nil {
		return
	}
	idle, loaded, rates := besideBulk(t, by, 5000)
	for i, op := range []tideway.Op{tideway.Write, tideway.Read} {
		ratio := float64(loaded[i]) / float64(idle)
		t.Logf("4 KiB reads beside bulk %v of %.2f Gb/s: p99 %v, idle link and a busy CPU %v: %.1f", op, rates[i]*8/1e9, loaded[i], idle, ratio)
		if ratio > 3 {
			t.Errorf("beside bulk %v: %.1f times as long, want 3", op, ratio)
		}
	}
}
