package shm

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/mem"
	"github.com/tideway-io/tideway/internal/registry"
	"github.com/tideway-io/tideway/internal/sys"
	"github.com/tideway-io/tideway/internal/testenv"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
)

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		child()
		return
	}
	os.Exit(m.Run())
}

// card is what one engine must know to connect to another: what the control
// connection would carry.
type card struct {
	Incarnation segment.Incarnation
	Offer       []byte
}

func (c card) desc() *segment.Desc {
	return &segment.Desc{Incarnation: c.Incarnation, Name: segment.Name("engine " + c.Incarnation.String()), Addr: "127.0.0.1:1"}
}

// options change an engine under test.
type options struct {
	wrap   func(transport.Memory) transport.Memory // stands before the registry
	stall  time.Duration                           // default a minute
	maxIn  int                                     // default 16
	self   segment.Incarnation                     // default random
	logger *slog.Logger
}

// engine is one transport with a real registry, and a sink that finds slices
// that complete twice.
type engine struct {
	reg    *registry.Registry
	tr     *Transport
	self   segment.Incarnation
	answer func(context.Context, segment.Incarnation, []byte) ([]byte, error)
	skew   atomic.Int64 // added to its clock
	looks  atomic.Int64 // at its clock, so far
	mu     struct {
		sync.Mutex
		cards   map[segment.Incarnation]card
		done    map[transport.Tag]transport.Completion
		twice   []transport.Tag
		changed *sync.Cond
	}
}

func newEngine(o options) (*engine, error) {
	e := &engine{self: o.self}
	if e.self == 0 {
		e.self = segment.Incarnation(rand.Uint64() | 1)
	}
	e.mu.cards, e.mu.done = map[segment.Incarnation]card{}, map[transport.Tag]transport.Completion{}
	e.mu.changed = sync.NewCond(&e.mu)
	e.reg = registry.New(registry.Options{
		Attach: func(ctx context.Context, b *segment.Buffer) (map[string][]byte, error) {
			attrs, err := e.tr.Register(ctx, b)
			return map[string][]byte{Name: attrs}, err
		},
		Detach: func(b *segment.Buffer) error { return e.tr.Unregister(b) },
	})
	var memory transport.Memory = e.reg
	if o.wrap != nil {
		memory = o.wrap(memory)
	}
	limits := transport.Limits{StallTimeout: time.Minute, Lanes: 1, Checksum: true, MaxFrame: 1 << 20, MaxInbound: 16}
	if o.stall != 0 {
		limits.StallTimeout = o.stall
	}
	if o.maxIn != 0 {
		limits.MaxInbound = o.maxIn
	}
	tr, err := New().Open(context.Background(), transport.Env{
		Sink: e, Memory: memory, Logger: o.logger, Rand: rand.Uint64, Limits: limits,
		Now: func() time.Time {
			e.looks.Add(1)
			return time.Now().Add(time.Duration(e.skew.Load()))
		},
		Self:     transport.Self{Incarnation: e.self, Name: func() segment.Name { return "n" }},
		Exchange: e.exchange,
		Answer: func(f func(context.Context, segment.Incarnation, []byte) ([]byte, error)) {
			e.answer = f
		},
	})
	if err != nil {
		return nil, err
	}
	e.tr = tr.(*Transport)
	return e, nil
}

// exchange answers from the cards.
func (e *engine) exchange(_ context.Context, peer *segment.Desc, _ []byte) ([]byte, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	c, ok := e.mu.cards[peer.Incarnation]
	if !ok {
		return nil, errs.New(errs.Restarted, "exchange", "nobody is %v", peer.Incarnation)
	}
	return c.Offer, nil
}

func (e *engine) card() card {
	offer, err := e.answer(context.Background(), 1, []byte{version})
	if err != nil {
		panic(err)
	}
	return card{e.self, offer}
}

// meet lets e connect to the engine of c.
func (e *engine) meet(c card) *segment.Desc {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mu.cards[c.Incarnation] = c
	return c.desc()
}

// Complete implements transport.Sink.
func (e *engine) Complete(done []transport.Completion) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, c := range done {
		if _, twice := e.mu.done[c.Tag]; twice {
			e.mu.twice = append(e.mu.twice, c.Tag)
		}
		e.mu.done[c.Tag] = c
	}
	e.mu.changed.Broadcast()
}

// close ends the engine: buffers, then the transport.
func (e *engine) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := e.reg.Close(ctx); err != nil {
		return err
	}
	return e.tr.Close()
}

// alloc registers n bytes that peers can map.
func (e *engine) alloc(name string, n uint64, access segment.Access) (*registry.Buffer, error) {
	b, free, err := e.tr.Alloc(n, "cpu:0")
	if err != nil {
		return nil, err
	}
	return e.reg.Register(context.Background(), registry.Registration{Name: name, Bytes: b, Access: access, Location: "cpu:0", Free: free})
}

