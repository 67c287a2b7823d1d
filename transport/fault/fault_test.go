package fault_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
	"github.com/tideway-io/tideway/transport/fault"
)

// stub is a transport that completes what it is told to, when it is told to.
type stub struct {
	transport.Transport
	sink transport.Sink
	mu   sync.Mutex
	held []transport.Slice
	auto bool // complete at once
	full bool // refuse as overloaded
	gone []transport.Tag
}

func (*stub) Name() string                { return "stub" }
func (*stub) Probe(context.Context) error { return nil }
func (s *stub) Open(_ context.Context, env transport.Env) (transport.Transport, error) {
	s.sink = env.Sink
	return s, nil
}
func (s *stub) Close() error { return nil }
func (s *stub) Connect(context.Context, *segment.Desc) (transport.Endpoint, error) {
	return &stubEndpoint{s}, nil
}

type stubEndpoint struct{ *stub }

func (e *stubEndpoint) Rails() []transport.Rail { return make([]transport.Rail, 1) }

func (e *stubEndpoint) Post(s []transport.Slice) (int, error) {
	e.mu.Lock()
	if e.full {
		e.mu.Unlock()
		return 0, errs.New(errs.Overloaded, "post", "full")
	}
	e.held = append(e.held, s...)
	auto := e.auto
	e.mu.Unlock()
	if auto {
		e.finish(errs.OK)
	}
	return len(s), nil
}

// finish completes everything.
func (s *stub) finish(code errs.Code) {
	s.mu.Lock()
	held := s.held
	s.held = nil
	s.mu.Unlock()
	for _, sl := range held {
		s.sink.Complete([]transport.Completion{{Tag: sl.Tag, Code: code}})
	}
}

func (e *stubEndpoint) Cancel(tags []transport.Tag) {
	e.mu.Lock()
	e.gone = append(e.gone, tags...)
	e.mu.Unlock()
	e.finish(errs.Canceled)
}

func (e *stubEndpoint) Close() error {
	e.finish(errs.Closed)
	return nil
}

// sink collects completions by tag.
type sink struct {
	mu   sync.Mutex
	done map[transport.Tag]transport.Completion
	t    *testing.T
}

func (s *sink) Complete(done []transport.Completion) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range done {
		if _, twice := s.done[c.Tag]; twice {
			s.t.Errorf("slice %d completed twice", c.Tag)
		}
		s.done[c.Tag] = c
	}
}

func (s *sink) code(tag transport.Tag) (errs.Code, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, ok := s.done[tag]
	return c.Code, ok
}

// rig is a stub under a plan.
type rig struct {
	*testing.T
	inner *stub
	plan  *fault.Plan
	tr    transport.Transport
	sink  *sink
}

func newRig(t *testing.T, rules ...fault.Rule) *rig {
	r := &rig{T: t, inner: &stub{auto: true}, plan: fault.New(1, rules...), sink: &sink{t: t, done: map[transport.Tag]transport.Completion{}}}
	var err error
	if r.tr, err = fault.Wrap(r.inner, r.plan).Open(t.Context(), transport.Env{Sink: r.sink}); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rig) connect() transport.Endpoint {
	r.Helper()
	ep, err := r.tr.Connect(r.Context(), &segment.Desc{Name: "peer", Addr: "peer:1"})
	if err != nil {
		r.Fatal(err)
	}
	return ep
}

// writes returns WRITEs of ten bytes with these tags.
func writes(tags ...transport.Tag) []transport.Slice {
	s := make([]transport.Slice, len(tags))
	for i, tag := range tags {
		s[i] = transport.Slice{Op: transport.Write, Local: make([]byte, 10), Tag: tag}
	}
	return s
}

// expect checks how the slices 1, 2, … have ended.
func (r *rig) expect(codes ...errs.Code) {
	r.Helper()
	for i, want := range codes {
		if got, ok := r.sink.code(transport.Tag(i + 1)); !ok || got != want {
			r.Errorf("slice %d: %v (ended: %v), want %v", i+1, got, ok, want)
		}
	}
}

