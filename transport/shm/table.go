package shm

import (
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/mem"
	"github.com/tideway-io/tideway/internal/sys"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
)

// The table is a memfd of one cache line for each registration, behind one line
// for all. Its owner writes, peers map it read-only. The first word of a line is
// its state: key<<32 | access<<1 | 1 while the registration lives, key<<32
// after. A key is never used twice, so that who finds the same living word
// before and after a copy knows that the registration lived all the while, and
// that the rest of the line did not change.
const (
	lineSize   = 64
	tableSlots = 1 << 20 // as many as an engine registers unless told otherwise
	tableSize  = (tableSlots + 1) * lineSize
	tableMagic = 0x31_6d68_7377_6474 // "tdwshm1" from the low byte up

	// Words of the first line.
	magicAt, incarnationAt, stateAt = 0, 8, 16
	// Words of a registration's line.
	wordAt, addrAt, lengthAt, allocationAt, offsetAt = 0, 8, 16, 24, 32
)

// States of the table's owner.
const (
	stateOpen uint64 = iota
	stateDraining
	stateClosed
)

// pageSeals are what memory that peers map is sealed with: its size stays.
const pageSeals = sys.SealShrink | sys.SealGrow

// entry is one registration as peers see it.
type entry struct {
	key          segment.Key
	access       segment.Access
	addr, length uint64
	allocation   uint64 // the memfd that peers may map, 0: none
	offset       uint64 // of the first byte in it
}

// word is the first word of a living registration's line.
func (e *entry) word() uint64 { return uint64(e.key)<<32 | uint64(e.access)<<1 | 1 }

// table is the owner's side. What is not used takes no memory.
type table struct {
	fd    int
	mem   []byte
	unmap func() error
	mu    struct {
		sync.Mutex
		closed bool
		next   uint32 // slots that were ever used
		free   []uint32
		slots  map[segment.Key]uint32
	}
}

func newTable(self segment.Incarnation) (*table, error) {
	fd, err := sys.NewMemfd("tideway-table", tableSize, pageSeals)
	if err != nil {
		return nil, err
	}
	t := &table{fd: fd}
	t.mu.slots = map[segment.Key]uint32{}
	if t.mem, t.unmap, err = mem.Map(fd, tableSize, true); err == nil {
		// From here on nobody else can map it to write.
		if err = sys.Seal(fd, sys.SealFuture|sys.SealSeals); err != nil {
			_ = t.unmap() // the seal is what failed
		}
	}
	if err != nil {
		_ = sys.Close(fd)
		return nil, err
	}
	mem.Word(t.mem, incarnationAt).Store(uint64(self))
	mem.Word(t.mem, magicAt).Store(tableMagic)
	return t, nil
}

func (t *table) setState(s uint64) { mem.Word(t.mem, stateAt).Store(s) }

// add enters a registration and returns its slot; false: there is no room.
func (t *table) add(e entry) (slot uint32, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch n := len(t.mu.free); {
	case t.mu.closed:
		return 0, false
	case n > 0:
		slot, t.mu.free = t.mu.free[n-1], t.mu.free[:n-1]
	case t.mu.next == tableSlots:
		return 0, false
	default:
		slot = t.mu.next
		t.mu.next++
	}
	t.mu.slots[e.key] = slot
	line := t.mem[(int(slot)+1)*lineSize:]
	mem.Word(line, addrAt).Store(e.addr)
	mem.Word(line, lengthAt).Store(e.length)
	mem.Word(line, allocationAt).Store(e.allocation)
	mem.Word(line, offsetAt).Store(e.offset)
	mem.Word(line, wordAt).Store(e.word()) // last: it makes the others valid
	return slot, true
}

// drop marks a registration dead. Its key stays readable until the slot is used
// again.
func (t *table) drop(key segment.Key) {
	t.mu.Lock()
	defer t.mu.Unlock()
	slot, ok := t.mu.slots[key]
	if !ok || t.mu.closed {
		return
	}
	delete(t.mu.slots, key)
	mem.Word(t.mem, (int(slot)+1)*lineSize+wordAt).Store(uint64(key) << 32)
	t.mu.free = append(t.mu.free, slot)
}

