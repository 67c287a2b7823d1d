// Package metadatatest is the conformance suite of metadata stores: a store is
// done when it passes. Each test is one sentence of the contract in package
// metadata.
package metadatatest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"testing"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/metadata"
)

// Options say what a store can be asked for. Zero fields have the documented
// default.
type Options struct {
	NoWatch  bool          // it is no metadata.Watcher
	NoLease  bool          // it is no metadata.Leaser
	TTL      time.Duration // the shortest lease that it keeps precisely, default 50 ms
	MaxValue int           // bytes of the longest value, default 1 MiB
	Patience time.Duration // how long a change may take to be seen, default 10 s
}

// Run tests the store that open returns, a fresh or an emptied one each time.
// Open registers the clean-up.
func Run(t *testing.T, open func(t testing.TB) metadata.Store, opts Options) {
	s := suite{open, opts}
	if s.opts.TTL == 0 {
		s.opts.TTL = 50 * time.Millisecond
	}
	if s.opts.MaxValue == 0 {
		s.opts.MaxValue = 1 << 20
	}
	if s.opts.Patience == 0 {
		s.opts.Patience = 10 * time.Second
	}
	t.Run("missing key is not found", s.missing)
	t.Run("put then get", s.putGet)
	t.Run("put replaces", s.replace)
	t.Run("delete", s.delete)
	t.Run("values are copies", s.copies)
	t.Run("keys are independent", s.keys)
	t.Run("ended context", s.endedContext)
	t.Run("concurrent use", s.concurrent)
	if !opts.NoWatch {
		t.Run("watch", s.watch)
		t.Run("slow watcher sees the last", s.slowWatcher)
		t.Run("watchers are independent", s.manyWatchers)
	}
	if !opts.NoLease {
		t.Run("lease holds while its context lives", s.leaseHolds)
		t.Run("lease ends", s.leaseEnds)
		t.Run("replaced lease", s.leaseReplaced)
	}
}

type suite struct {
	open func(t testing.TB) metadata.Store
	opts Options
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// has checks a key's value; want nil: it is not there.
func has(t testing.TB, s metadata.Store, key string, want []byte) {
	t.Helper()
	got, err := s.Get(t.Context(), key)
	switch {
	case want == nil && !errors.Is(err, errs.ErrNotFound):
		t.Errorf("%q: %q, %v, want not found", key, got, err)
	case want != nil && (err != nil || !bytes.Equal(got, want)):
		t.Errorf("%q: %d bytes %.40q, %v, want %d bytes %.40q", key, len(got), got, err, len(want), want)
	}
}

func (c suite) missing(t *testing.T) {
	s := c.open(t)
	_, err := s.Get(t.Context(), "mooncake/ram/nobody")
	if !errors.Is(err, errs.ErrNotFound) || !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	must(t, s.Delete(t.Context(), "mooncake/ram/nobody"))
}

func (c suite) putGet(t *testing.T) {
	s := c.open(t)
	for key, value := range map[string][]byte{
		"mooncake/ram/10.0.0.1:7070": []byte(`{"name":"10.0.0.1:7070"}`), "mooncake/ram/[fe80::1%eth0]:7070": []byte("v6"),
		"mooncake/c1/rpc_meta/a b+c&d=e?f#g%2F": []byte("odd"), "ключ": []byte("значение"), "empty": {},
		"binary": {0, 1, 255, '\n', 0}, "long": bytes.Repeat([]byte("0123456789abcdef"), c.opts.MaxValue/16),
	} {
		must(t, s.Put(t.Context(), key, value))
		has(t, s, key, value)
	}
}

func (c suite) replace(t *testing.T) {
	s := c.open(t)
	for _, v := range []string{"a longer first value", "b", "a longer first value", ""} {
		must(t, s.Put(t.Context(), "k", []byte(v)))
		has(t, s, "k", []byte(v))
	}
}

func (c suite) delete(t *testing.T) {
	s := c.open(t)
	must(t, s.Put(t.Context(), "k", []byte("v")))
	for range 2 {
		must(t, s.Delete(t.Context(), "k"))
		has(t, s, "k", nil)
	}
	must(t, s.Put(t.Context(), "k", []byte("again")))
	has(t, s, "k", []byte("again"))
}

func (c suite) copies(t *testing.T) {
	s := c.open(t)
	v := []byte("value")
	must(t, s.Put(t.Context(), "k", v))
	v[0] = 'X'
	has(t, s, "k", []byte("value"))
	got, err := s.Get(t.Context(), "k")
	must(t, err)
	got[0] = 'X'
	has(t, s, "k", []byte("value"))
}

func (c suite) keys(t *testing.T) {
	s := c.open(t)
	for _, k := range []string{"a", "a/b", "a/bc", "A"} {
		must(t, s.Put(t.Context(), k, []byte(k)))
	}
	must(t, s.Delete(t.Context(), "a/b"))
	has(t, s, "a", []byte("a"))
	has(t, s, "a/b", nil)
	has(t, s, "a/bc", []byte("a/bc"))
	has(t, s, "A", []byte("A"))
}

func (c suite) endedContext(t *testing.T) {
	s := c.open(t)
	must(t, s.Put(t.Context(), "k", []byte("v")))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := s.Get(ctx, "k")
	for op, err := range map[string]error{"get": err, "put": s.Put(ctx, "k", []byte("w")), "delete": s.Delete(ctx, "k")} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", op, err)
		}
	}
	has(t, s, "k", []byte("v"))
}