func TestConnect(t *testing.T) {
	r := newRig(t, fault.Rule{Do: fault.FailConnect, Count: 2}, fault.Rule{Do: fault.DelayConnect, Count: 1, Delay: time.Hour})
	for range 2 {
		if _, err := r.tr.Connect(t.Context(), &segment.Desc{Addr: "peer:1"}); errs.Of(err) != errs.Refused {
			t.Errorf("connect: %v, want refused", err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.tr.Connect(ctx, &segment.Desc{}); !errors.Is(err, context.Canceled) {
		t.Errorf("a delayed connect does not end with its context: %v", err)
	}
	r.connect()
	if got := r.plan.Struck(); !slices.Equal(got, []uint64{2, 1}) {
		t.Errorf("struck %v, want 2 and 1", got)
	}
}

func TestRefuseEvery(t *testing.T) {
	r := newRig(t, fault.Rule{Do: fault.Refuse, After: 1, Every: 3, Count: 2, Code: errs.Unreachable})
	ep := r.connect()
	var took []int
	for s := writes(1, 2, 3, 4, 5, 6, 7, 8); len(s) > 0; { // the refused one comes again
		n, err := ep.Post(s)
		if n < len(s) && errs.Of(err) != errs.Unreachable {
			t.Fatalf("refused with %v", err)
		}
		took, s = append(took, n), s[n:]
	}
	if want := []int{1, 2, 5}; !slices.Equal(took, want) {
		t.Errorf("took %v, want %v", took, want)
	}
	r.expect(make([]errs.Code, 8)...)
}

func TestRefuseOverloadedNeedsCompany(t *testing.T) {
	r := newRig(t, fault.Rule{Do: fault.Refuse, Code: errs.Overloaded})
	r.inner.auto = false
	ep := r.connect()
	if n, err := ep.Post(writes(1, 2)); n != 1 || !errors.Is(err, errs.ErrOverloaded) {
		t.Errorf("took %d, %v; want 1 and overloaded: the first has nobody to wait for", n, err)
	}
}

func TestFailIsNotStarted(t *testing.T) {
	r := newRig(t, fault.Rule{Do: fault.Fail, After: 1, Count: 1, Code: errs.Checksum})
	r.inner.auto = false
	if n, err := r.connect().Post(writes(1, 2, 3)); n != 3 || err != nil {
		t.Fatal(n, err)
	}
	if len(r.inner.held) != 2 {
		t.Errorf("%d slices were started, want 2", len(r.inner.held))
	}
	r.inner.finish(errs.OK)
	r.expect(errs.OK, errs.Checksum, errs.OK)
}

func TestSpoilAndDoubt(t *testing.T) {
	r := newRig(t, fault.Rule{Do: fault.Spoil, Op: transport.Write, Count: 1}, fault.Rule{Do: fault.Spoil, Count: 2, Doubt: true})
	s := writes(1, 2, 3, 4)
	s[2].Op = transport.Read
	if n, err := r.connect().Post(s); n != 4 || err != nil {
		t.Fatal(n, err)
	}
	r.expect(errs.LaneLost, errs.LaneLost, errs.LaneLost, errs.OK)
	for tag, want := range map[transport.Tag]bool{1: false, 2: true, 3: false} {
		if got := r.sink.done[tag].InDoubt; got != want {
			t.Errorf("slice %d in doubt: %v, want %v", tag, got, want)
		}
	}
}

func TestRefusedInsideIsNotCounted(t *testing.T) {
	r := newRig(t, fault.Rule{Do: fault.Watch, Count: 1}, fault.Rule{Do: fault.Spoil, Count: 1})
	ep := r.connect()
	r.inner.full = true
	for range 3 {
		if n, err := ep.Post(writes(1, 2)); n != 0 || !errors.Is(err, errs.ErrOverloaded) {
			t.Fatal(n, err)
		}
	}
	r.inner.full = false
	if n, err := ep.Post(writes(1, 2)); n != 2 || err != nil {
		t.Fatal(n, err)
	}
	r.expect(errs.OK, errs.LaneLost)
}

func TestLoseAndKill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, fault.Rule{Do: fault.Lose, After: 2, Count: 1, Delay: time.Second, Doubt: true})
		r.inner.auto = false
		ep := r.connect()
		n, err := ep.Post(writes(1, 2, 3))
		if n != 2 || errs.Of(err) != errs.LaneLost {
			t.Fatalf("took %d, %v; want 2 and the lane lost", n, err)
		}
		r.expect(errs.LaneLost, errs.LaneLost)
		if len(r.inner.gone) != 2 || !r.sink.done[1].InDoubt {
			t.Errorf("cancelled inside: %v, in doubt: %v; want both slices and true", r.inner.gone, r.sink.done[1].InDoubt)
		}
		if n, _ := ep.Post(writes(4)); n != 0 {
			t.Errorf("a lost lane took a slice")
		}
		time.Sleep(2 * time.Second) // on the bubble's clock
		r.inner.auto = true
		r.plan.Set(fault.Rule{Do: fault.Kill, After: 1})
		if n, err := ep.Post(writes(5, 6)); n != 1 || errs.Of(err) != errs.LaneLost {
			t.Errorf("took %d, %v; want 1, then dead", n, err)
		}
		r.plan.Set()
		time.Sleep(time.Hour)
		if n, _ := ep.Post(writes(7)); n != 0 {
			t.Errorf("a dead endpoint took a slice")
		}
		if n, err := r.connect().Post(writes(8)); n != 1 || err != nil {
			t.Errorf("a new endpoint refuses: %v", err)
		}
	})
}

func TestDelaySlowAndCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, fault.Rule{Do: fault.Delay, Count: 2, Delay: time.Second}, fault.Rule{Do: fault.Slow, Rate: 10})
		ep := r.connect()
		start := time.Now()
		if n, err := ep.Post(writes(1, 2, 3, 4, 5)); n != 5 || err != nil {
			t.Fatal(n, err)
		}
		if len(r.sink.done) != 0 {
			t.Errorf("%d slices completed at once", len(r.sink.done))
		}
		c, ok := transport.As[transport.Canceler](ep)
		if !ok {
			t.Fatal("the endpoint inside is a Canceler, the decorated one is not")
		}
		c.Cancel([]transport.Tag{1, 99})
		r.expect(errs.OK)
		time.Sleep(1500 * time.Millisecond)
		synctest.Wait()
		r.expect(errs.OK, errs.OK, errs.OK) // 10 bytes at 10 bytes a second
		if _, early := r.sink.code(4); early {
			t.Errorf("20 bytes came through in %v", time.Since(start))
		}
		if err := ep.Close(); err != nil {
			t.Error(err)
		}
		r.expect(errs.OK, errs.OK, errs.OK, errs.OK, errs.OK)
	})
}

// TestHeldBound: completions that are held back do not pile up without end.
func TestHeldBound(t *testing.T) {
	r := newRig(t, fault.Rule{Do: fault.Delay, Delay: time.Hour})
	ep := r.connect()
	for i := 0; ; i += 1024 {
		tags := make([]transport.Tag, 1024)
		for j := range tags {
			tags[j] = transport.Tag(1 + i + j)
		}
		n, err := ep.Post(writes(tags...))
		if errors.Is(err, errs.ErrOverloaded) {
			if i+n != 1<<16 {
				t.Errorf("overloaded after %d slices, want %d", i+n, 1<<16)
			}
			break
		}
		if err != nil || i > 1<<17 {
			t.Fatalf("%d slices held: %v", i+n, err)
		}
	}
	if err := ep.Close(); err != nil || len(r.sink.done) != 1<<16 {
		t.Errorf("close: %v, %d slices completed", err, len(r.sink.done))
	}
	if n, err := ep.Post(writes(1)); n != 0 || !errors.Is(err, errs.ErrClosed) {
		t.Errorf("a closed endpoint: %d, %v", n, err)
	}
}

// TestSeed: the same seed strikes the same events.
func TestSeed(t *testing.T) {
	strike := func(seed uint64) (hit []int) {
		r := newRig(t)
		r.plan = fault.New(seed, fault.Rule{Do: fault.Spoil, Chance: 0.3})
		tr, _ := fault.Wrap(r.inner, r.plan).Open(t.Context(), transport.Env{Sink: r.sink})
		ep, _ := tr.Connect(t.Context(), &segment.Desc{})
		for i := range 100 {
			_, _ = ep.Post(writes(transport.Tag(i + 1)))
			if code, _ := r.sink.code(transport.Tag(i + 1)); code != errs.OK {
				hit = append(hit, i)
			}
		}
		return hit
	}
	a, b, c := strike(7), strike(7), strike(8)
	if !slices.Equal(a, b) || slices.Equal(a, c) || len(a) < 15 || len(a) > 45 {
		t.Errorf("seed 7 strikes %v and %v, seed 8 %v: want the same, another, and some 30 of 100", a, b, c)
	}
}
