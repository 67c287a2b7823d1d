// Package metadata is where descriptors are found by name: a Store of small
// opaque values, and what some stores can do besides. Encodings and keys are
// the business of those who use it.
package metadata

import (
	"context"
	"time"
)

// Store keeps values by key. Implementations are safe for concurrent use, and
// every call is bounded by its context.
type Store interface {
	// Get returns the value, or an error that matches errs.ErrNotFound.
	Get(ctx context.Context, key string) ([]byte, error)
	// Put creates or replaces the value.
	Put(ctx context.Context, key string, value []byte) error
	// Delete removes the key; a key that is not there is not an error.
	Delete(ctx context.Context, key string) error
}

// Watcher is a Store that reports changes.
type Watcher interface {
	// Watch calls changed with each new value of key, nil when it is deleted,
	// until ctx ends, whose error it returns. It starts with the present value,
	// nil if there is none. A value that is replaced before changed returned may
	// be left out; the last one never is.
	Watch(ctx context.Context, key string, changed func(value []byte)) error
}

// Leaser is a Store whose values can end by themselves.
type Leaser interface {
	// PutLeased is Put of a value that the store drops when it was not renewed
	// for ttl. It returns when the value is there; it is renewed until ctx ends or
	// another Put replaces it. The end of a lease drops only its own value.
	PutLeased(ctx context.Context, key string, value []byte, ttl time.Duration) error
}
