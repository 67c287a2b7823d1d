package tideway_test

import (
	"context"
	"fmt"
	"math"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tideway-io/tideway"
	"github.com/tideway-io/tideway/internal/testenv"
	"github.com/tideway-io/tideway/segment"
)

// peerEnv names, for a test inside a host, the host at the other end of its link.
const peerEnv = "TIDEWAY_TEST_PEER"

// The link of linked carries 2 Gb/s, which the CPUs can fill with ease, and has a
// short queue: what waits in it is over after queueWait.
const (
	queueBurst   = 64 << 10
	queueLatency = 100 * time.Microsecond
	queueWait    = queueLatency + queueBurst*time.Second/250e6
)

// linked runs the calling test inside a host at one end of such a link. It
// returns the command words that put a process into the host at the other end,
// nil outside.
func linked(t *testing.T) []string {
	t.Helper()
	testenv.NeedRoot(t)
	if isInside() {
		return []string{"ip", "netns", "exec", os.Getenv(peerEnv)}
	}
	testenv.NeedTool(t, "tc")
	lab := testenv.NewLab(t)
	a, b := lab.Host("a"), lab.Host("b")
	lab.Link(a, b, "10.31.0.1/24", "10.31.0.2/24")
	for _, h := range []*testenv.Host{a, b} {
		h.Run("tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", "rate", "2gbit", "burst", fmt.Sprint(queueBurst), "latency", fmt.Sprint(queueLatency.Microseconds(), "us"))
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
	var next, moved atomic.Int64
	start := time.Now()
	for range depth {
		wg.Go(func() {
			for ctx.Err() == nil {
				at := int(next.Add(size)) % len(local)
				req := tideway.Request{Op: op, Local: tideway.Bytes(local[at : at+size]), Remote: kv.At(uint64(at)), Priority: tideway.Bulk}
				if err := e.Do(ctx, req); err != nil && ctx.Err() == nil {
					t.Error(err)
					return
				}
				moved.Add(size)
			}
		})
	}
	return func() float64 {
		rate := float64(moved.Load()) / time.Since(start).Seconds()
		cancel()
		wg.Wait()
		return rate
	}
}

// TestB31SmallBesideBulk shows that small reads pass bulk on the same peer, over
// a line of 100 Mb/s and 5 ms each way: what is under way of the bulk takes that
// line more than half a second.
func TestB31SmallBesideBulk(t *testing.T) {
	for _, op := range []tideway.Op{tideway.Write, tideway.Read} {
		e, kv := far(t, 1e8, 5*time.Millisecond) // a new line, with nothing left on it
		stop := beside(t, e, op, kv)
		testenv.Eventually(t, 10*time.Second, func() bool { return inFlight(e) > 6<<20 }, "bulk is under way")
		loaded := percentile(reads(t, kv, 4096, 100), 0.5)
		rate := stop()
		t.Logf("4 KiB reads beside bulk %v of %.0f Mb/s: p50 %v", op, rate*8/1e6, loaded)
		if loaded > 250*time.Millisecond {
			t.Errorf("beside bulk %v: half of the reads took %v, want them to pass it", op, loaded)
		}
		if rate < 0.2*12.5e6 && !testenv.Race {
			t.Errorf("bulk %v got %.0f%% of the line beside small reads", op, rate/1.25e5)
		}
	}
}

// TestSpeedB31 measures that over a link whose round trip is nothing but its queue,
// which bulk keeps full and which nobody at the ends can pass. An idle link is
// measured with one process that burns CPU, since bulk takes CPU too. The gate
// is three times the idle link and one full queue, the best of three pairs.
func TestSpeedB31(t *testing.T) {
	testenv.NeedSpeed(t)
	by := linked(t)
	if by == nil {
		return
	}
	const size, n = 64 << 20, 5000
	tg := startTargetBy(t, spec{Config: targetConfig{Listen: "10.31.0.2:0"}, Buffers: []targetBuffer{{Name: "kv", Size: size, Access: segment.ReadWrite}}}, by...)
	e := open(t, tideway.Config{})
	_, kv := find(t, e, tg.Addr, "kv")
	for _, op := range []tideway.Op{tideway.Write, tideway.Read} {
		best, line := math.Inf(1), ""
		for range 3 {
			burner := testenv.Start(t, "sh", "-c", "while :; do :; done")
			reads(t, kv, 4096, 100)
			idle := percentile(reads(t, kv, 4096, n), 0.99)
			burner.Kill()
			stop := beside(t, e, op, kv)
			reads(t, kv, 4096, 100) // until the bulk is at full speed
			loaded := percentile(reads(t, kv, 4096, n), 0.99)
			rate := stop()
			if r := float64(loaded) / float64(idle+queueWait); r < best {
				best = r
				line = fmt.Sprintf("p99 %v beside %.2f Gb/s, %v on the idle link, queue %v: %.1f, of the idle link alone %.1f",
					loaded, rate*8/1e9, idle, queueWait, r, float64(loaded)/float64(idle))
			}
		}
		t.Logf("4 KiB reads beside bulk %v: %s", op, line)
		if best > 3 {
			t.Errorf("beside bulk %v: %.1f times as long, want 3", op, best)
		}
	}
}