func (c suite) concurrent(t *testing.T) {
	s := c.open(t)
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			key := fmt.Sprintf("own/%d", i)
			for j := range 20 {
				want := fmt.Append(nil, i, j)
				if err := errors.Join(s.Put(t.Context(), key, want), s.Put(t.Context(), "shared", want)); err != nil {
					t.Error(err)
					return
				}
				has(t, s, key, want)
			}
		})
	}
	wg.Wait()
	if _, err := s.Get(t.Context(), "shared"); err != nil {
		t.Error(err)
	}
}

// watcher collects what a watch reports.
type watcher struct {
	t    testing.TB
	c    suite
	seen chan []byte
	end  context.CancelFunc
	err  chan error
}

func (c suite) start(t testing.TB, s metadata.Store, key string, each func()) *watcher {
	t.Helper()
	ws, ok := s.(metadata.Watcher)
	if !ok {
		t.Fatal("the store is no metadata.Watcher; set Options.NoWatch if that is meant")
	}
	ctx, cancel := context.WithCancel(t.Context())
	w := &watcher{t, c, make(chan []byte, 10_000), cancel, make(chan error, 1)}
	go func() {
		w.err <- ws.Watch(ctx, key, func(v []byte) {
			each()
			w.seen <- v
		})
	}()
	return w
}

// until takes what is reported until it is want; nil: deleted.
func (w *watcher) until(want []byte) {
	w.t.Helper()
	for timeout := time.After(w.c.opts.Patience); ; {
		select {
		case v := <-w.seen:
			if bytes.Equal(v, want) && (v == nil) == (want == nil) {
				return
			}
		case err := <-w.err:
			w.t.Fatalf("the watch ended: %v", err)
		case <-timeout:
			w.t.Fatalf("%q was not reported within %v", want, w.c.opts.Patience)
		}
	}
}

func (w *watcher) stop() {
	w.t.Helper()
	w.end()
	select {
	case err := <-w.err:
		if !errors.Is(err, context.Canceled) {
			w.t.Errorf("the watch ended with %v", err)
		}
	case <-time.After(w.c.opts.Patience):
		w.t.Error("the watch does not end with its context")
	}
}

func (c suite) watch(t *testing.T) {
	s := c.open(t)
	w := c.start(t, s, "k", func() {})
	w.until(nil)
	for _, v := range []string{"one", "two", ""} {
		must(t, s.Put(t.Context(), "k", []byte(v)))
		w.until([]byte(v))
	}
	must(t, s.Put(t.Context(), "other", []byte("three")))
	must(t, s.Delete(t.Context(), "k"))
	w.until(nil)
	must(t, s.Put(t.Context(), "k", []byte("four")))
	w.until([]byte("four"))
	w.stop()
	late := c.start(t, s, "k", func() {})
	late.until([]byte("four"))
	late.stop()
}

