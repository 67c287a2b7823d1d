package engine

import (
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/testenv"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
)

// moody is a transport that takes some slices, refuses others, and completes what
// it took in any order, well or not.
type moody struct {
	f    *fake
	some chan struct{} // holds a token when something may be held
	mu   struct {
		sync.Mutex
		r    *rand.Rand
		held []transport.Slice
	}
}

func (m *moody) post(s []transport.Slice) (int, error, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := len(s), error(nil)
	if m.mu.r.IntN(4) == 0 {
		n = m.mu.r.IntN(n)
		code := []errs.Code{errs.Overloaded, errs.Denied}[m.mu.r.IntN(2)]
		err = errs.New(code, "post", "not now")
	}
	m.mu.held = append(m.mu.held, s[:n]...)
	m.tell()
	return n, err, true
}

func (m *moody) tell() {
	select {
	case m.some <- struct{}{}:
	default:
	}
}

// finish completes some of what is held.
func (m *moody) finish() {
	m.mu.Lock()
	r, held := m.mu.r, m.mu.held
	r.Shuffle(len(held)/(1+r.IntN(8)), func(i, j int) { held[i], held[j] = held[j], held[i] })
	n := min(len(held), 1+r.IntN(100))
	done := make([]transport.Completion, 0, n)
	for _, s := range held[:n] {
		c := transport.Completion{Tag: s.Tag}
		if r.IntN(50) == 0 {
			c.Code = []errs.Code{errs.Checksum, errs.LaneLost, errs.OutOfRange}[r.IntN(3)] // those that rest no path
		}
		done = append(done, c)
	}
	if m.mu.held = append([]transport.Slice(nil), held[n:]...); len(m.mu.held) > 0 {
		m.tell()
	}
	m.mu.Unlock()
	if len(done) > 0 {
		m.f.env.Sink.Complete(done)
	}
}

// TestRunsFallApart: whatever becomes of the parts of runs, each request ends once,
// and nothing is left.
func TestRunsFallApart(t *testing.T) {
	m := &moody{f: &fake{}, some: make(chan struct{}, 1)}
	m.f.caps.Fences = true
	m.mu.r = rand.New(rand.NewPCG(4, 2))
	m.f.post = m.post
	net := &network{}
	for _, name := range []string{"a:1", "b:1", "c:1"} {
		net.put(peerDesc(name, segment.Incarnation(name[0])))
	}
	e := openFake(t, m.f, net)
	over := make(chan struct{})
	var finisher, submitters sync.WaitGroup
	finisher.Go(func() {
		for {
			select {
			case <-over:
				return
			case <-m.some:
				m.finish()
			}
		}
	})
	for g := range uint64(4) {
		submitters.Go(func() { someBatches(t, e, rand.New(rand.NewPCG(g, 3))) })
	}
	submitters.Wait()
	close(over)
	finisher.Wait()
	if n, bytes := e.admission.inside(); n != 0 || bytes != 0 {
		t.Errorf("%d requests of %d bytes are still inside", n, bytes)
	}
	for _, s := range e.shards {
		testenv.Eventually(t, testTime, func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return len(s.mu.owners.free) == len(s.mu.owners.slots)
		}, "owners are left")
	}
}

func someBatches(t *testing.T, e *Engine, r *rand.Rand) {
	b := e.NewBatch()
	for range 60 {
		_, kv := lookUp(t, e, []string{"a:1", "b:1", "c:1"}[r.IntN(3)])
		want := 0
		for range 1 + r.IntN(3) {
			reqs := writes(1+r.IntN(150), kv)
			for i := range reqs {
				reqs[i].Op = transport.Op(1 + r.IntN(100)/99)
				reqs[i].Priority = int8(r.IntN(100) / 99)
			}
			add(t, b, reqs...)
			want += len(reqs)
		}
		b.Seal()
		if r.IntN(4) == 0 {
			b.Cancel()
		}
		_ = done(t, b) // well or not
		seen := 0
		for i, res := range b.Results() {
			if seen++; (res.Err == nil) != (res.Bytes == 10) || (res.Err == nil) != (res.Transport == "fake") {
				t.Errorf("request %d: %+v", i, res)
			}
		}
		if seen != want {
			t.Errorf("%d of %d requests have ended", seen, want)
		}
		if err := b.Reset(); err != nil {
			t.Fatal(err)
		}
	}
}
