package control

import (
	"container/list"
	"sync"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/segment"
)

// windowSize is how far ids of one sender may lie apart and still be told from
// those that were delivered. A sender keeps its outstanding ids within half.
const windowSize = 1024

// maxWindows bounds the senders that are remembered. Those that are connected
// always are; of the others the one that was connected least recently goes.
const maxWindows = 8192

// seen remembers which notifications of which sender were delivered, across
// connections, so that one sent again is not delivered again.
type seen struct {
	mu      sync.Mutex
	windows map[segment.Incarnation]*window
	left    list.List // windows that no connection holds, the one left longest ago first
}

// window is what is remembered of one sender: bit i%windowSize is set if id i,
// within windowSize below last, was delivered.
type window struct {
	from    segment.Incarnation
	holders int           // connections; guarded by seen.mu
	left    *list.Element // in seen.left while there is none; guarded by seen.mu

	mu   sync.Mutex // held while a notification is delivered
	last uint64
	bits [windowSize / 64]uint64
}

func (s *seen) init() { s.windows = make(map[segment.Incarnation]*window) }

// hold returns the sender's window for a connection; release gives it back.
func (s *seen) hold(from segment.Incarnation) *window {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.windows[from]
	switch {
	case w == nil:
		if oldest := s.left.Front(); oldest != nil && len(s.windows) >= maxWindows {
			delete(s.windows, s.left.Remove(oldest).(*window).from)
		}
		w = &window{from: from}
		s.windows[from] = w
	case w.left != nil:
		s.left.Remove(w.left)
		w.left = nil
	}
	w.holders++
	return w
}

func (s *seen) release(w *window) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.holders--; w.holders == 0 {
		w.left = s.left.PushBack(w)
	}
}

// deliver calls take unless id was delivered before. An id that take refuses may
// come again. One below the window is refused: whether it was delivered is not
// known any more, and no correct sender uses it.
func (w *window) deliver(id uint64, take func() errs.Code) errs.Code {
	w.mu.Lock()
	defer w.mu.Unlock()
	if id == 0 || id < w.last && w.last-id >= windowSize {
		return errs.Invalid
	}
	word, bit := &w.bits[id%windowSize/64], uint64(1)<<(id%64)
	if id <= w.last && *word&bit != 0 {
		return errs.OK
	}
	code := take()
	if code != errs.OK {
		return code
	}
	w.advance(id)
	*word |= bit
	return errs.OK
}

// advance makes id the last one if it is above it, and clears what the window
// leaves behind.
func (w *window) advance(id uint64) {
	if id <= w.last {
		return
	}
	if id-w.last >= windowSize {
		clear(w.bits[:])
	} else {
		for i := w.last + 1; i <= id; i++ {
			w.bits[i%windowSize/64] &^= 1 << (i % 64)
		}
	}
	w.last = id
}
