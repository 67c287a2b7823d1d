package shm

import (
	"cmp"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/mem"
	"github.com/tideway-io/tideway/internal/sys"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/topology"
)

// allocation is memory of this engine that peers may map: one memfd.
type allocation struct {
	id  uint64
	fd  int
	mem []byte // whole pages

	// Guarded by allocations.mu:
	access segment.Access // what it is sealed for, LocalOnly: nothing yet
	live   bool           // a registration of it is in the table
	spent  bool           // a peer may still store into it, so it is lent no more
}

func (a *allocation) addr() uint64 { return uint64(mem.Addr(a.mem)) }

// allocations are the memory that Alloc made and the registrations that peers
// know.
type allocations struct {
	ids  atomic.Uint64
	most int       // allocations, each of which keeps a descriptor
	full sync.Once // it was said that there are so many
	mu   struct {
		sync.Mutex
		held   int // allocations, those that are being made included
		byAddr []*allocation
		byID   map[uint64]*allocation
		within map[segment.Key]*allocation // of registrations that peers may map
	}
}

// half is the part of limit, a limit of descriptors, that allocations may take:
// the rest is for connections and for the application.
func half(limit uint64) int { return int(min(limit/2, maxAllocations)) }

// maxAllocations bounds the allocations of an engine, however many descriptors it
// may have.
const maxAllocations = 1 << 16

func (o *allocations) init() {
	o.most = half(sys.MostFiles())
	o.mu.byID, o.mu.within = map[uint64]*allocation{}, map[segment.Key]*allocation{}
}

// Alloc implements transport.Allocator: n zero bytes, aligned to a page, in a
// memfd of their own that peers can map once all or a part of them is
// registered. One registration at a time is mapped, and the first one decides
// for what: if it is for reading only the memfd is sealed against all future
// writable mappings. Others of the same memory are reached by attach.
//
// What was registered for writing is to be freed after Unregister: a peer that
// is stopped half-way through a copy may still store into it when it wakes. free
// gives back this process's mapping and descriptor; the pages live until no peer
// maps them.
//
// It fails with errs.Invalid for a length of 0 or beyond mem.MaxAlloc, with
// errs.Unsupported for a location that is no host memory, with errs.Overloaded
// where there is no room, or half of the descriptors that the process may have are
// taken by allocations; the first time that is logged.
func (t *Transport) Alloc(n uint64, at topology.Location) (b []byte, free func() error, err error) {
	if n == 0 || n > mem.MaxAlloc {
		return nil, nil, refuse(errs.Invalid, "allocate", "length %d: want 1 to %d bytes", n, uint64(mem.MaxAlloc))
	}
	if kind := at.Kind(); at != "" && at != topology.Any && kind != "cpu" {
		return nil, nil, refuse(errs.Unsupported, "allocate", "location %q: only host memory can be shared", at)
	}
	if !t.own.reserve() {
		t.own.full.Do(func() {
			t.log.Warn("memory is allocated that same-host peers cannot map", "allocations", t.own.most, "reason", "each keeps a descriptor, and half of the limit is taken", "fix", fewer)
		})
		return nil, nil, refuse(errs.Overloaded, "allocate", "%d allocations keep a descriptor each, the limit: %s", t.own.most, fewer)
	}
	page := uint64(os.Getpagesize())
	size := int((n + page - 1) &^ (page - 1))
	a, unmap, err := newAllocation(size)
	if err != nil {
		t.own.unreserve()
		e := refuse(errs.Overloaded, "allocate", "%d bytes of memory that peers can map: lower the length, or raise the limit of descriptors (ulimit -n), file size (ulimit -f) or memory (cgroup)", n)
		e.Err = err
		return nil, nil, e
	}
	a.id = t.own.ids.Add(1)
	t.own.put(a)
	free = sync.OnceValue(func() error {
		t.own.remove(a)
		defer t.own.unreserve()
		return cmp.Or(unmap(), sys.Close(a.fd))
	})
	return a.mem[:n:n], free, nil
}

// fewer is what to do about too many allocations.
const fewer = "allocate larger pieces and register parts of them, or raise the limit of descriptors (ulimit -n)"

// reserve counts an allocation in, if there is room.
func (o *allocations) reserve() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.mu.held >= o.most {
		return false
	}
	o.mu.held++
	return true
}

