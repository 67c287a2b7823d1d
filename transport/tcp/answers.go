package tcp

import (
	"math/bits"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/wire"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
)

// snapLimit is the payload up to which a Read is always answered from a copy,
// so that the sum matches whatever the owner does meanwhile.
const snapLimit = 16 << 10

// takeMax is how many small Reads one Data frame answers.
const takeMax = 256

// answers is what a target's plan holds besides ranges.
type answers struct {
	taken []readReq
	held  []heldRange // payloads sent from registered memory
	pins  []transport.Pin
	big   []byte   // a snapshot
	files []*place // buffers of the lane's filer
}

// heldRange is a payload in the plan that lies in registered memory: pinned for
// each system call, and only for it.
type heldRange struct {
	desc wire.Desc
	end  []byte // the end word of its frame
	dead bool
}

// fill is machine.fill.
func (t *target) fill() [][]byte {
	if t.snd.busy() {
		t.pinAgain()
		return t.snd.window()
	}
	if !t.something() {
		return nil
	}
	t.snd.start()
	t.controls()
	t.sendFiles()
	for t.answer() {
	}
	if !t.snd.busy() {
		t.snd.finish()
		return nil
	}
	return t.snd.window()
}

// sent is machine.sent.
func (t *target) sent(n int) {
	if !t.snd.busy() {
		return
	}
	t.snd.advance(n)
	t.unpin()
	if t.snd.busy() {
		return
	}
	t.plan.held = t.plan.held[:0]
	if t.plan.big != nil {
		t.rcv.pools.putBig(t.plan.big)
		t.plan.big = nil
	}
	for _, pl := range t.plan.files {
		t.readPlaces.release(pl)
	}
	t.plan.files = t.plan.files[:0]
	t.snd.finish()
}

func (t *target) unpin() {
	for k := range t.plan.pins {
		t.plan.pins[k].Unpin()
	}
	clear(t.plan.pins)
	t.plan.pins = t.plan.pins[:0]
}

// pinAgain pins what is left of the plan for another system call. A range that
// cannot be had any more is replaced by zeros and its frame aborted.
func (t *target) pinAgain() {
	s := &t.snd
	for k := s.next; k < len(s.ranges); k++ {
		if s.owners[k] < 0 || s.payloads[s.owners[k]].held < 0 {
			continue
		}
		h := &t.plan.held[s.payloads[s.owners[k]].held]
		if h.dead {
			continue
		}
		left := uint64(len(s.ranges[k]))
		p, code := t.memory.Pin(transport.Read, segment.Key(h.desc.Key), h.desc.Offset+uint64(h.desc.Length)-left, left)
		if code == errs.OK && uint64(len(p.Bytes)) == left {
			s.ranges[k] = p.Bytes
			t.plan.pins = append(t.plan.pins, p)
			continue
		}
		if code == errs.OK { // another kind of memory under the same key: cannot be
			p.Unpin()
			code = errs.Internal
		}
		h.dead = true
		s.forget(s.owners[k])
		s.ranges[k] = t.rcv.pools.zero(int(left))
		putEnd(h.end, wire.Aborted(code))
	}
}

// something reports whether there is anything to send.
func (t *target) something() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	m := &t.mu
	return !m.dead && (m.reading&^fileStreams|m.acking != 0 || m.beat || len(m.ready) > 0 || len(m.pongs)+len(m.fenced) > 0 || m.goaway != errs.OK || t.creditDue())
}

// controls plans the frames that are not Data.
func (t *target) controls() {
	t.mu.Lock()
	defer t.mu.Unlock()
	m := &t.mu
	for _, seq := range m.pongs {
		wire.Seal(t.snd.control(wire.Header{Type: wire.Pong, Seq: seq}))
	}
	if m.beat {
		wire.Seal(t.snd.control(wire.Header{Type: wire.Pong}))
	}
	for _, f := range m.fenced {
		t.snd.fence(wire.Fenced, f)
	}
	if m.goaway != errs.OK {
		wire.Seal(t.snd.control(wire.Header{Type: wire.Goaway, Status: m.goaway, Seq: m.away}))
	}
	m.pongs, m.fenced, m.goaway, m.beat = m.pongs[:0], m.fenced[:0], errs.OK, false
	for m.acking != 0 && t.snd.room() > wire.HeaderSize+maxExceptions*wire.OutcomeSize {
		t.acknowledge(m.streams[bits.TrailingZeros64(m.acking)])
	}
	if t.creditDue() {
		m.granted = wire.Grant{Slots: m.ended.Slots + windowSlots, Bytes: m.ended.Bytes + windowBytes}
		head := t.snd.control(wire.Header{Type: wire.Credit, Meta: wire.GrantSize})
		m.granted.Put(head[wire.HeaderSize:])
		wire.Seal(head)
	}
}

// creditDue reports whether a quarter of the window may be granted anew.
func (t *target) creditDue() bool {
	m := &t.mu
	return m.granted.Slots-m.ended.Slots <= windowSlots-windowSlots/4 || m.granted.Bytes-m.ended.Bytes <= windowBytes-windowBytes/4
}

// maxExceptions is how many exceptions one Ack carries.
const maxExceptions = wire.MaxDescs

