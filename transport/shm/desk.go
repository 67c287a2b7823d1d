package shm

import (
	"sync/atomic"

	"github.com/tideway-io/tideway/internal/mem"
	"github.com/tideway-io/tideway/internal/sys"
)

// A desk is a memfd that the initiator of a link makes and both sides map: one
// word for each of its slices that the target is asked to pull, seq<<32 | state,
// and one that the target counts its steps in. The sequence number grows with
// each use of a slot, so that a word that was meant for an earlier slice is
// never taken for a later one.
//
// The initiator posts. The target claims a slice for the time of one read out of
// the initiator's memory, and puts it back when that was not all. So a slice
// that is not claimed can be taken back at once, whatever the target is doing;
// one that is claimed is marked aborted, which the target sees when its read
// has returned, and says so. An initiator that waits no longer for that frees the
// slot; who finds it so after a read clears what was read.
const (
	deskSlots  = 1024
	deskSize   = (deskSlots + 8) * 8 // in whole cache lines
	progressAt = deskSlots * 8
)

// States of a slot.
const (
	slotFree uint64 = iota
	slotPosted
	slotClaimed
	slotAborted
	slotDone
)

// newDesk makes a desk and returns its descriptor too.
func newDesk() (d desk, fd int, err error) {
	fd, err = sys.NewMemfd("tideway-desk", deskSize, pageSeals|sys.SealSeals)
	if err != nil {
		return d, -1, err
	}
	if d, err = mapDesk(fd); err != nil {
		_ = sys.Close(fd)
	}
	return d, fd, err
}

// openDesk maps a peer's.
func openDesk(fd int) (desk, error) {
	if err := sized(fd, deskSize, pageSeals); err != nil {
		return desk{}, err
	}
	return mapDesk(fd)
}

func mapDesk(fd int) (d desk, err error) {
	d.mem, d.unmap, err = mem.Map(fd, deskSize, true)
	return d, err
}

type desk struct {
	mem   []byte
	unmap func() error
}

func (d *desk) close() {
	if d.unmap != nil {
		_ = d.unmap() // cannot fail on what was mapped
	}
}

func (d *desk) slot(i uint32) *atomic.Uint64 { return mem.Word(d.mem, int(i)*8) }
func (d *desk) progress() *atomic.Uint64     { return mem.Word(d.mem, progressAt) }

// change sets the state of slot i from one to another, if it is in use for seq.
func (d *desk) change(i, seq uint32, from, to uint64) bool {
	use := uint64(seq) << 32
	return d.slot(i).CompareAndSwap(use|from, use|to)
}

// state returns the state of slot i, slotFree if it is not in use for seq.
func (d *desk) state(i, seq uint32) uint64 {
	w := d.slot(i).Load()
	if uint32(w>>32) != seq {
		return slotFree
	}
	return w & (1<<32 - 1)
}
