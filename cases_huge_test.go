package tideway_test

import (
	"testing"
	"time"

	"github.com/tideway-io/tideway"
	"github.com/tideway-io/tideway/internal/testenv"
	"github.com/tideway-io/tideway/segment"
)

// TestB31HugeBatch submits 300,000 tiny requests at once over a slow line, and
// another batch right behind them. That one must not wait for all of those, and
// what the huge one takes must be in proportion.
func TestB31HugeBatch(t *testing.T) {
	n := 300_000
	if !testenv.Large() {
		n = 60_000
	}
	const size, small = 64, 1000
	px := testenv.NewProxy(t, "")
	tg := startTarget(t, spec{Config: targetConfig{Listen: freeAddr(t), Advertise: px.Addr}, Buffers: []targetBuffer{{Name: "kv", Size: uint64(n * size), Access: segment.ReadWrite}}})
	px.Target(tg.listen)
	e := open(t, tideway.Config{MaxRequests: 400_000, StallTimeout: time.Minute}) // submitting may take long on a busy machine
	_, kv := find(t, e, tg.Addr, "kv")
	src := pattern(n*size, testenv.KeyOf(31, 1), 0)
	reqs := make([]tideway.Request, n)
	for i := range reqs {
		reqs[i] = tideway.Request{Op: tideway.Write, Local: tideway.Bytes(src[i*size : (i+1)*size]), Remote: kv.At(uint64(i * size))}
	}
	if err := e.Do(t.Context(), reqs[0]); err != nil { // connects
		t.Fatal(err)
	}
	px.Link(testenv.Up, float64(n)*100*8, 0) // a second for all, head and sum included
	px.BlackHole(true)
	before := heap()
	huge := must(e.Submit(t.Context(), reqs...))(t)
	if each := (heap() - before) / uint64(n); each > 1024 {
		t.Errorf("%d bytes for each request", each)
	}
	other := must(e.Submit(t.Context(), reqs[:small]...))(t)
	px.BlackHole(false)
	if err := other.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	// Ahead of the other batch are what was posted, 4096, and as much as its own.
	meanwhile := ended(huge)
	t.Logf("%d others ended while %d of %d did", small, meanwhile, n)
	if limit := 4096 + 16*small; meanwhile > limit {
		t.Errorf("%d of the huge batch ended while %d others did, want %d at most", meanwhile, small, limit)
	}
	if err := huge.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	tg.must("verify kv 31 1 0 %d", n*size)
}

// ended counts the requests that have ended.
func ended(b *tideway.Batch) (n int) {
	for range b.Results() {
		n++
	}
	return n
}
