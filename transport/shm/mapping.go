package shm

import (
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/mem"
	"github.com/tideway-io/tideway/internal/sys"
	"github.com/tideway-io/tideway/transport"
)

// mapping is a peer's allocation in this process. It is mapped when the first
// slice needs it, and unmapped when the peer says that nothing in it is
// registered any more, or the endpoint closes.
type mapping struct {
	e  *endpoint
	id uint64
	// state is one of those below; it only grows, but that open follows fresh.
	state atomic.Uint32
	// users counts who copies at the moment; the bit says that no more may.
	users    atomic.Int64
	mem      []byte // these three are set before state is open
	writable bool
	unmap    func() error

	waiting []*job // guarded by endpoint.mu
}

// States of a mapping.
const (
	fresh   uint32 = iota // nobody has asked for it
	fetches               // the owner was asked
	open                  // it is mapped
	useless               // it cannot be mapped: attach may do
	over                  // it is unmapped, or soon will be
)

const noMore = 1 << 62

// use counts a user in; false: it is not mapped.
func (m *mapping) use() bool {
	if m.state.Load() != open {
		return false
	}
	if m.users.Add(1)&noMore == 0 {
		return true
	}
	m.drop()
	return false
}

// drop counts a user out. The last one after close unmaps; who came too late to
// be a user may find the same, so only one of them does.
func (m *mapping) drop() {
	if m.users.Add(-1) == noMore {
		m.release()
	}
}

// close unmaps as soon as nobody copies. It is called once.
func (m *mapping) close() {
	if m.users.Add(noMore) == noMore {
		m.release()
	}
}

// release unmaps, once, and tells the owner that nothing is stored any more.
func (m *mapping) release() {
	switch m.state.Swap(over) {
	case over:
		return
	case open:
		_ = m.unmap() // cannot fail on what was mapped
	}
	m.e.settled(m.id)
}

func (e *endpoint) settled(id uint64) {
	e.link.send((&message{head: head{kind: kindSettled}, id: id}).append(nil), -1)
}

// forget takes a job off those that wait.
func (m *mapping) forget(j *job) {
	if i := slices.Index(m.waiting, j); i >= 0 {
		m.waiting = slices.Delete(m.waiting, i, i+1)
	}
}

// mapping returns the one of an allocation, new if need be; the lock is held.
func (e *endpoint) mapping(id uint64) *mapping {
	m := e.mu.mappings[id]
	if m == nil {
		m = &mapping{e: e, id: id}
		e.mu.mappings[id] = m
	}
	return m
}

// open makes a job wait for its memory, and asks for that once; false: there is
// nothing to wait for. The lock is held.
func (e *endpoint) open(j *job) bool {
	m := j.b.from
	if m.state.CompareAndSwap(fresh, fetches) {
		e.link.send((&message{head: head{kind: kindFetch}, id: j.b.allocation}).append(nil), -1)
	}
	if m.state.Load() != fetches {
		return false
	}
	m.waiting = append(m.waiting, j)
	return true
}

// fetched takes the answer to a fetch, and gives the jobs that waited for it to
// the workers. The descriptor stays the caller's.
func (e *endpoint) fetched(x *endings, p *message, fd int) {
	for _, j := range e.arrived(x, p, fd) {
		if !j.schedule() {
			j.code.Store(uint32(errs.Overloaded))
			j.finish()
		}
	}
}

func (e *endpoint) arrived(x *endings, p *message, fd int) (ready []*job) {
	e.mu.Lock()
	defer e.mu.Unlock()
	m := e.mu.mappings[p.id]
	if m == nil || m.state.Load() != fetches {
		return nil // nobody waits for it any more
	}
	code := p.code
	if code == errs.OK {
		if err := m.adopt(fd, p); err != nil {
			e.t.log.Warn("memory that a same-host peer lent cannot be mapped", "pid", e.pid, "err", err)
			code = errs.Unsupported
		}
	}
	switch code {
	case errs.OK:
		m.state.Store(open)
	case errs.Revoked:
		m.state.Store(over)
		delete(e.mu.mappings, p.id)
	default: // attach may do, for the next slice
		m.state.Store(useless)
	}
	if code == errs.OK {
		ready, m.waiting = m.waiting, nil
		for _, j := range ready {
			e.enterPhase(j, running)
		}
	}
	for len(m.waiting) > 0 {
		e.end(x, m.waiting[0], transport.Completion{Code: code})
	}
	return ready
}

// adopt maps an allocation that a peer lends.
func (m *mapping) adopt(fd int, p *message) (err error) {
	if p.size == 0 || p.size > mem.MaxAlloc {
		return fmt.Errorf("an allocation of %d bytes", p.size)
	}
	seals := pageSeals
	if !p.writable {
		seals |= sys.SealFuture
	}
	if err := sized(fd, int64(p.size), seals); err != nil {
		return err
	}
	m.writable = p.writable
	m.mem, m.unmap, err = mem.Map(fd, int(p.size), p.writable)
	return err
}

// revoked takes the peer's word that an allocation has no registration any more.
func (e *endpoint) revoked(x *endings, id uint64) {
	e.mu.Lock()
	m := e.mu.mappings[id]
	delete(e.mu.mappings, id)
	if m != nil {
		for len(m.waiting) > 0 {
			e.end(x, m.waiting[0], transport.Completion{Code: errs.Revoked})
		}
	}
	e.mu.Unlock()
	if m == nil {
		e.settled(id) // it never was here, or is given back already
		return
	}
	m.close()
}

// copy moves a range between local and the buffer's mapped memory, which the
// caller uses.
func (b *binding) copy(op transport.Op, local []byte, offset uint64) errs.Code {
	m := b.from
	at, n := b.offset+offset, uint64(len(local))
	if size := uint64(len(m.mem)); at < offset || at > size || n > size-at || op == transport.Write && !m.writable {
		return errs.Unsupported // what the owner lent is not what its table says
	}
	if !b.valid() {
		return errs.Revoked
	}
	if op == transport.Read {
		m.e.t.mover.Move(local, m.mem[at:at+n])
	} else {
		m.e.t.mover.Move(m.mem[at:at+n], local)
	}
	if !b.valid() {
		return errs.Revoked
	}
	return errs.OK
}
