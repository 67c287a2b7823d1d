//go:build linux && cgo

package main

// #include <stdlib.h>
// #include "table.h"
import "C"

import (
	"math/bits"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/tideway-io/tideway/errs"
)

// table keeps the batches, and their tasks' states where C polls them. See
// table.h for the rules.
type table struct {
	mu   sync.Mutex
	used []*batch // by slot; nil while it is free
	free []uint32 // slots that were used before
	life uint64   // ids given out, above the slot's number
}

// Bounds of the table.
const (
	maxBatches = 1 << C.TW_SLOT_BITS
	maxTasks   = 1 << 20 // of one batch
)

// add gives b a slot and an id.
func (t *table) add(b *batch) error {
	if b.capacity > maxTasks {
		return errs.New(errs.Invalid, "allocate batch", "%d requests, limit %d; use several batches", b.capacity, maxTasks)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	number, err := t.slot()
	if err != nil {
		return err
	}
	t.life++
	t.used[number] = b
	b.id = t.life<<C.TW_SLOT_BITS | uint64(number)
	b.slot = &slots(number)[number%C.TW_CHUNK]
	row := t.row(b.capacity)
	b.tasks = unsafe.Slice(row, b.capacity) // row has room for at least so many
	b.slot.engine, b.slot.count, b.slot.ended, b.slot.failed, b.slot.asleep = C.uint64_t(b.e.handle), 0, 0, 0, 0
	publish(&b.slot.tasks, row)
	store(&b.slot.id, b.id)
	return nil
}

// slot returns the number of a free slot. The lock is held.
func (t *table) slot() (uint32, error) {
	if n := len(t.free); n > 0 {
		number := t.free[n-1]
		t.free = t.free[:n-1]
		return number, nil
	}
	number := uint32(len(t.used))
	if number == maxBatches {
		return 0, errs.New(errs.Overloaded, "allocate batch", "%d batches are allocated, the limit; free some", number)
	}
	if number%C.TW_CHUNK == 0 {
		// Of TW_CHUNK slots, zero as C finds free ones; never freed.
		chunk := (*C.tw_slot)(C.calloc(C.TW_CHUNK, C.sizeof_tw_slot))
		publish(&C.tw_chunks[number/C.TW_CHUNK], chunk)
	}
	t.used = append(t.used, nil)
	return number, nil
}

// slots returns the chunk that a slot is in.
func slots(number uint32) *[C.TW_CHUNK]C.tw_slot {
	// Chunks have exactly this length and are never freed.
	return (*[C.TW_CHUNK]C.tw_slot)(unsafe.Pointer(C.tw_chunks[number/C.TW_CHUNK]))
}

// row returns memory for n tasks, used before or new. The lock is held.
func (t *table) row(n int) *C.tw_task {
	class := classOf(n)
	row := C.tw_rows[class]
	if row == nil {
		return (*C.tw_task)(C.calloc(1<<class, C.sizeof_tw_task))
	}
	C.tw_rows[class] = *next(row)
	return row
}

// next is where a row that is free names the next one of its size. The list is
// C's as its memory is, so that a leak checker sees that nothing is lost.
func next(row *C.tw_task) **C.tw_task { return (**C.tw_task)(unsafe.Pointer(&row.bytes)) }

// classOf returns the power of two that n tasks take.
func classOf(n int) int { return bits.Len(uint(max(n, 1) - 1)) }

// find returns the batch of an id that belongs to the engine.
func (t *table) find(e *engine, id uint64) (*batch, error) {
	if b := t.any(id); b != nil && b.e == e {
		return b, nil
	}
	return nil, errs.New(errs.Invalid, "use batch", "%#x is no batch of this engine; allocateBatchID makes one, freeBatchID ends it", id)
}

// any returns the batch of an id, nil if there is none.
func (t *table) any(id uint64) *batch {
	number := id & (maxBatches - 1)
	t.mu.Lock()
	defer t.mu.Unlock()
	if number < uint64(len(t.used)) {
		if b := t.used[number]; b != nil && b.id == id {
			return b
		}
	}
	return nil
}

// remove frees the slot of b, once.
func (t *table) remove(b *batch) {
	t.mu.Lock()
	defer t.mu.Unlock()
	number := uint32(b.id & (maxBatches - 1))
	if t.used[number] != b {
		return
	}
	store(&b.slot.id, 0)
	t.used[number] = nil
	t.free = append(t.free, number)
	class, row := classOf(b.capacity), (*C.tw_task)(b.slot.tasks)
	// The address of C's memory, in the first word of a row that nobody owns.
	store(&row.bytes, uint64(uintptr(unsafe.Pointer(C.tw_rows[class]))))
	C.tw_rows[class] = row
}

// of returns the batches of an engine.
func (t *table) of(e *engine) []*batch {
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []*batch
	for _, b := range t.used {
		if b != nil && b.e == e {
			all = append(all, b)
		}
	}
	return all
}

// store publishes a number of the table to C, which loads it atomically: both
// sides use the processor's sequentially consistent instructions on one word.
func store(at *C.uint64_t, v uint64) {
	// The same eight aligned bytes, by the name of their type in Go.
	atomic.StoreUint64((*uint64)(unsafe.Pointer(at)), v)
}

// store32 is store for a task's state.
func store32(at *C.uint32_t, v uint32) {
	// The same four aligned bytes, by the name of their type in Go.
	atomic.StoreUint32((*uint32)(unsafe.Pointer(at)), v)
}

// load32 reads a task's state back.
func load32(at *C.uint32_t) uint32 {
	// The same four aligned bytes, by the name of their type in Go.
	return atomic.LoadUint32((*uint32)(unsafe.Pointer(at)))
}

// publish is store for a pointer to memory of C's.
func publish[T any](at **T, v *T) {
	// A pointer is one aligned word, whatever it points to.
	atomic.StorePointer((*unsafe.Pointer)(unsafe.Pointer(at)), unsafe.Pointer(v))
}
