package tcp

import (
	"sync"
	"sync/atomic"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/wire"
	"github.com/tideway-io/tideway/transport"
)

// op is one accepted slice.
type op struct {
	local  []byte // nil once completed
	offset uint64
	tag    transport.Tag
	length uint32
	key    uint32
	code   errs.Code // of a Write, from an Ack's exceptions
	done   bool      // completed early; its place in the stream is still taken
	snap   bool      // a Read that asks for a snapshot
}

// outStream is one stream of requests. An op's number in the ring is its
// sequence number on the wire.
//
//	ops.head <= written <= framed <= ops.tail, except that answers to Reads may
//	move ops.head past written
type outStream struct {
	id      wire.Stream
	ops     ring[op]
	framed  uint64 // the first that is in no frame yet
	written uint64 // the first whose frame is not wholly in the socket
}

// sentFrame is a frame of the plan in hand.
type sentFrame struct {
	st      *outStream
	first   uint64 // sequence number
	count   int
	payload int32 // index of its first payload in the plan, the owner of that one's range
	end     int   // bytes of the plan up to its end
	head    []byte
	trailer []byte
}

// initiator is the side of a lane that makes requests: a pure machine, driven
// by a lane.
type initiator struct {
	sink   transport.Sink
	rx, tx *sync.Mutex // the lane's
	sums   bool        // payload sums were agreed
	note   notices
	load   atomic.Uint64 // bytes accepted and not ended, for choosing a lane

	rcv       receiver               // guarded by the lane's rx
	incoming  [][]byte               // destinations of the Data frame in hand, nil: drop; guarded by rx
	outcomes  []wire.Outcome         // parallel
	first     uint64                 // sequence number of the first of them
	reading   *outStream             // their stream, nil between frames
	batch     []transport.Completion // found by got and not yet delivered; the receiver's
	completed int                    // handed on so far; the receiver's
	reply     bool                   // got found a reason to send; the receiver's
	away      bool                   // the target wants the lane closed; the receiver's

	snd     sender      // guarded by tx
	frames  []sentFrame // of the plan in hand
	shipped int         // the first of them that is not wholly in the socket

	mu struct {
		sync.Mutex
		streams  [wire.MaxStreams]*outStream
		active   uint64 // bit per stream with ops in no frame
		turn     int    // stream that sends next
		grant    wire.Grant
		spent    wire.Grant // slots and bytes put in frames
		slots    int        // ops in the rings
		live     int        // those not completed
		bytes    uint64     // length of those in the rings
		dead     bool
		ping     uint64 // to send, 0: none
		pinged   uint64 // number of the last ping
		ponged   uint64 // number of the last one answered
		pong     uint64 // to answer, valid if ponging
		ponging  bool
		fences   []fence
		cancels  []cancelled // to tell the target of
		checksum uint64      // payloads that did not match
	}
}

// notices are what an initiator tells its endpoint. They are called by the
// receiver, with rx held and nothing else.
type notices interface {
	goaway(code errs.Code)
	// drained says that the target wanted the lane closed and nothing is
	// outstanding on it any more.
	drained()
	fenced(f fence)
	ponged(seq uint64)
	// unsure takes, when the lane has ended, the Writes that may have been
	// applied, and may still be. It is called with tx held too.
	unsure(writes []transport.Completion)
	// lost says, with nothing held, that the lane has ended.
	lost(i *initiator, cause error)
}

func (i *initiator) space() [][]byte { return i.rcv.space() }
func (i *initiator) got(n int) error { return i.rcv.got(n) }
func (i *initiator) park()           { i.rcv.park() }

// deliver hands the completions that got found to the sink.
func (i *initiator) deliver() bool {
	if len(i.batch) > 0 {
		i.completed += len(i.batch)
		i.sink.Complete(i.batch)
		clear(i.batch)
		i.batch = i.batch[:0]
	}
	if i.away && i.leave() {
		i.note.drained()
	}
	reply := i.reply
	i.reply = false
	return reply
}

// leave reports whether nothing is outstanding on a lane whose target wants it
// closed, and then takes nothing more.
func (i *initiator) leave() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.mu.slots > 0 {
		return false
	}
	i.mu.dead = true
	return true
}

func (i *initiator) mismatches() uint64 {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.mu.checksum
}

// complete takes an op that was answered off its stream's head.
func (i *initiator) complete(st *outStream, code errs.Code) {
	o := st.ops.at(st.ops.head)
	if !o.done {
		i.batch = append(i.batch, transport.Completion{Tag: o.tag, Code: code})
		i.mu.live--
	}
	i.mu.slots--
	i.mu.bytes -= uint64(o.length)
	st.ops.pop()
}

// begin is consumer.begin.
func (i *initiator) begin(h *wire.Header, meta []byte) error {
	switch h.Type {
	case wire.Data:
		return i.beginData(h, meta)
	case wire.Ack:
		return i.ack(h, meta)
	case wire.Credit:
		return i.credit(h, meta)
	case wire.Ping:
		i.mu.Lock()
		i.mu.pong, i.mu.ponging = h.Seq, true
		i.mu.Unlock()
		i.reply = true
	case wire.Pong:
		i.mu.Lock()
		i.mu.ponged = max(i.mu.ponged, min(h.Seq, i.mu.pinged))
		i.mu.Unlock()
		i.note.ponged(h.Seq)
	case wire.Goaway:
		i.away = true
		i.note.goaway(h.Status)
	case wire.Fenced:
		f, err := parseFence(h, meta)
		if err != nil {
			return err
		}
		i.note.fenced(f)
	default:
		return skip(&i.rcv, h)
	}
	return nil
}

