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

// cableRate is what a cable carries, bits per second each way: little enough that
// the processors are not what holds traffic back.
func cableRate() float64 {
	if testenv.Race {
		return 1e8
	}
	return 1e9
}

// cabled runs the calling test inside one of two hosts that two cables join. It
// returns the words that put a command into the other host; nil outside.
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
		lab.Link(a, b, net+"1/24", net+"2/24").Rate(int64(cableRate()), 20*time.Millisecond)
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

// slots and slotSize are the buffer that a traffic moves to and fro.
const (
	slots    = 16
	slotSize = 4 << 20
)

// traffic keeps bulk under way, both ways, and compares every byte.
type traffic struct {
	e      *tideway.Engine
	kv     *tideway.RemoteBuffer
	rounds [slots]atomic.Int64 // by slot: written, read back and found right
}

// run moves one slot to and fro until ctx has ended.
func (tr *traffic) run(ctx context.Context, t *testing.T, slot int) {
	p := make([]byte, slotSize)
	at := uint64(slot * slotSize)
	for round := 0; ctx.Err() == nil; round++ {
		key := testenv.KeyOf(36, uint64(round*slots+slot))
		testenv.Fill(p, key, at)
		for _, op := range []tideway.Op{tideway.Write, tideway.Read} {
			if err := tr.e.Do(t.Context(), tideway.Request{Op: op, Local: tideway.Bytes(p), Remote: tr.kv.At(at), Priority: tideway.Bulk}); err != nil {
				t.Errorf("%v: %v", op, err)
				return
			}
			if op == tideway.Write {
				testenv.Poison(p)
			}
		}
		if err := testenv.Verify(p, key, at); err != nil {
			t.Error(err)
			return
		}
		tr.rounds[slot].Add(1)
	}
}

// parts returns how much of a cable's one way each rail carries, both ways
// together, over half a second; nothing unless there are two.
func (tr *traffic) parts() (part [2]float64) {
	before, start := railsTo(tr.e), time.Now()
	time.Sleep(500 * time.Millisecond) // real time: a rate is measured over it
	after := railsTo(tr.e)
	if len(before) != 2 || len(after) != 2 {
		return part
	}
	for k := range part {
		part[k] = float64(after[k].BytesIn+after[k].BytesOut-before[k].BytesIn-before[k].BytesOut) / time.Since(start).Seconds() * 8 / cableRate()
	}
	return part
}

// goes waits until both rails, or the first alone, carry what they can.
func (tr *traffic) goes(t *testing.T, both bool, why string) {
	t.Helper()
	testenv.Eventually(t, 20*time.Second, func() bool {
		part := tr.parts()
		t.Logf("%s: rails at %.2f and %.2f of their cables' one way", why, part[0], part[1])
		return part[0] > 0.4 && both == (part[1] > 0.4)
	}, why)
}

// allGoOn waits until every slot has made two more rounds.
func (tr *traffic) allGoOn(t *testing.T, why string) {
	t.Helper()
	var before [slots]int64
	for slot := range tr.rounds {
		before[slot] = tr.rounds[slot].Load()
	}
	testenv.Eventually(t, 20*time.Second, func() bool {
		for slot := range tr.rounds {
			if tr.rounds[slot].Load() < before[slot]+2 {
				return false
			}
		}
		return true
	}, why)
}

// TestB36RailFlaps keeps bulk under way over two rails, cuts one, joins it again
// and cuts it once more: both carry bytes while they can, no request fails, and
// every byte arrives.
func TestB36RailFlaps(t *testing.T) {
	by := cabled(t)
	if by == nil {
		return
	}
	tg := startTargetBy(t, spec{Config: targetConfig{Listen: "0.0.0.0:0"}, Buffers: []targetBuffer{{Name: "kv", Size: slots * slotSize, Access: segment.ReadWrite}}}, by...)
	tr := &traffic{e: open(t, tideway.Config{StallTimeout: 4 * time.Second})}
	_, tr.kv = find(t, tr.e, tg.Addr, "kv")
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for slot := range slots {
		wg.Go(func() { tr.run(ctx, t, slot) })
	}
	tr.goes(t, true, "at the start both rails carry")
	for flap := range 2 {
		cut(t, true)
		tr.goes(t, false, "one is cut, the other goes on")
		if flap == 1 { // for as long as it takes to give it up
			tr.allGoOn(t, "what was on the cut rail goes on over the other")
		}
		cut(t, false)
		tr.goes(t, true, "it is joined, both carry again")
	}
	stop()
	wg.Wait()
}
