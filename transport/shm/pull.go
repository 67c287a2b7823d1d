package shm

import (
	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/mem"
	"github.com/tideway-io/tideway/transport"
)

// lane is a queue of batches of WRITEs that a peer has asked for, and the task
// that pulls them.
type lane struct {
	in     *inbound
	queue  []*batch // guarded by in.mu
	active bool     // the pool has it; guarded by in.mu

	// The worker's that has the lane:
	held    [maxBatch]held
	reply   []byte // a message of those of the first batch that have ended
	replies int
}

// batch is one message's worth of WRITEs. The worker that has the lane owns the
// first.
type batch struct {
	requests []request
	at       int    // the first that has not ended
	done     uint64 // bytes of that one that are there
}

// held is what became of a request in one step.
type held struct {
	piece []byte // the part of the target's memory that is to be read; nil: none
	last  bool   // it is the request's last part
	code  errs.Code
	pin   transport.Pin
}

// take queues the WRITEs of a message.
func (in *inbound) take(m *message) error {
	n := int(m.count)
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.mu.queued += n; n == 0 || in.mu.queued > deskSlots {
		return refuse(errs.Invalid, "serve", "an initiator asked for %d WRITEs at the same time, %d more: want at least 1 and at most %d in all", in.mu.queued-n, n, deskSlots)
	}
	b := in.batch()
	for i := range n {
		r := m.request(i)
		if r.slot >= deskSlots || r.size == 0 {
			return refuse(errs.Invalid, "serve", "an initiator asked for %d bytes in slot %d", r.size, r.slot)
		}
		b.requests = append(b.requests, r)
	}
	l := in.lane(m.class)
	l.queue = append(l.queue, b)
	if !l.active && !in.mu.closed {
		l.active = in.t.pulls.put(l, m.class, usual()) // there is room for every lane
	}
	return nil
}

// batch returns an empty one; the lock is held.
func (in *inbound) batch() *batch {
	n := len(in.mu.spare)
	if n == 0 {
		return new(batch)
	}
	b := in.mu.spare[n-1]
	in.mu.spare = in.mu.spare[:n-1]
	return b
}

// step implements task.
func (l *lane) step() bool {
	b := l.next()
	if b == nil {
		return false
	}
	r := l.in.t.reader()
	l.advance(b, r)
	l.in.t.put(r)
	l.in.desk.progress().Add(1)
	if b.at < len(b.requests) {
		return true
	}
	l.ended(b) // before the peer knows, so that it may ask for as many again
	if l.replies > 0 {
		setCount(l.reply, l.replies)
		l.in.link.send(l.reply, -1)
	}
	l.reply, l.replies = l.reply[:0], 0
	return true
}

// next returns the batch to go on with; nil: the lane is at rest.
func (l *lane) next() *batch {
	l.in.mu.Lock()
	defer l.in.mu.Unlock()
	if len(l.queue) > 0 && !l.in.mu.closed {
		return l.queue[0]
	}
	l.active = false
	l.in.mu.idle.Broadcast()
	return nil
}

// ended takes the first batch off the queue and keeps it for the next message.
func (l *lane) ended(b *batch) {
	l.in.mu.Lock()
	defer l.in.mu.Unlock()
	n := copy(l.queue, l.queue[1:])
	l.queue[n] = nil
	l.queue = l.queue[:n]
	l.in.mu.queued -= len(b.requests)
	if len(l.in.mu.spare) < maxSpare {
		b.requests, b.at, b.done = b.requests[:0], 0, 0
		l.in.mu.spare = append(l.in.mu.spare, b)
	}
}

// maxSpare bounds the batches that a link keeps for later.
const maxSpare = deskSlots / maxBatch