// close unmaps the owner's side; peers keep theirs.
func (t *table) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.closed = true
	_, _ = t.unmap(), sys.Close(t.fd) // neither can fail on what was made here
}

// appendSlot encodes a slot as a buffer's attrs.
func appendSlot(b []byte, slot uint32) []byte { return binary.LittleEndian.AppendUint32(b, slot) }

// slotOf is the inverse of appendSlot.
func slotOf(attrs []byte) (slot uint32, ok bool) {
	if len(attrs) != 4 {
		return 0, false
	}
	slot = binary.LittleEndian.Uint32(attrs)
	return slot, slot < tableSlots
}

// view is a peer's table.
type view struct {
	mem   []byte
	unmap func() error
}

// openView maps the table of peer from a descriptor that came from there. The
// descriptor stays the caller's.
func openView(fd int, peer segment.Incarnation) (*view, error) {
	if err := sized(fd, tableSize, pageSeals); err != nil {
		return nil, err
	}
	m, unmap, err := mem.Map(fd, tableSize, false)
	if err != nil {
		return nil, err
	}
	v := &view{m, unmap}
	if mem.Word(m, magicAt).Load() != tableMagic || mem.Word(m, incarnationAt).Load() != uint64(peer) {
		_ = unmap() // cannot fail
		return nil, fmt.Errorf("it is not the table of %v", peer)
	}
	return v, nil
}

// sized checks a descriptor from a peer: a memfd of exactly size bytes that has
// the seals.
func sized(fd int, size int64, seals int) error {
	n, has, err := sys.Memfd(fd)
	switch {
	case err != nil:
		return fmt.Errorf("it is no memfd: %w", err)
	case n != size:
		return fmt.Errorf("it has %d bytes, want %d", n, size)
	case has&seals != seals:
		return fmt.Errorf("it has the seals %#x, want at least %#x", has, seals)
	}
	return nil
}

func (v *view) state() uint64 { return mem.Word(v.mem, stateAt).Load() }

// find looks for the registration of key in slot. Revoked means that it was
// there, NotRegistered that the owner must be asked.
func (v *view) find(slot uint32, key segment.Key) (*binding, errs.Code) {
	line := v.mem[(int(slot)+1)*lineSize:]
	b := &binding{word: mem.Word(line, wordAt)}
	b.live = b.word.Load()
	switch {
	case segment.Key(b.live>>32) != key:
		return nil, errs.NotRegistered
	case b.live&1 == 0:
		return nil, errs.Revoked
	}
	b.entry = entry{
		key: key, access: segment.Access(b.live>>1) & segment.ReadWrite,
		addr: mem.Word(line, addrAt).Load(), length: mem.Word(line, lengthAt).Load(),
		allocation: mem.Word(line, allocationAt).Load(), offset: mem.Word(line, offsetAt).Load(),
	}
	if !b.valid() {
		return nil, errs.NotRegistered
	}
	return b, errs.OK
}

// binding is a peer's registration as an endpoint uses it: what stood in its
// line, and the word that says for how long that holds.
type binding struct {
	entry
	word *atomic.Uint64
	live uint64
	from *mapping // nil: it cannot be mapped
}

// valid reports whether the registration still lives.
func (b *binding) valid() bool { return b.word.Load() == b.live }

// check says whether op may be done with a range.
func (b *binding) check(op transport.Op, offset, n uint64) errs.Code {
	need := segment.RemoteRead
	if op == transport.Write {
		need = segment.RemoteWrite
	}
	switch {
	case !b.valid():
		return errs.Revoked
	case b.access&need == 0:
		return errs.Denied
	case offset > b.length || n > b.length-offset:
		return errs.OutOfRange
	}
	return errs.OK
}