// unreserve counts one out.
func (o *allocations) unreserve() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.mu.held--
}

func newAllocation(size int) (a *allocation, unmap func() error, err error) {
	a = &allocation{}
	if a.fd, err = sys.NewMemfd("tideway-buffer", int64(size), pageSeals); err != nil {
		return nil, nil, err
	}
	if a.mem, unmap, err = mem.Map(a.fd, size, true); err != nil {
		_ = sys.Close(a.fd) // the lack of memory is what the caller must hear of
		return nil, nil, err
	}
	return a, unmap, nil
}

// at returns the index of the first allocation above addr.
func (o *allocations) above(addr uint64) int {
	i, _ := slices.BinarySearchFunc(o.mu.byAddr, addr, func(a *allocation, addr uint64) int {
		if a.addr() <= addr {
			return -1
		}
		return 1
	})
	return i
}

func (o *allocations) put(a *allocation) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.mu.byAddr = slices.Insert(o.mu.byAddr, o.above(a.addr()), a)
	o.mu.byID[a.id] = a
}

// remove forgets an allocation, before its memory is unmapped.
func (o *allocations) remove(a *allocation) {
	o.mu.Lock()
	defer o.mu.Unlock()
	i := o.above(a.addr()) - 1
	o.mu.byAddr = slices.Delete(o.mu.byAddr, i, i+1)
	delete(o.mu.byID, a.id)
}

// holding returns the allocation that holds all of [addr, addr+n), or nil.
func (o *allocations) holding(addr, n uint64) *allocation {
	i := o.above(addr) - 1
	if i < 0 {
		return nil
	}
	a := o.mu.byAddr[i]
	if off, size := addr-a.addr(), uint64(len(a.mem)); off > size || n > size-off {
		return nil
	}
	return a
}

// reachable reports whether b is host memory.
func reachable(b *segment.Buffer) bool {
	kind := b.Location.Kind()
	return b.Addr != 0 && (b.Location == "" || b.Location == topology.Any || kind == "cpu")
}

// enter makes the entry of a buffer that peers may use, and lends its memory if
// that can be lent.
func (o *allocations) enter(b *segment.Buffer) entry {
	e := entry{key: b.Key, access: b.Access, addr: b.Addr, length: b.Length}
	o.mu.Lock()
	defer o.mu.Unlock()
	a := o.holding(b.Addr, b.Length)
	if a == nil || a.live || a.spent || !a.sealFor(b.Access) {
		return e
	}
	a.live = true
	o.mu.within[b.Key] = a
	e.allocation, e.offset = a.id, b.Addr-a.addr()
	return e
}

// sealFor makes sure, once and for ever, that peers can do with the pages what
// access allows and no more than that; false: they are lent for something else.
func (a *allocation) sealFor(access segment.Access) bool {
	if a.access != segment.LocalOnly {
		return (a.access == segment.RemoteRead) == (access == segment.RemoteRead)
	}
	seals := sys.SealSeals // so that no peer seals it for the others
	if access == segment.RemoteRead {
		seals |= sys.SealFuture
	}
	if sys.Seal(a.fd, seals) != nil { // a kernel that does not know the seal
		return false
	}
	a.access = access
	return true
}

// leave undoes enter and returns the allocation that peers are to give back, 0 if
// there is none, and whether they may write there.
func (o *allocations) leave(key segment.Key) (id uint64, writable bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	a := o.mu.within[key]
	if a == nil {
		return 0, false
	}
	delete(o.mu.within, key)
	a.live = false
	return a.id, a.access != segment.RemoteRead
}

// stray notes that a peer has not given an allocation back and may store into it
// at any time.
func (o *allocations) stray(id uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if a := o.mu.byID[id]; a != nil && a.access != segment.RemoteRead {
		a.spent = true
	}
}

// lend returns a descriptor of its own for a peer to map, and what is behind it.
func (o *allocations) lend(id uint64) (fd int, size uint64, writable bool, code errs.Code) {
	o.mu.Lock()
	defer o.mu.Unlock()
	a := o.mu.byID[id]
	if a == nil || !a.live {
		return -1, 0, false, errs.Revoked
	}
	fd, err := sys.Dup(a.fd)
	if err != nil {
		return -1, 0, false, errs.Overloaded
	}
	return fd, uint64(len(a.mem)), a.access != segment.RemoteRead, errs.OK
}