// heap registers n bytes that they cannot. They are never given back: tests look
// at them after the buffer is closed, and, since they are not Go's, also while
// peers write.
func (e *engine) heap(name string, n uint64, access segment.Access) (*registry.Buffer, error) {
	b, _, err := mem.Alloc(n, mem.Options{})
	if err != nil {
		return nil, err
	}
	return e.reg.Register(context.Background(), registry.Registration{Name: name, Bytes: b, Access: access, Location: "cpu:0"})
}

// testEngine is an engine of this process that fails the test by itself.
type testEngine struct {
	testing.TB
	*engine
	tags *atomic.Uint64
}

func start(t testing.TB, o options) *testEngine {
	t.Helper()
	e, err := newEngine(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.close(); err != nil {
			t.Errorf("close the engine: %v", err)
		}
		if len(e.mu.twice) > 0 {
			t.Errorf("slices completed twice: %v", e.mu.twice)
		}
	})
	return &testEngine{t, e, new(atomic.Uint64)}
}

func (e *testEngine) must(b *registry.Buffer, err error) *registry.Buffer {
	e.Helper()
	if err != nil {
		e.Fatal(err)
	}
	return b
}

func (e *testEngine) connect(c card) *endpoint {
	e.Helper()
	ep, err := e.tr.Connect(e.Context(), e.meet(c))
	if err != nil {
		e.Fatal(err)
	}
	e.Cleanup(func() { _ = ep.Close() })
	return ep.(*endpoint)
}

// post posts slices under fresh tags and fails the test if not all are taken.
func (e *testEngine) post(ep transport.Endpoint, s ...transport.Slice) []transport.Tag {
	e.Helper()
	tags := make([]transport.Tag, len(s))
	for i := range s {
		tags[i] = transport.Tag(e.tags.Add(1))
		s[i].Tag = tags[i]
	}
	if n, err := ep.Post(s); err != nil {
		e.Fatalf("Post took %d of %d slices: %v", n, len(s), err)
	}
	return tags
}

// await waits for the completions of tags.
func (e *testEngine) await(tags ...transport.Tag) (out []transport.Completion) {
	e.Helper()
	testenv.Eventually(e, 30*time.Second, func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		out = out[:0]
		for _, t := range tags {
			if c, ok := e.mu.done[t]; ok {
				out = append(out, c)
			}
		}
		return len(out) == len(tags)
	}, "slices complete")
	return out
}

// open returns how many of tags have not completed.
func (e *testEngine) open(tags ...transport.Tag) (n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, t := range tags {
		if _, ok := e.mu.done[t]; !ok {
			n++
		}
	}
	return n
}

// do posts one slice and returns how it ended; a refusal is an end.
func (e *testEngine) do(ep transport.Endpoint, op transport.Op, local []byte, b *segment.Buffer, off uint64) transport.Completion {
	e.Helper()
	tag := transport.Tag(e.tags.Add(1))
	if _, err := ep.Post([]transport.Slice{{Op: op, Local: local, Buffer: b, Offset: off, Tag: tag}}); err != nil {
		return transport.Completion{Tag: tag, Code: errs.Of(err), Err: err}
	}
	return e.await(tag)[0]
}

func (e *testEngine) ok(c transport.Completion) {
	e.Helper()
	if c.Code != errs.OK {
		e.Fatalf("a slice ended with %v (%v)", c.Code, c.Err)
	}
}

// pattern returns n bytes that depend on key only.
func pattern(n int, key uint64) []byte {
	b := make([]byte, n)
	testenv.Fill(b, testenv.KeyOf(key, 0), 0)
	return b
}

// verify says where b is not the pattern of key.
func verify(b []byte, key uint64) error { return testenv.Verify(b, testenv.KeyOf(key, 0), 0) }

// dial connects to the socket of c as a stranger would.
func dial(t testing.TB, c card) *sys.Packets {
	t.Helper()
	to, err := parseOffer(c.Offer)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.DialUnix(network, nil, &net.UnixAddr{Net: network, Name: "@" + to.name})
	if err != nil {
		t.Fatal(err)
	}
	p, err := sys.NewPackets(conn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	return p
}

// receive reads one message.
func receive(t testing.TB, p *sys.Packets) (m message, fd int) {
	t.Helper()
	b := make([]byte, maxMessage)
	n, fd, err := p.Receive(b)
	if err == nil {
		err = m.parse(b[:n])
	}
	if err != nil {
		t.Fatal(err)
	}
	return m, fd
}

func send(t testing.TB, p *sys.Packets, b []byte, fd int) {
	t.Helper()
	if err := p.WaitSend(b, fd); err != nil {
		t.Fatal(err)
	}
}