// acknowledge plans one Ack of a stream. Writes take their slot until then.
func (t *target) acknowledge(st *inStream) {
	n, upTo := len(st.bad), st.ended
	if n > maxExceptions {
		n, upTo = maxExceptions, st.bad[maxExceptions-1].seq+1
	}
	head := t.snd.control(wire.Header{Type: wire.Ack, Stream: st.id, Count: uint16(n), Seq: upTo, Meta: uint32(n * wire.OutcomeSize)})
	for k, x := range st.bad[:n] {
		wire.Exception{Back: uint32(upTo - x.seq), Code: x.code}.Put(head[wire.HeaderSize+k*wire.OutcomeSize:])
	}
	wire.Seal(head)
	st.bad = append(st.bad[:0], st.bad[n:]...)
	t.mu.ended.Slots += upTo - st.acked
	st.acked = upTo
	if st.acked == st.ended {
		t.mu.acking &^= 1 << st.id
	}
}

// answer plans one Data frame for the stream whose turn it is and reports
// whether another one may be tried.
func (t *target) answer() bool {
	st := t.take()
	if st == nil {
		return false
	}
	taken := t.plan.taken
	first := st.reads.head - uint64(len(taken))
	h := t.dataHeader(st, first, len(taken))
	head := t.snd.control(h)
	if taken[0].desc.Length > snapLimit {
		t.large(h, head, &taken[0])
	} else {
		t.small(h, head, taken)
	}
	return true
}

// dataHeader is the header of a Data frame, but for its payload.
func (t *target) dataHeader(st *inStream, first uint64, count int) wire.Header {
	h := wire.Header{Type: wire.Data, Stream: st.id, Count: uint16(count), Seq: first, Meta: uint32(count * wire.OutcomeSize)}
	if t.sums {
		h.Flags = wire.FlagSums
	}
	return h
}

// take removes from one stream the Reads that the next Data frame answers: one
// large one, or as many small ones as fit. Nil: nothing fits or waits.
func (t *target) take() *inStream {
	t.mu.Lock()
	defer t.mu.Unlock()
	s, m := &t.snd, &t.mu
	t.plan.taken = t.plan.taken[:0]
	if m.reading&^fileStreams == 0 || t.plan.big != nil || s.slots() < 4 {
		return nil
	}
	id := nextBit(m.reading&^fileStreams, m.turn)
	st := m.streams[id]
	room, budget := s.room()-frameRoom, planPayload-s.payload
	for st.reads.len() > 0 && len(t.plan.taken) < takeMax {
		q := *st.reads.at(st.reads.head)
		size := int(q.desc.Length)
		if size > snapLimit && len(t.plan.taken) > 0 {
			break
		}
		room -= wire.OutcomeSize + wire.SumSize
		if size <= snapLimit {
			room -= size
		}
		if budget -= size; room < 0 || budget < 0 {
			break
		}
		t.plan.taken = append(t.plan.taken, q)
		t.pop(st)
		if size > snapLimit {
			break
		}
	}
	if len(t.plan.taken) == 0 {
		return nil
	}
	if st.reads.len() == 0 {
		m.reading &^= 1 << id
	}
	m.turn = id + 1
	return st
}

// pop takes the oldest Read off a stream: its slot is free. The caller holds mu.
func (t *target) pop(st *inStream) {
	t.mu.ended.Slots++
	t.mu.ended.Bytes += uint64(st.reads.at(st.reads.head).desc.Length)
	st.reads.pop()
}

// pin resolves the range of a Read.
func (t *target) pin(q *readReq) (transport.Pin, errs.Code) {
	if q.canceled {
		return transport.Pin{}, errs.Canceled
	}
	p, code := t.memory.Pin(transport.Read, segment.Key(q.desc.Key), q.desc.Offset, uint64(q.desc.Length))
	if code == errs.OK && len(p.Bytes) != int(q.desc.Length) {
		p.Unpin()
		return transport.Pin{}, errs.Unsupported // a file on a stream for memory
	}
	return p, code
}

// small answers Reads from copies.
func (t *target) small(h wire.Header, head []byte, taken []readReq) {
	first := int32(len(t.snd.payloads))
	for k := range taken {
		p, code := t.pin(&taken[k])
		out := wire.Outcome{Code: code}
		if code == errs.OK {
			t.snd.copied(p.Bytes)
			out.Length = uint32(len(p.Bytes))
			p.Unpin()
		} else {
			t.snd.absent()
		}
		h.Payload += out.Length
		out.Put(head[wire.HeaderSize+k*wire.OutcomeSize:])
	}
	t.complete(h, head, first)
}

// large answers one Read from registered memory, or from a snapshot.
func (t *target) large(h wire.Header, head []byte, q *readReq) {
	first := int32(len(t.snd.payloads))
	p, code := t.pin(q)
	out := wire.Outcome{Code: code}
	held := false
	switch {
	case code != errs.OK:
		t.snd.absent()
	case q.snap:
		t.plan.big = t.rcv.pools.big()
		t.snd.referred(t.plan.big[:move(t.plan.big, p.Bytes)]).held = -1
		p.Unpin()
	default:
		held = true
		t.snd.referred(p.Bytes).held = int32(len(t.plan.held))
		t.plan.pins = append(t.plan.pins, p)
	}
	if code == errs.OK {
		out.Length = q.desc.Length
	}
	out.Put(head[wire.HeaderSize:])
	h.Payload = out.Length
	trailer := t.complete(h, head, first)
	if held {
		t.plan.held = append(t.plan.held, heldRange{desc: q.desc, end: trailer[len(trailer)-wire.EndSize:]})
	}
}

// complete finishes a Data frame whose outcomes and payload are in place.
func (t *target) complete(h wire.Header, head []byte, first int32) (trailer []byte) {
	h.Put(head)
	wire.Seal(head)
	t.snd.payload += int(h.Payload)
	return t.snd.trailer(&h, first)
}
