package transporttest

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
)

// registry is the plainest transport.Memory that keeps the promises: one mutex,
// one map, a count of pins for each buffer. It counts what it hands out, so a
// pin that is not given back is found.
type registry struct {
	mu struct {
		sync.Mutex
		entries map[segment.Key]*entry
		next    segment.Key
		pins    int           // outstanding, all buffers together
		served  uint64        // pins granted so far
		moved   chan struct{} // closed and renewed when a pin is given back
	}
}

// entry is one registration. Revoked entries stay, so that a key is known to
// have been used.
type entry struct {
	owner   *registry
	buf     segment.Buffer
	mem     []byte
	file    *os.File
	pins    int
	revoked bool
}

// Unpin gives one pin of e back.
func (e *entry) Unpin() {
	m := &e.owner.mu
	m.Lock()
	defer m.Unlock()
	e.pins--
	m.pins--
	close(m.moved)
	m.moved = make(chan struct{})
}

func newRegistry() *registry {
	r := &registry{}
	r.mu.entries = map[segment.Key]*entry{}
	r.mu.moved = make(chan struct{})
	return r
}

// add registers b, giving it the next key.
func (r *registry) add(b segment.Buffer, mem []byte, file *os.File) *entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.next++
	b.Key = r.mu.next
	e := &entry{owner: r, buf: b, mem: mem, file: file}
	r.mu.entries[b.Key] = e
	return e
}

// revoke refuses new pins of e.
func (r *registry) revoke(e *entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e.revoked = true
}

// quiesce waits until nobody holds e.
func (r *registry) quiesce(ctx context.Context, e *entry) error {
	for {
		r.mu.Lock()
		n, moved := e.pins, r.mu.moved
		r.mu.Unlock()
		if n == 0 {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return fmt.Errorf("%d pins of buffer %d are still held: a pin is for one bounded copy", n, e.buf.Key)
		}
	}
}

// sync orders the caller after every Unpin so far and before every later Pin.
// Checks call it around their own access to target memory, which makes a
// completion that overtakes its Unpin a data race that -race reports.
func (r *registry) sync() {
	r.mu.Lock()
	defer r.mu.Unlock()
}

// Pin resolves a range of the buffer registered under key.
func (r *registry) Pin(op transport.Op, key segment.Key, offset, length uint64) (transport.Pin, errs.Code) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.mu.entries[key]
	if e == nil {
		return transport.Pin{}, errs.NotRegistered
	}
	return r.pin(e, op, offset, length)
}

// PinAddr is Pin for wires that carry absolute addresses.
func (r *registry) PinAddr(op transport.Op, addr, length uint64) (transport.Pin, errs.Code) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.mu.entries {
		if b := &e.buf; !e.revoked && b.Addr != 0 && addr >= b.Addr && addr-b.Addr < b.Length {
			return r.pin(e, op, addr-b.Addr, length)
		}
	}
	return transport.Pin{}, errs.NotRegistered
}

// pin checks and counts; r.mu is held.
func (r *registry) pin(e *entry, op transport.Op, offset, length uint64) (transport.Pin, errs.Code) {
	want := segment.RemoteRead
	if op == transport.Write {
		want = segment.RemoteWrite
	}
	switch {
	case op != transport.Read && op != transport.Write:
		return transport.Pin{}, errs.Invalid
	case e.revoked:
		return transport.Pin{}, errs.Revoked
	case e.buf.Access&want == 0:
		return transport.Pin{}, errs.Denied
	case offset+length < offset:
		return transport.Pin{}, errs.Overflow
	case offset > e.buf.Length || length > e.buf.Length-offset:
		return transport.Pin{}, errs.OutOfRange
	}
	e.pins++
	r.mu.pins++
	r.mu.served++
	p := transport.Pin{Holder: e}
	if e.file != nil {
		p.File, p.Offset = e.file, int64(offset)
	} else {
		p.Bytes = e.mem[offset : offset+length : offset+length]
	}
	return p, errs.OK
}

// held returns how many pins are outstanding.
func (r *registry) held() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.pins
}

// settled reports whether every pin is given back within d.
func (r *registry) settled(d time.Duration) bool {
	return eventually(d, func() bool { return r.held() == 0 })
}
