package engine

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/mooncake"
	"github.com/tideway-io/tideway/internal/testenv"
	"github.com/tideway-io/tideway/metadata/memory"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
)

// shop is a store that the test makes fail or hang.
type shop struct {
	*memory.Store
	puts   atomic.Int32
	before atomic.Pointer[func(ctx context.Context, op string) error]
}

func newShop() *shop { return &shop{Store: memory.New()} }

// do sets what is called before each operation; nil: nothing.
func (s *shop) do(f func(ctx context.Context, op string) error) { s.before.Store(&f) }

func (s *shop) enter(ctx context.Context, op string) error {
	if f := s.before.Load(); f != nil && *f != nil {
		return (*f)(ctx, op)
	}
	return nil
}

func (s *shop) Get(ctx context.Context, key string) ([]byte, error) {
	if err := s.enter(ctx, "get"); err != nil {
		return nil, err
	}
	return s.Store.Get(ctx, key)
}

func (s *shop) Put(ctx context.Context, key string, value []byte) error {
	s.puts.Add(1)
	if err := s.enter(ctx, "put"); err != nil {
		return err
	}
	return s.Store.Put(context.WithoutCancel(ctx), key, value)
}

func (s *shop) PutLeased(ctx context.Context, key string, value []byte, ttl time.Duration) error {
	s.puts.Add(1)
	if err := s.enter(ctx, "put"); err != nil {
		return err
	}
	return s.Store.PutLeased(ctx, key, value, ttl)
}

func (s *shop) Delete(ctx context.Context, key string) error {
	if err := s.enter(ctx, "delete"); err != nil {
		return err
	}
	return s.Store.Delete(ctx, key)
}

// published returns what the store has under name, nil if there is nothing.
func (s *shop) published(t *testing.T, name string) *segment.Desc {
	t.Helper()
	value, err := s.Store.Get(t.Context(), mooncake.DescKey("", name))
	if errors.Is(err, errs.ErrNotFound) {
		return nil
	}
	d, _, derr := mooncake.DecodeDesc(value)
	if err != nil || derr != nil {
		t.Fatal(err, derr)
	}
	return d
}

func inStore(s *shop, name string) func(*Config) {
	return func(c *Config) { c.Metadata, c.Name = s, name }
}

// late is a shop as one sees it who asks before others publish: its first Get
// finds nothing.
type late struct {
	*shop
	asked atomic.Bool
}

func (l *late) Get(ctx context.Context, key string) ([]byte, error) {
	if l.asked.CompareAndSwap(false, true) {
		return nil, errs.New(errs.NotFound, "get", "not yet")
	}
	return l.shop.Get(ctx, key)
}

// TestNameOfALivingEngine: a name in use is refused, and that of an engine that is
// gone, or was never ours, is not.
func TestNameOfALivingEngine(t *testing.T) {
	s := newShop()
	one := openFake(t, &fake{}, &network{}, inStore(s, "n"))
	open := func() (*Engine, error) {
		return Open(t.Context(), Config{
			Drivers: []transport.Driver{&fake{}}, Discover: (&network{}).discover, Metadata: s, Name: "n", Logger: slog.New(slog.DiscardHandler),
		})
	}
	if _, err := open(); errs.Of(err) != errs.Busy || !strings.Contains(err.Error(), one.Addr()) {
		t.Fatalf("%v, want busy, with the owner's address", err)
	}
	if d := s.published(t, "n"); d == nil || d.Incarnation != one.incarnation {
		t.Fatal("an engine that did not open took another one's name away")
	}
	left := s.published(t, "n")
	for _, change := range []func(*segment.Desc){
		func(d *segment.Desc) { d.Addr = "127.0.0.1:1" }, // nobody answers there
		func(d *segment.Desc) { d.Incarnation++ },        // another life answers there
	} {
		d := *left
		change(&d)
		value, err := mooncake.EncodeDesc(&d, time.Now())
		if err == nil {
			err = s.Store.Put(t.Context(), mooncake.DescKey("", "n"), value)
		}
		if err != nil {
			t.Fatal(err)
		}
		two, err := open()
		if err != nil {
			t.Fatal(err)
		}
		if d := s.published(t, "n"); d == nil || d.Incarnation != two.incarnation {
			t.Error("the next engine of the name is not published")
		}
		if err := two.Close(); err != nil {
			t.Error(err)
		}
	}
	s.do(func(_ context.Context, op string) error { return errs.New(errs.Unreachable, op, "the network is gone") })
	if _, err := open(); !errors.Is(err, errs.ErrUnreachable) {
		t.Errorf("%v, want unreachable", err)
	}
	s.do(nil)
}

func TestNameOfAnotherEngineIsLeftAlone(t *testing.T) {
	s := newShop()
	one := openFake(t, &fake{}, &network{}, inStore(s, "n"))
	bad := &fake{openErr: errs.New(errs.Unsupported, "open", "no such device")}
	if _, err := Open(t.Context(), Config{
		Drivers: []transport.Driver{bad}, Transports: []string{"fake"}, Metadata: s, Name: "n", Logger: slog.New(slog.DiscardHandler),
	}); !errors.Is(err, errs.ErrUnsupported) {
		t.Fatal(err)
	}
	if d := s.published(t, "n"); d == nil || d.Incarnation != one.incarnation {
		t.Fatal("an engine that did not open took another one's name away")
	}
	two := openFake(t, &fake{}, &network{}, func(c *Config) { c.Metadata, c.Name = &late{shop: s}, "n" })
	if err := one.Close(); err != nil {
		t.Fatal(err)
	}
	if d := s.published(t, "n"); d == nil || d.Incarnation != two.incarnation {
		t.Fatal("the life before took the name away from the next one")
	}
	if err := two.Close(); err != nil {
		t.Fatal(err)
	}
	if s.published(t, "n") != nil {
		t.Error("the name of a closed engine is still there")
	}
}