// advance does the next step of a batch: it claims what fits, reads it with one
// system call, and draws the conclusions in order.
func (l *lane) advance(b *batch, r *reader) {
	in, end, left := l.in, b.at, uint64(mem.Step)
	for ; end < len(b.requests) && left > 0; end++ {
		h := &l.held[end]
		in.hold(&b.requests[end], b.from(end), left, h)
		if h.piece != nil {
			left -= uint64(len(h.piece))
			r.add(h.piece, b.requests[end].addr+b.from(end))
		}
	}
	whole, why := 0, error(nil)
	if left < mem.Step {
		whole, why = r.run(in.pid, &in.life)
	}
	broken := false                         // a piece was not read: those behind it wait for the next step
	foreign := unread(why) == errs.LaneLost // what is there may be another process's
	next, done := end, uint64(0)
	for i := b.at; i < end; i++ {
		h, q := &l.held[i], &b.requests[i]
		if foreign {
			clear(h.piece)
		}
		switch {
		case broken:
			in.putBack(q, h)
		case h.piece == nil:
			l.end(q, h.code)
		case whole > 0:
			whole--
			if code := in.pulled(q, h); h.last || code != errs.OK {
				l.end(q, code)
			} else {
				next, done = i, b.from(i)+uint64(len(h.piece))
			}
		default:
			broken, next = true, i+1
			l.end(q, in.unpulled(q, h, why))
		}
		h.pin.Unpin()
		*h = held{}
	}
	b.at, b.done = next, done
}

// from returns where in request i the next step begins.
func (b *batch) from(i int) uint64 {
	if i == b.at {
		return b.done
	}
	return 0
}

// end adds a request to the reply. What has no code has no reply either: the
// peer took it back.
func (l *lane) end(q *request, code errs.Code) {
	if code == withdrawn {
		return
	}
	if l.replies == 0 {
		l.reply = appendHead(l.reply[:0], head{kind: kindPulled})
	}
	l.reply = appendResult(l.reply, result{q.slot, q.seq, code})
	l.replies++
}

// withdrawn marks a request that the peer took back before it was claimed.
const withdrawn = ^errs.Code(0)

// hold pins the target of a request and claims it for one step.
func (in *inbound) hold(q *request, from, left uint64, h *held) {
	pin, code := in.t.env.Memory.Pin(transport.Write, q.key, q.offset, q.size)
	switch {
	case code != errs.OK:
		h.code = code
		return
	case uint64(len(pin.Bytes)) != q.size: // a file
		h.code = errs.Unsupported
	case !in.desk.change(q.slot, q.seq, slotPosted, slotClaimed):
		h.code = withdrawn
		if in.desk.state(q.slot, q.seq) == slotAborted { // between two claims, see putBack
			h.code = errs.Canceled
		}
	default:
		to := min(from+left, q.size)
		h.piece, h.last, h.pin = pin.Bytes[from:to], to == q.size, pin
		return
	}
	pin.Unpin()
}

// pulled concludes a piece that was read.
func (in *inbound) pulled(q *request, h *held) errs.Code {
	to := slotPosted
	if h.last {
		to = slotDone
	}
	if in.desk.change(q.slot, q.seq, slotClaimed, to) {
		return errs.OK
	}
	in.forgo(q, h)
	return errs.Canceled
}

// forgo clears what was read for a slice that the initiator has given up: its
// memory may have been somebody else's by then. One that is only aborted is
// waited for, and its memory was still its own.
func (in *inbound) forgo(q *request, h *held) {
	if in.desk.state(q.slot, q.seq) != slotAborted {
		clear(h.piece)
	}
}

// unpulled concludes a piece that was not read, or not wholly.
func (in *inbound) unpulled(q *request, h *held, why error) errs.Code {
	code := unread(why)
	if code == errs.LaneLost {
		in.link.end()
	}
	if !in.desk.change(q.slot, q.seq, slotClaimed, slotDone) {
		in.forgo(q, h)
		return errs.Canceled
	}
	return code
}

// putBack gives up a claim for another step.
func (in *inbound) putBack(q *request, h *held) {
	if h.piece != nil && !in.desk.change(q.slot, q.seq, slotClaimed, slotPosted) {
		in.forgo(q, h) // the next step finds out again
	}
}
