package tideway_test

import (
	"context"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tideway-io/tideway"
	"github.com/tideway-io/tideway/inspect"
	"github.com/tideway-io/tideway/internal/testenv"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/topology"
)

// cabled runs the calling test inside one of two hosts that two cables join, each
// good for 1 Gb/s. It returns the words that put a command into the other host; nil
// outside.
func cabled(t *testing.T) (peer []string) {
	t.Helper()
	testenv.NeedRoot(t)
	testenv.NeedTool(t, "tc")
	if isInside() {
		testenv.Eventually(t, 10*time.Second, func() bool { return carriers() == 2 }, "the cables are known to carry")
		return []string{"ip", "netns", "exec", os.Getenv(peerEnv)}
	}
	lab := testenv.NewLab(t)
	a, b := lab.Host("a"), lab.Host("b")
	for _, net := range []string{"10.36.0.", "10.37.0."} {
		lab.Link(a, b, net+"1/24", net+"2/24").Rate(1e9, 20*time.Millisecond)
	}
	t.Setenv(peerEnv, b.Netns)
	inside(t, a)
	return nil
}

// carriers counts the interfaces of this host that can pass frames. The kernel
// takes a second to notice.
func carriers() (n int) {
	nics, _ := topology.Interfaces(os.DirFS("/sys"))
	for _, nic := range nics {
		if nic.Carrier && !nic.Loopback {
			n++
		}
	}
	return n
}

// cut takes the second cable down at this end, and joins it again.
func cut(t *testing.T, down bool) {
	t.Helper()
	state := map[bool]string{true: "down", false: "up"}[down]
	testenv.Start(t, "ip", "link", "set", "eth1", state).Wait(5 * time.Second)
}

// railsTo returns the rails of tcp to the only peer.
func railsTo(e *tideway.Engine) []inspect.Rail {
	for _, p := range e.Inspect().Peers {
		for _, q := range p.Paths {
			if q.Transport == "tcp" {
				return q.Rails
			}
		}
	}
	return nil
}

// TestB36RailFlaps keeps bulk under way over two rails, cuts one, joins it again
// and cuts it once more: both carry bytes while they can, no request fails, and
// every byte arrives.
func TestB36RailFlaps(t *testing.T) {
	by := cabled(t)
	if by == nil {
		return
	}
	const size, slots = 4 << 20, 16
	tg := startTargetBy(t, spec{Config: targetConfig{Listen: "0.0.0.0:0"}, Buffers: []targetBuffer{{Name: "kv", Size: size * slots, Access: segment.ReadWrite}}}, by...)
	e := open(t, tideway.Config{StallTimeout: 4 * time.Second})
	_, kv := find(t, e, tg.Addr, "kv")

	ctx, stop := context.WithCancel(t.Context())
	var moved atomic.Int64
	var rounds [slots]atomic.Int64
	var wg sync.WaitGroup
	for slot := range slots {
		wg.Go(func() {
			p := make([]byte, size)
			at := uint64(slot * size)
			for round := 0; ctx.Err() == nil; round++ {
				key := testenv.KeyOf(36, uint64(round*slots+slot))
				testenv.Fill(p, key, at)
				if err := e.Do(t.Context(), tideway.Request{Op: tideway.Write, Local: tideway.Bytes(p), Remote: kv.At(at), Priority: tideway.Bulk}); err != nil {
					t.Errorf("write: %v", err)
					return
				}
				moved.Add(size)
				testenv.Poison(p)
				if err := e.Do(t.Context(), tideway.Request{Op: tideway.Read, Local: tideway.Bytes(p), Remote: kv.At(at), Priority: tideway.Bulk}); err != nil {
					t.Errorf("read: %v", err)
					return
				}
				moved.Add(size)
				rounds[slot].Add(1)
				if err := testenv.Verify(p, key, at); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	// goes waits until both rails, or the first alone, carry what they can.
	goes := func(both bool, why string) {
		t.Helper()
		testenv.Eventually(t, 20*time.Second, func() bool {
			before, start, m := railsTo(e), time.Now(), moved.Load()
			time.Sleep(500 * time.Millisecond)
			after := railsTo(e)
			if len(before) != 2 || len(after) != 2 {
				return false
			}
			var part [2]float64
			for k := range part {
				part[k] = float64(after[k].BytesIn+after[k].BytesOut-before[k].BytesIn-before[k].BytesOut) / time.Since(start).Seconds() / 125e6
			}
			t.Logf("%s: rails at %.2f and %.2f of their cables' one way, %.0f MB/s ended", why, part[0], part[1], float64(moved.Load()-m)/time.Since(start).Seconds()/1e6)
			return part[0] > 0.4 && both == (part[1] > 0.4)
		}, why)
	}
	goes(true, "at the start both rails carry")
	for flap := range 2 {
		cut(t, true)
		goes(false, "one is cut, the other goes on")
		if flap == 1 { // for as long as it takes to give it up
			var before [slots]int64
			for slot := range rounds {
				before[slot] = rounds[slot].Load()
			}
			testenv.Eventually(t, 20*time.Second, func() bool {
				for slot := range rounds {
					if rounds[slot].Load() < before[slot]+2 {
						return false
					}
				}
				return true
			}, "what was on the cut rail goes on over the other")
		}
		cut(t, false)
		goes(true, "it is joined, both carry again")
	}
	stop()
	wg.Wait()
}
