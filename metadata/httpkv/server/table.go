package server

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tideway-io/tideway/errs"
)

// entry is one value. What is published of it does not change but for the time
// at which it ends, which renewals put off.
type entry struct {
	value []byte
	lease string        // names this very value, empty if it is kept for good
	ttl   time.Duration // how long it lasts without a renewal, 0 for good
	ends  atomic.Int64  // when that is, in nanoseconds of the table's clock
}

// change is what a request wants of a key: a new value, or none.
type change struct {
	key   string
	entry *entry // nil: delete
	only  *entry // if set, nothing is done unless the key has this very entry
	done  chan outcome
}

// outcome is how a change went.
type outcome struct {
	was, same bool // the key was there; it was there with the same value, and nothing was done
	err       error
}

// table keeps all values in memory. One goroutine makes the changes, in order,
// and has the journal write them before it answers; a failed write is undone.
type table struct {
	limits  Limits
	strict  bool // a descriptor of an address is not replaced by another one
	journal journal
	start   time.Time
	queue   chan *change
	counts  *counts
	broken  atomic.Pointer[error] // why the last write of the journal failed
	mu      struct {
		sync.RWMutex
		keys   map[string]*entry
		leased map[string]*entry // those of keys that end
		bytes  int64
	}
}

// journal makes changes last. Write is given them in order, and either all of
// them last or none.
type journal interface {
	load(each func(key string, e *entry)) error
	write(changes []*change) error
	close() error
}

// maxTogether is how many changes one write of the journal takes.
const maxTogether = 256

// sweepEvery is how often ended values are removed. They are not seen before.
const sweepEvery = 250 * time.Millisecond

func newTable(o Options, j journal, c *counts) (*table, error) {
	t := &table{limits: o.Limits, strict: o.RefuseDuplicates, journal: j, start: time.Now(), queue: make(chan *change, maxTogether), counts: c}
	t.mu.keys, t.mu.leased = make(map[string]*entry), make(map[string]*entry)
	err := j.load(func(key string, e *entry) {
		if e.ttl > 0 {
			t.renewed(e) // nobody could renew it while the server was away
		}
		t.set(key, e)
	})
	return t, err
}

func (t *table) now() int64 { return int64(time.Since(t.start)) }

func (t *table) renewed(e *entry) { e.ends.Store(t.now() + int64(e.ttl)) }

func (t *table) ended(e *entry) bool { return e.ttl > 0 && e.ends.Load() <= t.now() }

// get returns the entry, nil if there is none. Its value is not to be written to.
func (t *table) get(key string) *entry {
	t.mu.RLock()
	e := t.mu.keys[key]
	t.mu.RUnlock()
	if e == nil || t.ended(e) {
		return nil
	}
	return e
}

// renew puts off the end of the value that lease names.
func (t *table) renew(key, lease string) bool {
	t.mu.RLock()
	defer t.mu.RUnlock() // so that it is not being removed
	e := t.mu.keys[key]
	if e == nil || e.lease == "" || e.lease != lease || t.ended(e) {
		return false
	}
	t.renewed(e)
	return true
}

// newEntry returns an entry of a value that is the table's from now on.
func newEntry(value []byte, ttl time.Duration) *entry {
	e := &entry{value: value, ttl: ttl}
	if ttl > 0 {
		var id [8]byte
		_, _ = rand.Read(id[:]) // never fails
		e.lease = hex.EncodeToString(id[:])
	}
	return e
}

// change makes a change and waits until it lasts. When ctx ends first it may
// still be made.
func (t *table) change(ctx context.Context, c *change) outcome {
	c.done = make(chan outcome, 1)
	select {
	case t.queue <- c:
	case <-ctx.Done():
		return outcome{err: errs.New(errs.Overloaded, "change", "%d changes wait for the disk, the limit", maxTogether)}
	}
	select {
	case o := <-c.done:
		return o
	case <-ctx.Done():
		return outcome{err: errs.New(errs.Overloaded, "change", "the disk did not answer in time; the change may still be made")}
	}
}

// run makes changes until ctx ends, and those that were queued by then.
func (t *table) run(ctx context.Context) {
	sweep := time.NewTicker(sweepEvery)
	defer sweep.Stop()
	for {
		select {
		case c := <-t.queue:
			t.together(c)
		case <-sweep.C:
			t.sweep()
		case <-ctx.Done():
			for {
				select {
				case c := <-t.queue:
					t.together(c)
				default:
					return
				}
			}
		}
	}
}

