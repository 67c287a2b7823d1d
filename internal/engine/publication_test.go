package engine

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/mooncake"
	"github.com/tideway-io/tideway/internal/testenv"
	"github.com/tideway-io/tideway/metadata"
	"github.com/tideway-io/tideway/metadata/memory"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
)

// diary is a store without leases that notes what is done to it.
type diary struct {
	store metadata.Store
	mu    sync.Mutex
	lines []string
}

func (d *diary) note(op, key string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, op+" "+key)
}

// take returns what was noted, and forgets it.
func (d *diary) take() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	text := strings.Join(d.lines, "\n")
	d.lines = nil
	return text
}

func (d *diary) Get(ctx context.Context, key string) ([]byte, error) {
	return d.store.Get(ctx, key)
}

func (d *diary) Put(ctx context.Context, key string, value []byte) error {
	d.note("put", key)
	return d.store.Put(ctx, key, value)
}

func (d *diary) Delete(ctx context.Context, key string) error {
	d.note("delete", key)
	return d.store.Delete(ctx, key)
}

func TestOrderOfPublication(t *testing.T) {
	d := &diary{store: memory.New()}
	e := openFake(t, &fake{}, &network{}, func(c *Config) { c.Metadata, c.Name, c.Cluster = d, "team/a", "c1" })
	if got := d.take(); got != "put mooncake/c1/rpc_meta/team/a\nput mooncake/c1/team/a" {
		t.Errorf("at the start:\n%s", got)
	}
	value, err := d.Get(t.Context(), "mooncake/c1/rpc_meta/team/a")
	if err != nil {
		t.Fatal(err)
	}
	if addr, err := mooncake.DecodeAddr(value); err != nil || addr != e.Addr() {
		t.Errorf("%s: %s, %v, want %s", value, addr, err, e.Addr())
	}
	b, err := e.Alloc(4096, Registration{Name: "kv", Access: segment.ReadWrite})
	if err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, testTime, func() bool { return d.take() == "put mooncake/c1/team/a" }, "a registration is published")
	other := openFake(t, &fake{}, &network{}, func(c *Config) { c.Metadata, c.Name, c.Cluster = d, "b", "c1" })
	if _, err := other.OpenSegment(t.Context(), "team/a"); err != nil {
		t.Error(err)
	}
	apart := openFake(t, &fake{}, &network{}, func(c *Config) { c.Metadata, c.Name = d, "b" })
	if _, err := apart.OpenSegment(t.Context(), "team/a"); !errors.Is(err, errs.ErrNotFound) {
		t.Errorf("another cluster: %v, want not found", err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, testTime, func() bool { return e.publication.dirty.Load() == 0 }, "published")
	d.take()
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if got := d.take(); got != "delete mooncake/c1/rpc_meta/team/a\ndelete mooncake/c1/team/a" {
		t.Errorf("at the end:\n%s", got)
	}
}

// forgetful is a store that can lose everything.
type forgetful struct {
	mu    sync.Mutex
	store *memory.Store
}

func (f *forgetful) now() *memory.Store {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.store
}

func (f *forgetful) wipe() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.store = memory.New()
}

func (f *forgetful) Get(ctx context.Context, key string) ([]byte, error) {
	return f.now().Get(ctx, key)
}

func (f *forgetful) Put(ctx context.Context, key string, value []byte) error {
	return f.now().Put(ctx, key, value)
}

func (f *forgetful) Delete(ctx context.Context, key string) error { return f.now().Delete(ctx, key) }

func (f *forgetful) PutLeased(ctx context.Context, key string, value []byte, ttl time.Duration) error {
	return f.now().PutLeased(ctx, key, value, ttl)
}

func (f *forgetful) has(t *testing.T, key string) bool {
	t.Helper()
	_, err := f.Get(t.Context(), key)
	if err != nil && !errors.Is(err, errs.ErrNotFound) {
		t.Fatal(err)
	}
	return err == nil
}

func TestPublishedAgain(t *testing.T) {
	f := &forgetful{store: memory.New()}
	e := openFake(t, &fake{}, &network{}, func(c *Config) { c.Metadata, c.Name, c.MetadataTTL = f, "n", 30*time.Millisecond })
	keys := []string{e.addrKey(), e.descKey()}
	all := func() bool { return !slices.ContainsFunc(keys, func(k string) bool { return !f.has(t, k) }) }
	if !all() {
		t.Fatal("not published")
	}
	for range 3 {
		f.wipe()
		testenv.Eventually(t, testTime, all, "published again")
	}
	if err := f.Delete(t.Context(), e.descKey()); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, testTime, all, "the descriptor alone is published again")
	if n := e.Inspect().Counts.Republished; n < 4 {
		t.Errorf("republished_total is %d, want 4 at least", n)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if f.has(t, keys[0]) || f.has(t, keys[1]) {
		t.Error("something is left behind")
	}
}