func (c suite) slowWatcher(t *testing.T) {
	s := c.open(t)
	gate := make(chan struct{})
	w := c.start(t, s, "k", func() { <-gate })
	const many = 1000
	for i := range many {
		must(t, s.Put(t.Context(), "k", fmt.Append(nil, i)))
	}
	close(gate)
	w.until(fmt.Append(nil, many-1))
	w.stop()
}

func (c suite) manyWatchers(t *testing.T) {
	s := c.open(t)
	var all []*watcher
	for i := range 20 {
		all = append(all, c.start(t, s, fmt.Sprintf("k%d", i%2), func() {}))
		all[i].until(nil)
	}
	all[0].stop()
	must(t, s.Put(t.Context(), "k0", []byte("v0")))
	must(t, s.Put(t.Context(), "k1", []byte("v1")))
	for i, w := range all[1:] {
		w.until(fmt.Appendf(nil, "v%d", (i+1)%2))
		w.stop()
	}
}

func (c suite) leaser(t testing.TB, s metadata.Store) metadata.Leaser {
	t.Helper()
	l, ok := s.(metadata.Leaser)
	if !ok {
		t.Fatal("the store is no metadata.Leaser; set Options.NoLease if that is meant")
	}
	return l
}

func (c suite) leaseHolds(t *testing.T) {
	s := c.open(t)
	must(t, c.leaser(t, s).PutLeased(t.Context(), "k", []byte("v"), c.opts.TTL))
	c.during(4*c.opts.TTL, func() { has(t, s, "k", []byte("v")) })
}

// during checks again and again, and once more when d is over.
func (c suite) during(d time.Duration, check func()) {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(c.opts.TTL / 8) { // real time: a store's clock is its own
		check()
	}
	check()
}

func (c suite) leaseEnds(t *testing.T) {
	s := c.open(t)
	ctx, cancel := context.WithCancel(t.Context())
	must(t, c.leaser(t, s).PutLeased(ctx, "k", []byte("v"), c.opts.TTL))
	has(t, s, "k", []byte("v"))
	cancel()
	c.gone(t, s, "k")
	must(t, s.Put(t.Context(), "k", []byte("w")))
	has(t, s, "k", []byte("w"))
}

// gone waits until the key is not there any more.
func (c suite) gone(t testing.TB, s metadata.Store, key string) {
	t.Helper()
	for end := time.Now().Add(c.opts.TTL + c.opts.Patience); ; time.Sleep(time.Millisecond) { // real time: a store's clock is its own
		if _, err := s.Get(t.Context(), key); errors.Is(err, errs.ErrNotFound) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%q is still there", key)
		}
	}
}

// leaseReplaced: whoever put a value last decides how long it lives.
func (c suite) leaseReplaced(t *testing.T) {
	s := c.open(t)
	l := c.leaser(t, s)
	first, cancelFirst := context.WithCancel(t.Context())
	second, cancelSecond := context.WithCancel(t.Context())
	defer cancelSecond()
	must(t, l.PutLeased(first, "leased", []byte("1"), c.opts.TTL))
	must(t, l.PutLeased(first, "kept", []byte("1"), c.opts.TTL))
	must(t, l.PutLeased(first, "gone", []byte("1"), c.opts.TTL))
	must(t, l.PutLeased(second, "leased", []byte("2"), c.opts.TTL))
	must(t, s.Put(t.Context(), "kept", []byte("2")))
	cancelFirst()
	c.gone(t, s, "gone")
	c.during(2*c.opts.TTL, func() {
		has(t, s, "leased", []byte("2"))
		has(t, s, "kept", []byte("2"))
	})
	cancelSecond()
	c.gone(t, s, "leased")
	has(t, s, "kept", []byte("2"))
	must(t, s.Delete(t.Context(), "kept"))
}
