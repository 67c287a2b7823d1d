package metadatatest

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tideway-io/tideway/metadata"
	"github.com/tideway-io/tideway/metadata/memory"
)

// broken are stores with one fault each, and the test that must find it.
func broken() map[string]struct {
	store metadata.Store
	finds string
} {
	return map[string]struct {
		store metadata.Store
		finds string
	}{
		"forgets":        {forgets{memory.New()}, "put_then_get"},
		"folds":          {folds{memory.New()}, "keys_are_independent"},
		"trims":          {trims{memory.New()}, "put_then_get"},
		"aliases":        {&aliases{Store: memory.New(), kept: map[string][]byte{}}, "values_are_copies"},
		"ignores":        {ignores{memory.New()}, "ended_context"},
		"undeletes":      {undeletes{memory.New()}, "delete"},
		"no first":       {noFirst{memory.New()}, "watch"},
		"no watch":       {struct{ metadata.Store }{memory.New()}, "watch"},
		"lease for ever": {leaseForEver{memory.New()}, "lease_ends"},
		"lease too soon": {leaseTooSoon{memory.New()}, "lease_holds"},
		"drops the next": {dropsNext{memory.New()}, "replaced_lease"},
	}
}

type forgets struct{ *memory.Store }

func (s forgets) Put(ctx context.Context, k string, v []byte) error {
	if len(v) > 1<<10 {
		return nil
	}
	return s.Store.Put(ctx, k, v)
}

type folds struct{ *memory.Store }

func (s folds) Get(ctx context.Context, k string) ([]byte, error) {
	return s.Store.Get(ctx, strings.ToLower(k))
}
func (s folds) Put(ctx context.Context, k string, v []byte) error {
	return s.Store.Put(ctx, strings.ToLower(k), v)
}

type trims struct{ *memory.Store }

func (s trims) Get(ctx context.Context, k string) ([]byte, error) {
	v, err := s.Store.Get(ctx, k)
	return bytes.TrimRight(v, "\x00"), err
}

type aliases struct {
	*memory.Store
	mu   sync.Mutex
	kept map[string][]byte
}

func (s *aliases) Put(ctx context.Context, k string, v []byte) error {
	s.mu.Lock()
	s.kept[k] = v
	s.mu.Unlock()
	return s.Store.Put(ctx, k, v)
}
func (s *aliases) Get(ctx context.Context, k string) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v, ok := s.kept[k]; ok && k == "k" && string(v) != "v" {
		return v, nil
	}
	return s.Store.Get(ctx, k)
}

type ignores struct{ *memory.Store }

func (s ignores) Put(_ context.Context, k string, v []byte) error {
	return s.Store.Put(context.Background(), k, v)
}

type undeletes struct{ *memory.Store }

func (s undeletes) Delete(context.Context, string) error { return nil }

type noFirst struct{ *memory.Store }

func (s noFirst) Watch(ctx context.Context, k string, changed func([]byte)) error {
	first := true
	return s.Store.Watch(ctx, k, func(v []byte) {
		if !first {
			changed(v)
		}
		first = false
	})
}

type leaseForEver struct{ *memory.Store }

func (s leaseForEver) PutLeased(ctx context.Context, k string, v []byte, _ time.Duration) error {
	return s.Put(ctx, k, v)
}

type leaseTooSoon struct{ *memory.Store }

func (s leaseTooSoon) PutLeased(ctx context.Context, k string, v []byte, ttl time.Duration) error {
	time.AfterFunc(ttl, func() { _ = s.Delete(context.Background(), k) })
	return s.Put(ctx, k, v)
}

type dropsNext struct{ *memory.Store }

func (s dropsNext) PutLeased(ctx context.Context, k string, v []byte, ttl time.Duration) error {
	context.AfterFunc(ctx, func() { time.AfterFunc(ttl, func() { _ = s.Delete(context.Background(), k) }) })
	return s.Put(ctx, k, v)
}

const brokenEnv = "METADATATEST_BROKEN"

// TestFindsFaults runs the suite against each broken store, in a process of its
// own, and wants it to fail where the fault is.
func TestFindsFaults(t *testing.T) {
	if name := os.Getenv(brokenEnv); name != "" {
		Run(t, func(testing.TB) metadata.Store { return broken()[name].store }, Options{Patience: 200 * time.Millisecond, TTL: 20 * time.Millisecond})
		return
	}
	for name, c := range broken() {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command(os.Args[0], "-test.run=^TestFindsFaults$", "-test.v")
			cmd.Env = append(os.Environ(), brokenEnv+"="+name)
			out, err := cmd.CombinedOutput()
			if err == nil || !strings.Contains(string(out), "--- FAIL: TestFindsFaults/"+c.finds) {
				t.Errorf("%v, and no failure of %q:\n%s", err, c.finds, out)
			}
		})
	}
}