// TestNameTaken: two engines of one name do not fight for it. The first one says
// that it lost it, and takes it back when the other one is gone.
func TestNameTaken(t *testing.T) {
	s := newShop()
	short := func(c *Config) { c.MetadataTTL = 30 * time.Millisecond }
	one := openFake(t, &fake{}, &network{}, inStore(s, "n"), short)
	two, err := Open(t.Context(), Config{
		Drivers: []transport.Driver{&fake{}}, Discover: (&network{}).discover, Metadata: &late{shop: s}, Name: "n", MetadataTTL: 30 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	condition := func(name string) bool {
		for _, c := range one.conditions() {
			if c.Name == name {
				return true
			}
		}
		return false
	}
	testenv.Eventually(t, testTime, func() bool { return condition("name_taken") }, "the first one notices")
	for range 20 {
		if err := one.checkStore(t.Context(), true); errs.Of(err) != errs.Busy {
			t.Fatalf("%v, want busy", err)
		}
		if d := s.published(t, "n"); d == nil || d.Incarnation != two.incarnation {
			t.Fatal("the first one took the name back from one that lives")
		}
	}
	if err := two.Close(); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, testTime, func() bool { d := s.published(t, "n"); return d != nil && d.Incarnation == one.incarnation }, "the first one is back")
	testenv.Eventually(t, testTime, func() bool { return !condition("name_taken") }, "the condition ends")
}

// TestLeaseEndsWithTheEngine: what an engine that dies leaves in the store ends by
// itself.
func TestLeaseEndsWithTheEngine(t *testing.T) {
	s := newShop()
	e := openFake(t, &fake{}, &network{}, inStore(s, "n"), func(c *Config) { c.MetadataTTL = 20 * time.Millisecond })
	s.do(func(_ context.Context, op string) error {
		if op == "delete" {
			return errs.New(errs.Unreachable, op, "the network is gone")
		}
		return nil
	})
	if err := e.unpublish(t.Context()); !errors.Is(err, errs.ErrUnreachable) {
		t.Fatal(err)
	}
	for _, key := range []string{e.addrKey(), e.descKey()} {
		testenv.Eventually(t, testTime, func() bool { _, err := s.Store.Get(t.Context(), key); return errors.Is(err, errs.ErrNotFound) }, key, " ends")
	}
	s.do(nil)
}

// TestStoreComesBack: a store that was silent for a while costs a condition, for
// as long as it is.
func TestStoreComesBack(t *testing.T) {
	s := newShop()
	e := openFake(t, &fake{}, &network{}, inStore(s, "n"), func(c *Config) { c.MetadataTTL, c.ConnectTimeout = 30*time.Millisecond, 20*time.Millisecond })
	s.do(func(ctx context.Context, _ string) error { <-ctx.Done(); return ctx.Err() })
	degraded := func() bool {
		c := e.conditions()
		return len(c) == 1 && c[0].Name == "metadata_degraded"
	}
	testenv.Eventually(t, testTime, degraded, "metadata_degraded")
	s.do(nil)
	testenv.Eventually(t, testTime, func() bool { return len(e.conditions()) == 0 }, "it ends")
}

// TestEngineWithoutName finds others in a store and leaves no trace in it.
func TestEngineWithoutName(t *testing.T) {
	d := &diary{store: memory.New()}
	openFake(t, &fake{}, &network{}, func(c *Config) { c.Metadata, c.Name = d, "n" })
	d.take()
	e := openFake(t, &fake{}, &network{}, func(c *Config) { c.Metadata = d })
	if e.Name() != segment.Name(e.Addr()) {
		t.Errorf("the name is %q, want %q", e.Name(), e.Addr())
	}
	if _, err := e.OpenSegment(t.Context(), "n"); err != nil {
		t.Error(err)
	}
	if _, err := e.Alloc(4096, Registration{Name: "kv", Access: segment.ReadWrite}); err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if got := d.take(); got != "" {
		t.Errorf("in the store:\n%s", got)
	}
}
