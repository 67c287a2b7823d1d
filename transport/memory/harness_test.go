package memory

import (
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/registry"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
)

// ledger is a sink that fails the test for a completion that it has seen.
type ledger struct {
	testing.TB
	mu struct {
		sync.Mutex
		done  map[transport.Tag]transport.Completion
		moved *sync.Cond
	}
}

func newLedger(t testing.TB) *ledger {
	l := &ledger{TB: t}
	l.mu.done = map[transport.Tag]transport.Completion{}
	l.mu.moved = sync.NewCond(&l.mu)
	return l
}

func (l *ledger) Complete(done []transport.Completion) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range done {
		if _, twice := l.mu.done[c.Tag]; twice {
			l.Errorf("slice %d completed twice", c.Tag)
		}
		l.mu.done[c.Tag] = c
	}
	l.mu.moved.Broadcast()
}

// await waits for n completions and returns the codes by tag.
func (l *ledger) await(n int) map[transport.Tag]transport.Completion {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.mu.done) < n {
		l.mu.moved.Wait()
	}
	return l.mu.done
}

func (l *ledger) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.mu.done)
}

// engine is one transport with a real registry.
type engine struct {
	*ledger
	reg  *registry.Registry
	tr   transport.Transport
	self segment.Incarnation
}

// open opens d for an engine of its own; wrap, if not nil, stands before its
// registry.
func open(t testing.TB, d transport.Driver, wrap func(transport.Memory) transport.Memory) *engine {
	t.Helper()
	e := &engine{ledger: newLedger(t), reg: registry.New(registry.Options{}), self: segment.Incarnation(rand.Uint64() | 1)}
	var memory transport.Memory = e.reg
	if wrap != nil {
		memory = wrap(memory)
	}
	var err error
	e.tr, err = d.Open(t.Context(), transport.Env{Sink: e.ledger, Memory: memory, Self: transport.Self{
		Incarnation: e.self, Name: func() segment.Name { return segment.Name("engine " + e.self.String()) },
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.tr.Close() })
	return e
}

func (e *engine) desc() *segment.Desc {
	return &segment.Desc{Incarnation: e.self, Name: segment.Name("engine " + e.self.String())}
}

func (e *engine) register(b []byte, access segment.Access) *segment.Buffer {
	e.Helper()
	return e.enrol(b, access).Desc()
}

func (e *engine) enrol(b []byte, access segment.Access) *registry.Buffer {
	e.Helper()
	got, err := e.reg.Register(e.Context(), registry.Registration{Bytes: b, Access: access})
	if err != nil {
		e.Fatal(err)
	}
	return got
}

func (e *engine) connect(to *engine) transport.Endpoint {
	e.Helper()
	ep, err := e.tr.Connect(e.Context(), to.desc())
	if err != nil {
		e.Fatal(err)
	}
	return ep
}

// random returns n bytes that depend on seed only.
func random(n int, seed byte) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(b)
	return b
}

// stopper is a Memory whose pins wait until they are let through.
type stopper struct {
	transport.Memory
	entered chan struct{} // one for each pin that waits
	pass    chan struct{} // one lets one through; closed: all
}

func newStopper() *stopper {
	return &stopper{entered: make(chan struct{}, 1<<16), pass: make(chan struct{})}
}

func (s *stopper) wrap(m transport.Memory) transport.Memory { s.Memory = m; return s }

func (s *stopper) Pin(op transport.Op, key segment.Key, off, n uint64) (transport.Pin, errs.Code) {
	s.entered <- struct{}{}
	<-s.pass
	return s.Memory.Pin(op, key, off, n)
}
