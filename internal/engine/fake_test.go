package engine

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/testenv"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
)

// testTime is long enough for anything that does happen.
const testTime = 10 * time.Second

// fake is a driver without a network: its endpoints take every slice and keep it
// until the test completes it, or they are closed. What is set before the
// engine opens decides otherwise.
type fake struct {
	caps    transport.Caps
	openErr error
	window  uint64
	connect func(ctx context.Context, d *segment.Desc) error      // nil: they all answer
	post    func(s []transport.Slice) (n int, err error, ok bool) // false: take and keep them

	env transport.Env
	mu  struct {
		sync.Mutex
		held     []held
		connects int
		open     map[*fakeEnd]struct{}
	}
}

// held is one slice that was taken.
type held struct {
	end   *fakeEnd
	slice transport.Slice
}

func (f *fake) Name() string                { return "fake" }
func (f *fake) Probe(context.Context) error { return nil }
func (f *fake) Open(_ context.Context, env transport.Env) (transport.Transport, error) {
	f.env = env
	f.mu.open = make(map[*fakeEnd]struct{})
	return f, f.openErr
}
func (f *fake) Caps() transport.Caps                                      { return f.caps }
func (f *fake) Register(context.Context, *segment.Buffer) ([]byte, error) { return nil, nil }
func (f *fake) Unregister(*segment.Buffer) error                          { return nil }
func (f *fake) Close() error                                              { return nil }

func (f *fake) Connect(ctx context.Context, d *segment.Desc) (transport.Endpoint, error) {
	f.mu.Lock()
	f.mu.connects++
	f.mu.Unlock()
	if f.connect != nil {
		if err := f.connect(ctx, d); err != nil {
			return nil, err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	end := &fakeEnd{f: f, to: d}
	f.mu.open[end] = struct{}{}
	return end, nil
}

// complete ends what is held with code.
func (f *fake) complete(code errs.Code) { f.finish(nil, code) }

// finish is complete for one endpoint, or for all.
func (f *fake) finish(end *fakeEnd, code errs.Code) {
	f.mu.Lock()
	var done []transport.Completion
	var kept []held
	for _, h := range f.mu.held {
		if end != nil && h.end != end {
			kept = append(kept, h)
			continue
		}
		done = append(done, transport.Completion{Tag: h.slice.Tag, Code: code})
	}
	f.mu.held = kept
	f.mu.Unlock()
	if len(done) > 0 {
		f.env.Sink.Complete(done)
	}
}

// holds returns how many slices are held.
func (f *fake) holds() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.mu.held)
}

// connected returns how many endpoints are open.
func (f *fake) connected() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.mu.open)
}

// fakeEnd is an endpoint to one peer.
type fakeEnd struct {
	f      *fake
	to     *segment.Desc
	closed bool // guarded by f.mu
}

func (e *fakeEnd) Rails() []transport.Rail { return []transport.Rail{{Window: e.f.window}} }

func (e *fakeEnd) Post(s []transport.Slice) (int, error) {
	if e.f.post != nil {
		if n, err, ok := e.f.post(s); ok {
			return n, err
		}
	}
	e.f.mu.Lock()
	defer e.f.mu.Unlock()
	if e.closed {
		return 0, errs.New(errs.Closed, "post", "the endpoint is closed")
	}
	for i := range s {
		e.f.mu.held = append(e.f.mu.held, held{e, s[i]})
	}
	return len(s), nil
}

// Cancel ends slices at once.
func (e *fakeEnd) Cancel(tags []transport.Tag) {
	for _, tag := range tags {
		e.f.mu.Lock()
		found := false
		for i, h := range e.f.mu.held {
			if found = h.slice.Tag == tag; found {
				e.f.mu.held = append(e.f.mu.held[:i:i], e.f.mu.held[i+1:]...)
				break
			}
		}
		e.f.mu.Unlock()
		if found {
			e.f.env.Sink.Complete([]transport.Completion{{Tag: tag, Code: errs.Canceled}})
		}
	}
}