// sweep removes what has ended.
func (t *table) sweep() {
	t.mu.RLock()
	var over []*change
	for key, e := range t.mu.leased {
		if t.ended(e) {
			over = append(over, &change{key: key, only: e})
		}
	}
	t.mu.RUnlock()
	for len(over) > 0 {
		n := min(len(over), maxTogether)
		if t.apply(over[:n]) == nil {
			t.counts.expired.Add(uint64(n))
		}
		over = over[n:]
	}
}

// together makes a change and those that have queued up behind it.
func (t *table) together(first *change) {
	list := []*change{first}
	for len(list) < maxTogether {
		select {
		case c := <-t.queue:
			list = append(list, c)
			continue
		default:
		}
		break
	}
	_ = t.apply(list) // each is told
}

// undo is what a change replaced.
type undo struct {
	key string
	was *entry
}

// apply makes changes in order, has them written, and answers.
func (t *table) apply(list []*change) error {
	outcomes := make([]outcome, len(list))
	made := make([]*change, 0, len(list))
	undos := make([]undo, 0, len(list))
	t.mu.Lock()
	for i, c := range list {
		was := t.mu.keys[c.key]
		if c.only != nil && (was != c.only || !t.ended(was)) {
			continue // renewed or replaced meanwhile
		}
		if was != nil && c.only == nil && t.ended(was) {
			was = nil // to be seen, but not yet removed
		}
		o := t.judge(c, was)
		if outcomes[i] = o; o.err == nil && !o.same && (c.entry != nil || t.mu.keys[c.key] != nil) {
			undos = append(undos, undo{c.key, t.mu.keys[c.key]})
			made = append(made, c)
			t.set(c.key, c.entry)
		}
	}
	t.mu.Unlock()
	err := t.write(made)
	if err != nil {
		t.mu.Lock()
		for i := len(undos) - 1; i >= 0; i-- {
			t.set(undos[i].key, undos[i].was)
		}
		t.mu.Unlock()
	}
	for i, c := range list {
		if c.done == nil {
			continue
		}
		if outcomes[i].err == nil && !outcomes[i].same {
			outcomes[i].err = err
		}
		c.done <- outcomes[i]
	}
	return err
}

// write has the journal write, and keeps why it could not.
func (t *table) write(made []*change) error {
	if len(made) == 0 {
		return nil
	}
	start := time.Now()
	err := t.journal.write(made)
	t.counts.commits.Add(1)
	t.counts.commitNanos.Add(uint64(time.Since(start)))
	if err == nil {
		t.broken.Store(nil)
		return nil
	}
	err = &errs.Error{Op: "write the database", Reason: errs.Internal, Detail: "nothing was changed; see that the disk has room and is writable", Err: err}
	t.broken.Store(&err)
	return err
}

// judge decides on a change of a key that has the entry was, nil if none. The
// lock is held.
func (t *table) judge(c *change, was *entry) outcome {
	o := outcome{was: was != nil}
	if c.entry == nil {
		return o
	}
	if t.strict && was != nil && strings.Contains(c.key, "rpc_meta") {
		if string(was.value) != string(c.entry.value) {
			o.err = errs.New(errs.Busy, "put", "Duplicate rpc_meta key not allowed")
		}
		o.same = o.err == nil && was.ttl == 0 && c.entry.ttl == 0
		return o
	}
	keys, bytes := len(t.mu.keys), t.mu.bytes+weight(c.key, c.entry)
	if e := t.mu.keys[c.key]; e != nil {
		keys, bytes = keys-1, bytes-weight(c.key, e)
	}
	if keys >= t.limits.MaxKeys {
		o.err = errs.New(errs.Overloaded, "put", "%d keys, the limit; raise --max-keys", t.limits.MaxKeys)
	} else if bytes > t.limits.MaxBytes {
		o.err = errs.New(errs.Overloaded, "put", "all values together would have %d bytes, at most %d; raise --max-bytes", bytes, t.limits.MaxBytes)
	}
	return o
}

// weight is what an entry counts for in bytes.
func weight(key string, e *entry) int64 { return int64(len(key)) + int64(len(e.value)) }

// set puts an entry under a key, or removes it. The lock is held.
func (t *table) set(key string, e *entry) {
	if was := t.mu.keys[key]; was != nil {
		t.mu.bytes -= weight(key, was)
		delete(t.mu.leased, key)
	}
	if e == nil {
		delete(t.mu.keys, key)
		return
	}
	if e.ttl > 0 {
		if e.ends.Load() == 0 {
			t.renewed(e)
		}
		t.mu.leased[key] = e
	}
	t.mu.keys[key] = e
	t.mu.bytes += weight(key, e)
}

// size returns how many keys there are, how many of them end, and the bytes of all.
func (t *table) size() (keys, leased int, bytes int64) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return len(t.mu.keys), len(t.mu.leased), t.mu.bytes
}
