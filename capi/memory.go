//go:build linux && cgo

package main

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tideway-io/tideway"
	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/topology"
)

// memory is what an engine has registered, sorted by address, without overlaps,
// and what it has allocated, by address.
type memory struct {
	sync.RWMutex
	regions   []*region
	allocated map[uint64][]byte
}

// region is one registration; its buffer is nil while it is being made.
type region struct {
	addr   uint64
	length uint64
	buffer *tideway.Buffer
}

// entry is a range to register.
type entry struct {
	addr   uint64
	length uint64
}

// place returns where addr is, or would be, in the order.
func (m *memory) place(addr uint64) (int, bool) {
	return slices.BinarySearchFunc(m.regions, addr, func(r *region, addr uint64) int { return cmp.Compare(r.addr, addr) })
}

// reserve takes a range, which must not overlap what is registered.
func (m *memory) reserve(x entry) (*region, error) {
	if x.addr == 0 || x.length == 0 || x.addr+x.length < x.addr {
		return nil, errs.New(errs.Invalid, "register memory", "address %#x, length %d; both must be above 0 and their sum within 64 bits", x.addr, x.length)
	}
	m.Lock()
	defer m.Unlock()
	if r := m.overlap(x); r != nil {
		return nil, errs.New(errs.Overlap, "register memory", "[%#x, +%d) overlaps [%#x, +%d), which is registered; unregister that first", x.addr, x.length, r.addr, r.length)
	}
	i, _ := m.place(x.addr)
	r := &region{addr: x.addr, length: x.length}
	m.regions = slices.Insert(m.regions, i, r)
	return r, nil
}

// overlap returns a registration that shares bytes with x, nil if there is none.
// The lock is held.
func (m *memory) overlap(x entry) *region {
	i, _ := m.place(x.addr)
	for _, at := range []int{i - 1, i} {
		if at < 0 || at == len(m.regions) {
			continue
		}
		if r := m.regions[at]; r.addr < x.addr+x.length && x.addr < r.addr+r.length {
			return r
		}
	}
	return nil
}

// drop gives a range back.
func (m *memory) drop(r *region) {
	m.Lock()
	defer m.Unlock()
	if i, ok := m.place(r.addr); ok && m.regions[i] == r {
		m.regions = slices.Delete(m.regions, i, i+1)
	}
}

// allocate returns memory that is not registered, whole pages of zeros.
func (m *memory) allocate(size uint64) (unsafe.Pointer, error) {
	if size == 0 || size > 1<<46 {
		return nil, errs.New(errs.Invalid, "allocate memory", "%d bytes, want 1 to %d", size, uint64(1)<<46)
	}
	p, err := unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, &errs.Error{Op: "allocate memory", Reason: errs.Overloaded, Err: err}
	}
	// The first byte of pages that are not Go's, and stay until free.
	at := unsafe.Pointer(unsafe.SliceData(p))
	m.Lock()
	defer m.Unlock()
	if m.allocated == nil {
		m.allocated = map[uint64][]byte{}
	}
	m.allocated[uint64(uintptr(at))] = p
	return at, nil
}

// free gives back what allocate returned, unless a part of it is registered.
func (m *memory) free(addr uint64) error {
	m.Lock()
	defer m.Unlock()
	p, ok := m.allocated[addr]
	if !ok {
		return errs.New(errs.Invalid, "free memory", "%#x was not allocated here", addr)
	}
	if r := m.overlap(entry{addr, uint64(len(p))}); r != nil {
		return errs.New(errs.Busy, "free memory", "[%#x, +%d) in it is registered; unregister that first", r.addr, r.length)
	}
	delete(m.allocated, addr)
	return unix.Munmap(p)
}

// freeAll gives back what is left, when the engine has ended.
func (m *memory) freeAll() {
	m.Lock()
	defer m.Unlock()
	for addr, p := range m.allocated {
		_ = unix.Munmap(p)
		delete(m.allocated, addr)
	}
}

// register makes memory usable, by peers as far as access says.
func (e *engine) register(x entry, location string, access segment.Access) error {
	r, err := e.memory.reserve(x)
	if err != nil {
		return err
	}
	// Programs give all kinds of words; one that is none of ours means "anywhere".
	where, err := topology.ParseLocation(location)
	if err != nil {
		where = topology.Any
	}
	b, err := e.tw.RegisterAddr(uintptr(x.addr), x.length, tideway.BufferOptions{Location: where, Access: access})
	if err != nil {
		e.memory.drop(r)
		return err
	}
	e.memory.Lock()
	r.buffer = b
	e.memory.Unlock()
	return nil
}

// registerAll registers all of the ranges, or none.
func (e *engine) registerAll(list []entry, location string, access segment.Access) error {
	for i, x := range list {
		if err := e.register(x, location, access); err != nil {
			for _, done := range list[:i] {
				if failed := e.unregister(done.addr); failed != nil {
					e.log.Error("a registration could not be taken back", "error", failed)
				}
			}
			return err
		}
	}
	return nil
}

// unregister waits until nobody uses the memory at addr, and lets go of it.
func (e *engine) unregister(addr uint64) error {
	e.memory.RLock()
	i, ok := e.memory.place(addr)
	var r *region
	var b *tideway.Buffer
	if ok {
		r = e.memory.regions[i]
		b = r.buffer
	}
	e.memory.RUnlock()
	if b == nil {
		return errs.New(errs.NotRegistered, "unregister memory", "no registration starts at %#x", addr)
	}
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	if err := b.CloseContext(ctx); err != nil {
		return err
	}
	e.memory.drop(r)
	return nil
}

// local returns the local range of a request: of the registration that has it,
// else the bare memory, which tcp can use as well.
func (e *engine) local(addr, length uint64) (tideway.Range, error) {
	if length == 0 {
		return tideway.Bytes(nil), nil
	}
	if addr == 0 || addr+length < addr || length > 1<<62 {
		return tideway.Range{}, errs.New(errs.Invalid, "submit", "local address %#x, length %d: not memory of this process", addr, length)
	}
	e.memory.RLock()
	defer e.memory.RUnlock()
	i, exact := e.memory.place(addr)
	if !exact {
		i--
	}
	if i >= 0 && i < len(e.memory.regions) {
		r := e.memory.regions[i]
		if r.buffer != nil && addr-r.addr < r.length && length <= r.length-(addr-r.addr) {
			return r.buffer.Range(addr-r.addr, length), nil
		}
	}
	// Memory of the C program, which keeps it until the task has ended.
	return tideway.Bytes(unsafe.Slice((*byte)(pointer(addr)), length)), nil
}

// pointer makes an address of C's memory a pointer. It was a pointer a moment
// ago, in C, and never points into Go's heap.
func pointer(addr uint64) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&addr)) }
