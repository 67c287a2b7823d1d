// Package memory is a metadata store inside one process: for tests, and for
// engines that share a process. Nothing in it survives the process.
package memory

import (
	"context"
	"sync"
	"time"

	"github.com/tideway-io/tideway/errs"
)

// MaxKeys bounds a store.
const MaxKeys = 1 << 20

// Store is a metadata.Store, Watcher and Leaser. Make it with New.
type Store struct {
	limit int
	mu    struct {
		sync.Mutex
		keys     map[string]*entry
		watchers map[string]map[chan struct{}]struct{} // each is poked when its key changes
	}
}

// entry is a value. A later Put makes another one, so that a lease that ends
// drops only its own.
type entry struct{ value []byte }

// New returns an empty store.
func New() *Store {
	s := &Store{limit: MaxKeys}
	s.mu.keys = make(map[string]*entry)
	s.mu.watchers = make(map[string]map[chan struct{}]struct{})
	return s
}

// Get returns a copy of the value, or errs.NotFound.
func (s *Store) Get(ctx context.Context, key string) ([]byte, error) {
	if err := ended(ctx, "get"); err != nil {
		return nil, err
	}
	if v := s.value(key); v != nil {
		return v, nil
	}
	return nil, errs.New(errs.NotFound, "get", "no key %q", key)
}

// Put creates or replaces the value, of which it keeps a copy.
func (s *Store) Put(ctx context.Context, key string, value []byte) error {
	_, err := s.put(ctx, key, value)
	return err
}

// Delete removes the key.
func (s *Store) Delete(ctx context.Context, key string) error {
	if err := ended(ctx, "delete"); err != nil {
		return err
	}
	s.drop(key, nil)
	return nil
}

// PutLeased is Put of a value that is dropped ttl after ctx has ended, unless
// another Put replaced it. It returns as soon as the value is there.
func (s *Store) PutLeased(ctx context.Context, key string, value []byte, ttl time.Duration) error {
	e, err := s.put(ctx, key, value)
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() {
		time.AfterFunc(ttl, func() { s.drop(key, e) })
	})
	return nil
}

// Watch calls changed with the present value, nil if there is none, and after
// each change until ctx ends, which is what it returns. A value that is
// replaced before changed returned may be left out; the last one never is.
func (s *Store) Watch(ctx context.Context, key string, changed func(value []byte)) error {
	poke := make(chan struct{}, 1)
	s.watch(key, poke)
	defer s.unwatch(key, poke)
	for ctx.Err() == nil {
		changed(s.value(key))
		select {
		case <-poke:
		case <-ctx.Done():
		}
	}
	return ended(ctx, "watch")
}

func (s *Store) put(ctx context.Context, key string, value []byte) (*entry, error) {
	if err := ended(ctx, "put"); err != nil {
		return nil, err
	}
	e := &entry{append([]byte{}, value...)}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.keys[key] == nil && len(s.mu.keys) >= s.limit {
		return nil, errs.New(errs.Overloaded, "put", "%d keys, the limit", s.limit)
	}
	s.mu.keys[key] = e
	s.poke(key)
	return e, nil
}

// value returns a copy, never nil if the key is there.
func (s *Store) value(key string) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.mu.keys[key]; e != nil {
		return append([]byte{}, e.value...)
	}
	return nil
}

// drop removes the key, if it still has the entry only; nil is any.
func (s *Store) drop(key string, only *entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.mu.keys[key]
	if e == nil || only != nil && e != only {
		return
	}
	delete(s.mu.keys, key)
	s.poke(key)
}

// poke wakes the key's watchers. The lock is held.
func (s *Store) poke(key string) {
	for ch := range s.mu.watchers[key] {
		select {
		case ch <- struct{}{}:
		default: // it has not looked since the last time
		}
	}
}

func (s *Store) watch(key string, poke chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.watchers[key] == nil {
		s.mu.watchers[key] = make(map[chan struct{}]struct{})
	}
	s.mu.watchers[key][poke] = struct{}{}
}

func (s *Store) unwatch(key string, poke chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.mu.watchers[key], poke)
	if len(s.mu.watchers[key]) == 0 {
		delete(s.mu.watchers, key)
	}
}

// ended is the context's error, typed.
func ended(ctx context.Context, op string) error {
	if ctx.Err() == nil {
		return nil
	}
	return &errs.Error{Op: op, Reason: errs.Of(ctx.Err()), Err: context.Cause(ctx)}
}