func TestPublishUntilItIsThere(t *testing.T) {
	s := newShop()
	e := openFake(t, &fake{}, &network{}, inStore(s, "n"))
	var failures atomic.Int32
	failures.Store(3)
	s.do(func(_ context.Context, op string) error {
		if op == "put" && failures.Add(-1) >= 0 {
			return errs.New(errs.Unreachable, "put", "the store is away")
		}
		return nil
	})
	if _, err := e.Alloc(4096, Registration{Name: "kv", Access: segment.ReadWrite}); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, testTime, func() bool { return len(e.conditions()) == 1 }, "no condition says that the store is away")
	testenv.Eventually(t, testTime, func() bool { return s.published(t, "n").ByName("kv") != nil }, "the buffer is not published")
	testenv.Eventually(t, testTime, func() bool { return len(e.conditions()) == 0 }, "the condition stays")
	before := s.puts.Load()
	if _, err := e.Alloc(4096, Registration{Name: "own"}); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, testTime, func() bool { return e.publication.dirty.Load() == 0 }, "publishing does not end")
	if n := s.puts.Load(); n != before {
		t.Error("what peers cannot see was published")
	}
}

// TestNothingIsPublishedAfterTheEnd: a Put that is under way when the engine
// ends does not outlive it, and buffers closed while it drains bring no other.
func TestNothingIsPublishedAfterTheEnd(t *testing.T) {
	s := newShop()
	e := openFake(t, &fake{}, &network{}, inStore(s, "n"))
	putting := make(chan struct{}, 1)
	s.do(func(ctx context.Context, op string) error {
		if op == "put" {
			putting <- struct{}{}
			select {
			case <-ctx.Done():
			case <-time.After(50 * time.Millisecond):
			}
		}
		return nil
	})
	b, err := e.Alloc(4096, Registration{Name: "kv", Access: segment.ReadWrite})
	if err != nil {
		t.Fatal(err)
	}
	<-putting
	if err := e.unpublish(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if s.published(t, "n") != nil {
		t.Error("the name of a closed engine is there")
	}
}

func TestSilentStore(t *testing.T) {
	s := newShop()
	short := func(c *Config) { c.ConnectTimeout = 50 * time.Millisecond }
	net := &network{}
	f := &fake{}
	e := openFake(t, f, net, inStore(s, "n"), short)
	s.describe(t, peerDesc("b:1", 7))
	_, kv := lookUp(t, e, "b")
	b := e.NewBatch()
	add(t, b, writes(1, kv)...)
	b.Seal()
	holding(t, f, 1)
	var gaveUp atomic.Int32
	s.do(func(ctx context.Context, _ string) error {
		<-ctx.Done()
		gaveUp.Add(1)
		return ctx.Err()
	})
	cfg := Config{Drivers: []transport.Driver{&fake{}}, Logger: slog.New(slog.DiscardHandler)}
	inStore(s, "m")(&cfg)
	short(&cfg)
	if _, err := Open(t.Context(), cfg); !errors.Is(err, errs.ErrUnreachable) {
		t.Errorf("open: %v, want unreachable", err)
	}
	if _, err := e.OpenSegment(t.Context(), "c"); errs.Of(err) != errs.Unresponsive {
		t.Errorf("open segment: %v, want unresponsive", err)
	}
	ended, before := make(chan error, 1), gaveUp.Load()
	go func() { ended <- e.Shutdown(t.Context()) }()
	testenv.Eventually(t, testTime, func() bool { return gaveUp.Load() > before }, "the store is not asked to forget the name")
	s.do(nil)
	f.complete(errs.OK)
	if err := done(t, b); err != nil {
		t.Errorf("the transfer in flight did not get its grace: %v", err)
	}
	if err := <-ended; err != nil || s.published(t, "n") != nil {
		t.Errorf("shut down: %v; is the name gone: %v", err, s.published(t, "n") == nil)
	}
}

// TestCloseBeforeTheStoreAnswers: Close ends transfers first; the store, which is
// silent, is asked to forget the name after that.
func TestCloseBeforeTheStoreAnswers(t *testing.T) {
	s, f := newShop(), &fake{}
	e := openFake(t, f, &network{}, inStore(s, "n"))
	s.describe(t, peerDesc("b:1", 7))
	_, kv := lookUp(t, e, "b")
	b := e.NewBatch()
	add(t, b, writes(1, kv)...)
	b.Seal()
	holding(t, f, 1)
	gate := make(chan struct{})
	s.do(func(context.Context, string) error { <-gate; return nil })
	if _, err := e.Alloc(4096, Registration{Name: "kv", Access: segment.ReadWrite}); err != nil { // its publication hangs, too
		t.Fatal(err)
	}
	closed := make(chan error, 1)
	go func() { closed <- e.Close() }()
	if err := done(t, b); !errors.Is(err, errs.ErrClosed) {
		t.Errorf("the transfer in flight: %v, want closed", err)
	}
	select {
	case err := <-closed:
		t.Errorf("Close returned %v before the store answered", err)
	default:
	}
	close(gate)
	if err := <-closed; err != nil || s.published(t, "n") != nil {
		t.Errorf("close: %v; is the name gone: %v", err, s.published(t, "n") == nil)
	}
}
