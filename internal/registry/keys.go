package registry

import (
	"math"
	"sync/atomic"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/segment"
)

// maxKeys is how many keys one incarnation has: all 32-bit numbers but 0.
const maxKeys = math.MaxUint32

// keys finds buffers by registration key without a lock. Keys are given out in
// order from a random start, past 0, so that the i-th key is a matter of
// arithmetic: it is the index into a table of pages, and "registered once,
// closed since" is told from "never registered" without remembering anything.
// A page whose keys are all given out and closed is dropped, so memory follows
// the buffers that live, but for 8 bytes of the table for every 1024 keys.
//
// Reading is safe at any time; add and drop are called under the registry's
// lock.
type keys struct {
	first segment.Key
	next  atomic.Uint64 // keys given out
	pages atomic.Pointer[[]atomic.Pointer[page]]
}

const pageSize = 1024

type page struct {
	live    int // guarded by the registry's lock
	buffers [pageSize]atomic.Pointer[Buffer]
}

func (k *keys) init(first segment.Key) {
	k.first = max(first, 1)
	k.pages.Store(new([]atomic.Pointer[page]))
}

// key returns the i-th key.
func (k *keys) key(i uint64) segment.Key {
	n := uint64(k.first) + i
	if n > math.MaxUint32 {
		n++ // wrapped around: 0 is no key
	}
	return segment.Key(n)
}

// index is the inverse of key.
func (k *keys) index(key segment.Key) uint64 {
	i := uint64(key - k.first) // modulo 2^32
	if key < k.first {
		i--
	}
	return i
}

// get returns the live buffer, or why there is none.
func (k *keys) get(key segment.Key) (*Buffer, errs.Code) {
	i := k.index(key)
	if key == 0 || i >= k.next.Load() {
		return nil, errs.NotRegistered
	}
	pages := *k.pages.Load()
	if p := pages[i/pageSize].Load(); p != nil {
		if b := p.buffers[i%pageSize].Load(); b != nil {
			return b, errs.OK
		}
	}
	return nil, errs.Revoked
}

// add gives b a key; ok is false when none is left.
func (k *keys) add(b *Buffer) (key segment.Key, ok bool) {
	i := k.next.Load()
	if i >= maxKeys {
		return 0, false
	}
	at := k.grow(int(i / pageSize))
	p := at.Load()
	if p == nil {
		p = new(page)
		at.Store(p)
	}
	p.live++
	p.buffers[i%pageSize].Store(b)
	k.next.Store(i + 1) // after the page is in place: get relies on it
	return k.key(i), true
}

// grow makes room for page n. A reader keeps the table that it has, which holds
// all keys given out before.
func (k *keys) grow(n int) *atomic.Pointer[page] {
	pages := *k.pages.Load()
	if n >= len(pages) {
		more := make([]atomic.Pointer[page], max(8, 2*len(pages), n+1))
		for i := range pages {
			more[i].Store(pages[i].Load())
		}
		pages = more
		k.pages.Store(&more)
	}
	return &pages[n]
}

// drop makes a live key one that was closed.
func (k *keys) drop(key segment.Key) {
	i := k.index(key)
	at := &(*k.pages.Load())[i/pageSize]
	p := at.Load()
	p.buffers[i%pageSize].Store(nil)
	p.live--
	if p.live == 0 && k.next.Load()/pageSize > i/pageSize {
		at.Store(nil)
	}
}
