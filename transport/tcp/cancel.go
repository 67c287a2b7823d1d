package tcp

import (
	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/wire"
	"github.com/tideway-io/tideway/transport"
)

// cancel ends the ops with the given tags at once and returns their
// completions. It takes rx and tx, so no system call is using their memory when
// it changes who may: what is left of a Write is sent as zeros, what still
// comes for a Read is dropped.
func (i *initiator) cancel(tags map[transport.Tag]struct{}) []transport.Completion {
	i.rx.Lock()
	defer i.rx.Unlock()
	i.tx.Lock()
	defer i.tx.Unlock()
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.mu.dead {
		return nil // down has them all
	}
	var done []transport.Completion
	for _, st := range i.mu.streams {
		if st == nil {
			continue
		}
		done = i.withdraw(st, tags, done)
		for n := st.ops.head; n < st.framed; n++ {
			o := st.ops.at(n)
			if _, ok := tags[o.tag]; !ok || o.done {
				continue
			}
			// The target may have been asked for a Write, and may yet do it.
			done = append(done, transport.Completion{Tag: o.tag, Code: errs.Canceled, InDoubt: !st.id.Reads()})
			o.done, o.local = true, nil
			i.mu.live--
			i.tell(st, n)
			if k := n - i.first; i.reading == st && k < uint64(len(i.incoming)) {
				i.incoming[k] = nil
			}
			if !st.id.Reads() && n >= st.written {
				i.blank(st, n)
			}
		}
	}
	i.load.Store(i.mu.bytes)
	return done
}

// cancelled is a run of Reads that the target need not answer any more.
type cancelled struct {
	id    wire.Stream
	first uint64
	count uint16
}

// maxCancels bounds the runs that wait to be told. Telling saves the target work
// and the path bytes; nothing depends on it.
const maxCancels = 64

// tell has the target told that a Read in flight is not wanted.
func (i *initiator) tell(st *outStream, seq uint64) {
	if !st.id.Reads() {
		return
	}
	if k := len(i.mu.cancels) - 1; k >= 0 {
		if c := &i.mu.cancels[k]; c.id == st.id && c.first+uint64(c.count) == seq && c.count < wire.MaxDescs {
			c.count++
			return
		}
	}
	if len(i.mu.cancels) < maxCancels {
		i.mu.cancels = append(i.mu.cancels, cancelled{st.id, seq, 1})
	}
}

// withdraw takes ops that are in no frame out of their stream.
func (i *initiator) withdraw(st *outStream, tags map[transport.Tag]struct{}, done []transport.Completion) []transport.Completion {
	keep := st.framed
	for n := st.framed; n < st.ops.tail; n++ {
		o := *st.ops.at(n)
		if _, ok := tags[o.tag]; !ok {
			*st.ops.at(keep) = o
			keep++
			continue
		}
		done = append(done, transport.Completion{Tag: o.tag, Code: errs.Canceled})
		i.mu.live--
		i.mu.slots--
		i.mu.bytes -= uint64(o.length)
	}
	for n := keep; n < st.ops.tail; n++ {
		*st.ops.at(n) = op{}
	}
	st.ops.tail = keep
	if st.framed == keep {
		i.mu.active &^= 1 << st.id
	}
	return done
}

// blank replaces what is left in the plan of one Write's payload by zeros.
func (i *initiator) blank(st *outStream, seq uint64) {
	for k := i.shipped; k < len(i.frames); k++ {
		f := &i.frames[k]
		if f.st != st || seq < f.first || seq-f.first >= uint64(f.count) {
			continue
		}
		owner := f.payload + int32(seq-f.first)
		for r := i.snd.next; r < len(i.snd.ranges); r++ {
			if i.snd.owners[r] != owner {
				continue
			}
			i.snd.ranges[r] = i.snd.pools.zero(len(i.snd.ranges[r]))
			i.snd.forget(owner)
			// Without sums an abort fails the whole frame, which may hold Writes
			// that are still wanted; nobody is told of this one's success anyway.
			if i.sums || f.count == 1 {
				putEnd(f.trailer[len(f.trailer)-wire.EndSize:], wire.Aborted(errs.Canceled))
			}
		}
	}
}

// down is machine.down: Reads and what was in no frame end here and now; Writes
// that may have been applied go to the endpoint, which fences the lane.
func (i *initiator) down(cause error) {
	var sure, unsure []transport.Completion
	i.rx.Lock()
	i.tx.Lock()
	i.mu.Lock()
	i.mu.dead = true
	code := lostCode(cause)
	for _, st := range i.mu.streams {
		if st == nil {
			continue
		}
		for n := st.ops.head; n < st.ops.tail; n++ {
			o := st.ops.at(n)
			c := transport.Completion{Tag: o.tag, Code: code, Err: cause}
			switch {
			case o.done:
			case st.id.Reads() || n >= st.framed:
				sure = append(sure, c)
			default:
				unsure = append(unsure, c)
			}
		}
		st.ops = ring[op]{}
	}
	i.mu.active, i.mu.slots, i.mu.live, i.mu.bytes = 0, 0, 0, 0
	i.frames, i.incoming, i.reading = nil, nil, nil
	i.snd.finish()
	i.rcv.drop()
	i.mu.Unlock()
	i.note.unsure(unsure) // a cancel, which takes rx first, finds them here or there
	i.tx.Unlock()
	i.rx.Unlock()
	if len(sure) > 0 {
		i.sink.Complete(sure)
	}
	i.note.lost(i, cause)
}

// lostCode returns the code of slices whose lane ended because of cause.
func lostCode(cause error) errs.Code {
	switch code := errs.Of(cause); code {
	case errs.Closed, errs.Unresponsive, errs.Draining:
		return code
	}
	return errs.LaneLost
}