// beginData prepares for the answers to Reads.
func (i *initiator) beginData(h *wire.Header, meta []byte) error {
	n := int(h.Count)
	if n == 0 || len(meta) != n*wire.OutcomeSize || i.sums != (h.Flags&wire.FlagSums != 0) {
		return errs.New(errs.Invalid, "receive data", "count %d, meta %d bytes, flags %#x", n, len(meta), h.Flags)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	st := i.mu.streams[h.Stream]
	if st == nil || !h.Stream.Reads() || h.Seq != st.ops.head || uint64(n) > st.framed-h.Seq {
		return errs.New(errs.Invalid, "receive data", "answers %d reads from %d of stream %d, which are not outstanding", n, h.Seq, h.Stream)
	}
	lens := i.rcv.lens[:0]
	i.incoming, i.outcomes, i.first, i.reading = i.incoming[:0], i.outcomes[:0], h.Seq, st
	for k := range n {
		out, o := wire.ParseOutcome(meta[k*wire.OutcomeSize:]), st.ops.at(h.Seq+uint64(k))
		var dest []byte
		switch {
		case out.Code != errs.OK && out.Length == 0:
		case out.Code == errs.OK && out.Length == o.length:
			if !o.done {
				dest = o.local
			}
		default:
			return errs.New(errs.Invalid, "receive data", "%d bytes with code %d for a read of %d", out.Length, out.Code, o.length)
		}
		i.incoming, i.outcomes, lens = append(i.incoming, dest), append(i.outcomes, out), append(lens, out.Length)
	}
	i.rcv.expect(lens, i.sums)
	return nil
}

// dest and release are the consumer's. Nothing has to be held: a cancel takes
// rx and then clears incoming.
func (i *initiator) dest(piece int) []byte {
	if i.reading == nil {
		return nil
	}
	return i.incoming[piece]
}

func (i *initiator) release(int) {}

// end is consumer.end: it verifies and completes the Reads of a Data frame.
func (i *initiator) end(h *wire.Header, trailer []byte) error {
	st := i.reading
	if h.Type != wire.Data || st == nil {
		return nil
	}
	abort, err := endOf(trailer)
	if err != nil {
		return err
	}
	i.mu.Lock()
	for k := range i.outcomes {
		code := i.outcomes[k].Code
		if code == errs.OK && i.incoming[k] != nil {
			code = verdict(i.sums, trailer, k, i.rcv.sums[k], abort)
			if code == errs.Checksum {
				i.mu.checksum++
			}
		}
		i.complete(st, code)
	}
	i.load.Store(i.mu.bytes)
	i.mu.Unlock()
	clear(i.incoming)
	i.reading = nil
	return nil
}

// ack completes Writes.
func (i *initiator) ack(h *wire.Header, meta []byte) error {
	if len(meta) != int(h.Count)*wire.OutcomeSize {
		return errs.New(errs.Invalid, "receive ack", "count %d, meta %d bytes", h.Count, len(meta))
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	st := i.mu.streams[h.Stream]
	if st == nil || h.Stream.Reads() {
		return errs.New(errs.Invalid, "receive ack", "no writes on stream %d", h.Stream)
	}
	if h.Seq > st.written {
		// The peer may have been quicker than the writer's own accounting: let
		// the system call in progress end. A peer that acknowledges what was
		// not sent yet must not make us give memory back that is being read.
		i.mu.Unlock()
		i.tx.Lock()
		i.mu.Lock()
		i.tx.Unlock()
	}
	head := st.ops.head
	if h.Seq <= head || h.Seq > st.written {
		return errs.New(errs.Invalid, "receive ack", "ends writes below %d of stream %d, outstanding are %d to %d", h.Seq, h.Stream, head, st.written)
	}
	for k := range int(h.Count) {
		x := wire.ParseException(meta[k*wire.OutcomeSize:])
		if x.Back == 0 || uint64(x.Back) > h.Seq-head || x.Code == errs.OK {
			return errs.New(errs.Invalid, "receive ack", "exception %d back from %d with code %d", x.Back, h.Seq, x.Code)
		}
		st.ops.at(h.Seq - uint64(x.Back)).code = x.Code
	}
	for st.ops.head < h.Seq {
		code := st.ops.at(st.ops.head).code
		if code == errs.Checksum {
			i.mu.checksum++
		}
		i.complete(st, code)
	}
	i.load.Store(i.mu.bytes)
	return nil
}

// credit raises the allowance.
func (i *initiator) credit(h *wire.Header, meta []byte) error {
	if len(meta) != wire.GrantSize {
		return errs.New(errs.Invalid, "receive credit", "meta of %d bytes, want %d", len(meta), wire.GrantSize)
	}
	g := wire.ParseGrant(meta)
	i.mu.Lock()
	defer i.mu.Unlock()
	if g.Epoch != i.mu.grant.Epoch || g.Slots < i.mu.grant.Slots || g.Bytes < i.mu.grant.Bytes {
		return errs.New(errs.Invalid, "receive credit", "grant %+v after %+v", g, i.mu.grant)
	}
	i.mu.grant = g
	i.reply = i.mu.active != 0
	return nil
}

// newInitiator returns the machine of an outbound lane, welcomed with g, and
// ties the two together.
func newInitiator(tr *Transport, l *lane, note notices, g *wire.Greeting) *initiator {
	i := &initiator{sink: tr.env.Sink, rx: &l.rx, tx: &l.tx, note: note, sums: g.Features&uint64(wire.FeatureSums) != 0}
	i.rcv = receiver{to: i, pools: &tr.pools}
	i.snd = sender{pools: &tr.pools, sums: i.sums}
	i.mu.grant = wire.Grant{Slots: uint64(g.Slots), Bytes: g.Bytes}
	l.m = i
	return i
}
