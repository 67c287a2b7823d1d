package tideway_test

import (
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/tideway-io/tideway"
	"github.com/tideway-io/tideway/internal/testenv"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
	"github.com/tideway-io/tideway/transport/memory"
)

// perRequest returns the nanoseconds that a request takes, of n that each of the
// runs makes: the best of many short tries in turns, since others share the CPUs.
func perRequest(n int, runs ...func()) []float64 {
	best := make([]float64, len(runs))
	for try := range 200 {
		for i, run := range runs {
			start := time.Now()
			for range 50 {
				run()
			}
			ns := float64(time.Since(start).Nanoseconds()) / float64(50*n)
			if try == 0 || ns < best[i] {
				best[i] = ns
			}
		}
	}
	return best
}

// TestSpeedBatch: what a small request costs in a batch that is used again.
func TestSpeedBatch(t *testing.T) {
	testenv.NeedSpeed(t)
	e := open(t, tideway.Config{})
	remote, local := alloc(t, e, "kv", 1<<20, segment.ReadWrite), alloc(t, e, "local", 128*64, segment.LocalOnly)
	s, kv := find(t, e, e.Name(), "kv")
	byAddr := func(offset uint64) tideway.Remote { return s.At(remote.Addr() + offset) }
	cost := perRequest(128, again(t, e, local, kv.At, tideway.Write, 128, 64), again(t, e, local, kv.At, tideway.Read, 128, 64), again(t, e, local, byAddr, tideway.Write, 128, 64))
	t.Logf("%.0f ns a request of 64 bytes, to write, to read, and to write by address", cost)
	if slices.Max(cost) >= 100 {
		t.Errorf("%.0f ns a request, want below 100", cost)
	}
}

// TestSpeedB22ManyBuffers: requests cost the same however many buffers there are,
// and a segment of 100,000 is opened in half a second.
func TestSpeedB22ManyBuffers(t *testing.T) {
	testenv.NeedSpeed(t)
	counts := []int{1, 1000, 100_000}
	var runs []func()
	for _, n := range counts {
		e, other := open(t, tideway.Config{}), open(t, tideway.Config{})
		alloc(t, e, "kv", 1<<20, segment.ReadWrite)
		mem := make([]byte, n*64)
		for i := range n - 1 {
			if _, err := e.Register(mem[i*64:(i+1)*64], tideway.BufferOptions{Access: segment.ReadWrite}); err != nil {
				t.Fatal(err)
			}
		}
		_, kv := find(t, e, e.Name(), "kv")
		runs = append(runs, batchOf(t, e, kv, tideway.Write, 128, 64))
		took := time.Hour
		for range 5 {
			start := time.Now()
			s, err := other.OpenSegment(t.Context(), e.Addr())
			if err != nil {
				t.Fatal(err)
			}
			took = min(took, time.Since(start))
			_ = s.Close()
		}
		if t.Logf("%d buffers are opened in %v", n, took); took > 500*time.Millisecond {
			t.Errorf("%d buffers are opened in %v, want half a second at most", n, took)
		}
	}
	cost := perRequest(128, runs...)
	t.Logf("%.0f ns a request with %v buffers", cost, counts)
	for i, ns := range cost {
		if ns > 1.25*cost[0] {
			t.Errorf("%d buffers: %.0f ns a request, want what it is with one, %.0f", counts[i], ns, cost[0])
		}
	}
}

// joined opens engines of one process that reach each other, and returns the first
// and the buffers of the others, and of them their engines.
func joined(t testing.TB, hub *memory.Hub, n int) (*tideway.Engine, []*tideway.RemoteBuffer) {
	cfg := tideway.Config{Drivers: []transport.Driver{hub.Driver()}, Transports: []string{memory.Name}}
	e := open(t, cfg)
	var all []*tideway.RemoteBuffer
	for range n {
		peer := open(t, cfg)
		alloc(t, peer, "kv", 1<<20, segment.ReadWrite)
		_, kv := find(t, e, peer.Addr(), "kv")
		all = append(all, kv)
	}
	return e, all
}

// TestSpeedManyPeers: requests cost little more with 64 peers that take turns, each
// with its own part of the caches.
func TestSpeedManyPeers(t *testing.T) {
	testenv.NeedSpeed(t)
	const peers = 64
	e, all := joined(t, memory.NewHub(), peers)
	local := alloc(t, e, "local", 128*64, segment.LocalOnly)
	var runs []func()
	for _, kv := range all {
		runs = append(runs, again(t, e, local, kv.At, tideway.Write, 128, 64))
	}
	for _, run := range runs {
		run() // connects
	}
	at := 0
	cost := perRequest(128, runs[0], func() { runs[at%peers](); at++ })
	t.Logf("%.0f ns a request with 1 and %d peers", cost, peers)
	if cost[1] > 1.5*cost[0] {
		t.Errorf("%d peers: %.0f ns a request, with one %.0f; want at most half more", peers, cost[1], cost[0])
	}
}

// TestIdlePeerMemory: what a peer that was used and is idle takes, at both ends
// together: its connections, their goroutines and buffers, its descriptor.
func TestIdlePeerMemory(t *testing.T) {
	const n, most = 40, 64 << 10
	var targets []*tideway.Engine
	for range n {
		peer := open(t, tideway.Config{})
		alloc(t, peer, "kv", 1<<20, segment.ReadWrite)
		targets = append(targets, peer)
	}
	e := open(t, tideway.Config{})
	used := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc + m.StackInuse
	}
	before := used()
	p := make([]byte, 4096)
	for _, peer := range targets {
		_, kv := find(t, e, peer.Addr(), "kv")
		if _, err := kv.WriteAt(t.Context(), p, 0); err != nil {
			t.Fatal(err)
		}
		if _, err := kv.ReadAt(t.Context(), p, 0); err != nil {
			t.Fatal(err)
		}
	}
	each := (int64(used()) - int64(before)) / n
	t.Logf("%d bytes for each peer, both ends", each)
	if each > most && !testenv.Race {
		t.Errorf("%d bytes for each idle peer, want %d at most", each, most)
	}
}