func (e *fakeEnd) Close() error {
	e.f.mu.Lock()
	e.closed = true
	delete(e.f.mu.open, e)
	e.f.mu.Unlock()
	e.f.finish(e, errs.Closed)
	return nil
}

// network is where descriptors are found: what tests put there.
type network struct {
	mu    sync.Mutex
	descs map[string]*segment.Desc
	wait  func(ctx context.Context, addr string) error // called first, may be nil
	asked int
}

func (n *network) put(d *segment.Desc) *segment.Desc {
	d.Seal()
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.descs == nil {
		n.descs = make(map[string]*segment.Desc)
	}
	n.descs[string(d.Name)] = d
	return d
}

func (n *network) discover(ctx context.Context, _ func(context.Context, string) (net.Conn, error), addr string,
	_ *segment.Desc, _ func(context.Context, *segment.Desc, int) error) (*segment.Desc, error) {
	n.mu.Lock()
	n.asked++
	wait := n.wait
	n.mu.Unlock()
	if wait != nil {
		if err := wait(ctx, addr); err != nil {
			return nil, err
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if d := n.descs[addr]; d != nil {
		return d, nil
	}
	return nil, errs.New(errs.Refused, "dial", "nobody at %s", addr)
}

// peerDesc describes a peer with one buffer, "kv" of 1 MiB at 0x10000.
func peerDesc(name string, life segment.Incarnation) *segment.Desc {
	return &segment.Desc{
		Name: segment.Name(name), Incarnation: life, Version: 1, Addr: name, Transports: []string{"fake"},
		Buffers: []segment.Buffer{{Name: "kv", Addr: 0x10000, Length: 1 << 20, Location: "cpu:0", Access: segment.ReadWrite, Key: 1}},
	}
}

// openFake opens an engine over f that finds its peers in n. It is closed with
// the test.
func openFake(t testing.TB, f *fake, n *network, change ...func(*Config)) *Engine {
	t.Helper()
	testenv.Leak(t)
	cfg := Config{Drivers: []transport.Driver{f}, Discover: n.discover, Logger: slog.New(slog.DiscardHandler)}
	for _, c := range change {
		c(&cfg)
	}
	e, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return e
}

// lookUp opens a segment and finds its "kv".
func lookUp(t testing.TB, e *Engine, name string) (*Segment, *Found) {
	t.Helper()
	s, err := e.OpenSegment(t.Context(), segment.Name(name))
	if err != nil {
		t.Fatal(err)
	}
	kv, err := s.Buffer(t.Context(), "kv")
	if err != nil {
		t.Fatal(err)
	}
	return s, kv
}

// writes returns n requests of 10 bytes each to kv.
func writes(n int, kv *Found) []Request {
	reqs := make([]Request, n)
	for i := range reqs {
		reqs[i] = Request{Op: transport.Write, Local: Range{Bytes: make([]byte, 10), Length: 10}, Remote: Remote{Segment: kv.Segment, Found: kv}}
	}
	return reqs
}

// byAddr is a write of 10 bytes to an absolute address.
func byAddr(s *Segment, addr uint64) Request {
	return Request{Op: transport.Write, Local: Range{Bytes: make([]byte, 10), Length: 10}, Remote: Remote{Segment: s, Offset: addr}}
}

// add adds requests to a batch.
func add(t testing.TB, b *Batch, reqs ...Request) {
	t.Helper()
	if err := b.Add(t.Context(), reqs); err != nil {
		t.Fatal(err)
	}
}

// holding waits until f holds n slices.
func holding(t testing.TB, f *fake, n int) {
	t.Helper()
	testenv.Eventually(t, testTime, func() bool { return f.holds() == n }, "want ", n, " slices posted")
}

// done waits for the end of a batch.
func done(t testing.TB, b *Batch) error {
	t.Helper()
	select {
	case <-b.Done():
		return b.Err()
	case <-time.After(testTime):
		t.Fatal("the batch does not end")
		return nil
	}
}
