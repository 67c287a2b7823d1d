package tcp

import (
	"sync"
	"sync/atomic"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/wire"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
)

// readReq is one Read that waits for its answer.
type readReq struct {
	desc     wire.Desc
	snap     bool
	canceled bool
}

// exception is a Write that was not applied.
type exception struct {
	seq  uint64
	code errs.Code
}

// inStream is one stream of a peer's requests.
type inStream struct {
	id    wire.Stream
	next  uint64        // number that the next request must have
	reads ring[readReq] // not yet answered, by number

	ended uint64 // Writes below it have ended
	acked uint64 // of which the peer has been told, up to here
	bad   []exception
}

// target is the side of a lane that serves requests: a pure machine, driven by
// a lane.
type target struct {
	memory                  transport.Memory
	rx, tx                  *sync.Mutex // the lane's
	sums                    bool
	note                    requests
	from                    segment.Incarnation
	ending                  <-chan struct{}      // closed when the lane ends
	fail                    func(error)          // ends it
	moved                   func(in bool) uint64 // bytes that it has received, or sent
	post                    func()               // has the lane send
	busy                    atomic.Bool          // the receiver waits for a file
	partial                 atomic.Bool          // a buffer waits for the rest of its payload
	writePlaces, readPlaces *places              // the transport's buffers for files

	rcv   receiver // guarded by the lane's rx
	write struct { // the Write frame in hand; guarded by rx
		st    *inStream // nil between frames
		descs []wire.Desc
		codes []errs.Code
		pins  []transport.Pin // of the pieces from the receiver's on
		base  int             // piece that pins[0] belongs to
		bytes uint64
		file  *fileWrite // what is in hand goes to files
	}
	filer *filer // nil until there was a file; the receiver's
	reply bool   // got found a reason to send; the receiver's

	snd  sender // guarded by tx
	plan answers
	mu   struct {
		sync.Mutex
		streams  [wire.MaxStreams]*inStream
		reading  uint64 // bit per stream with Reads to answer
		acking   uint64 // bit per stream with Writes to acknowledge
		turn     int
		fileTurn int
		ready    []*fileData // made by the worker, to be sent
		used     wire.Grant  // what the peer has used of granted
		granted  wire.Grant
		ended    wire.Grant // requests that no longer take a slot
		pongs    []uint64
		fenced   []fence
		goaway   errs.Code // to send, OK: nothing
		away     uint64    // milliseconds, for goaway
		beat     bool      // say that this side is alive
		dead     bool
	}
}

// requests are what a target asks its transport for.
type requests interface {
	// fence ends a lane of a session of the same peer and then calls
	// target.fenced. It is called with rx held and must not wait.
	fence(f fence) error
	// failed reports what a file's system call returned.
	failed(op string, key uint32, err error)
}

// maxPongs bounds the Pings that wait for an answer of their own. A Pong answers
// every Ping up to its own.
const maxPongs = 16

func (t *target) space() [][]byte { return t.rcv.space() }
func (t *target) got(n int) error { return t.rcv.got(n) }
func (t *target) park()           { t.rcv.park() }

func (t *target) deliver() bool {
	reply := t.reply
	t.reply = false
	return reply
}

// begin is consumer.begin.
func (t *target) begin(h *wire.Header, meta []byte) error {
	switch h.Type {
	case wire.Write:
		return t.beginWrite(h, meta)
	case wire.Read:
		return t.beginRead(h, meta)
	case wire.Cancel:
		return t.cancel(h)
	case wire.Ping:
		t.reply = true
		t.mu.Lock()
		defer t.mu.Unlock()
		if len(t.mu.pongs) == maxPongs {
			t.mu.pongs = t.mu.pongs[:maxPongs-1] // the next one answers this too
		}
		t.mu.pongs = append(t.mu.pongs, h.Seq)
		return nil
	case wire.Pong:
		return nil
	case wire.Fence:
		f, err := parseFence(h, meta)
		if err != nil {
			return err
		}
		return t.note.fence(f)
	}
	return skip(&t.rcv, h)
}

// stream returns a stream for requests numbered h.Seq on, after checking that
// they are the next ones and within what was granted. The caller holds mu.
func (t *target) stream(h *wire.Header, bytes uint64) (*inStream, error) {
	st := t.mu.streams[h.Stream]
	if st == nil {
		st = &inStream{id: h.Stream}
		t.mu.streams[h.Stream] = st
	}
	if h.Seq != st.next {
		return nil, errs.New(errs.Invalid, "receive", "request %d of stream %d, want %d", h.Seq, h.Stream, st.next)
	}
	used := &t.mu.used
	if uint64(h.Count) > t.mu.granted.Slots-used.Slots || bytes > t.mu.granted.Bytes-used.Bytes {
		return nil, errs.New(errs.NoCredit, "receive", "%d requests of %d bytes exceed the grant by which %d and %d are left",
			h.Count, bytes, t.mu.granted.Slots-used.Slots, t.mu.granted.Bytes-used.Bytes)
	}
	used.Slots += uint64(h.Count)
	used.Bytes += bytes
	st.next += uint64(h.Count)
	return st, nil
}

// descs checks the descriptors of a request frame and returns their bytes.
func descs(h *wire.Header, meta []byte, reads bool) (bytes uint64, err error) {
	if h.Count == 0 || len(meta) != int(h.Count)*wire.DescSize || h.Stream.Reads() != reads {
		return 0, errs.New(errs.Invalid, "receive requests", "type %d on stream %d: count %d, meta %d bytes", h.Type, h.Stream, h.Count, len(meta))
	}
	for k := range int(h.Count) {
		d := wire.ParseDesc(meta[k*wire.DescSize:])
		if d.Length > wire.MaxFrame {
			return 0, errs.New(errs.Invalid, "receive requests", "a range of %d bytes, at most %d", d.Length, wire.MaxFrame)
		}
		bytes += uint64(d.Length)
	}
	return bytes, nil
}

// beginRead queues Reads.
func (t *target) beginRead(h *wire.Header, meta []byte) error {
	bytes, err := descs(h, meta, true)
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	st, err := t.stream(h, bytes)
	if err != nil {
		return err
	}
	for k := range int(h.Count) {
		st.reads.push(readReq{desc: wire.ParseDesc(meta[k*wire.DescSize:]), snap: h.Flags&wire.FlagSnapshot != 0})
	}
	t.mu.reading |= 1 << h.Stream
	if h.Stream.Kind() == wire.ToFile {
		t.files().wake()
	} else {
		t.reply = true
	}
	return nil
}

// cancel marks Reads that need not be answered with data any more.
func (t *target) cancel(h *wire.Header) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	st := t.mu.streams[h.Stream]
	if st == nil || !h.Stream.Reads() {
		return nil
	}
	for k := range uint64(h.Count) {
		if n := h.Seq + k; n >= st.reads.head && n < st.reads.tail {
			st.reads.at(n).canceled = true
		}
	}
	return nil
}

// beginWrite prepares for the payload of Writes.
func (t *target) beginWrite(h *wire.Header, meta []byte) error {
	bytes, err := descs(h, meta, false)
	if err != nil {
		return err
	}
	if t.sums != (h.Flags&wire.FlagSums != 0) || bytes != uint64(h.Payload) {
		return errs.New(errs.Invalid, "receive writes", "flags %#x, payload of %d bytes for ranges of %d", h.Flags, h.Payload, bytes)
	}
	t.mu.Lock()
	st, err := t.stream(h, bytes)
	t.mu.Unlock()
	if err != nil {
		return err
	}
	if h.Stream.Kind() == wire.ToFile {
		return t.beginFile(st, h, meta, bytes)
	}
	w := &t.write
	w.st, w.descs, w.codes, w.bytes = st, w.descs[:0], w.codes[:0], bytes
	lens := t.rcv.lens[:0]
	for k := range int(h.Count) {
		d := wire.ParseDesc(meta[k*wire.DescSize:])
		w.descs, w.codes, lens = append(w.descs, d), append(w.codes, errs.OK), append(lens, d.Length)
	}
	t.rcv.expect(lens, t.sums)
	return nil
}

// empty is a range of no bytes that is not nil.
var empty = []byte{}

// dest is consumer.dest: it pins the range of a Write, or drops its payload for
// good if the range cannot be had.
func (t *target) dest(piece int) []byte {
	w := &t.write
	if w.st == nil {
		return nil
	}
	if w.file != nil {
		return w.file.data
	}
	if len(w.pins) == 0 {
		w.base = piece
	}
	w.pins = append(w.pins, transport.Pin{})
	if w.codes[piece] != errs.OK {
		return nil
	}
	d, p := w.descs[piece], &w.pins[len(w.pins)-1]
	*p, w.codes[piece] = t.memory.Pin(transport.Write, segment.Key(d.Key), d.Offset, uint64(d.Length))
	switch {
	case w.codes[piece] != errs.OK:
		*p = transport.Pin{}
		return nil
	case d.Length == 0:
		return empty
	case uint64(len(p.Bytes)) != uint64(d.Length):
		w.codes[piece] = errs.Unsupported // a file on a stream for memory
		return nil
	}
	return p.Bytes
}

// release is consumer.release.
func (t *target) release(piece int) {
	w := &t.write
	if w.st == nil || w.file != nil {
		return
	}
	k := piece - w.base
	w.pins[k].Unpin()
	w.pins[k] = transport.Pin{}
	if k == len(w.pins)-1 {
		w.pins = w.pins[:0]
	}
}

// end is consumer.end: it verifies the Writes of a frame and has them
// acknowledged.
func (t *target) end(h *wire.Header, trailer []byte) error {
	w := &t.write
	if h.Type != wire.Write || w.st == nil {
		return nil
	}
	abort, err := endOf(trailer)
	if err != nil {
		return err
	}
	if w.file != nil {
		t.endFile(trailer, abort)
		return nil
	}
	for k := range w.codes {
		if w.codes[k] == errs.OK {
			w.codes[k] = verdict(t.sums, trailer, k, t.rcv.sums[k], abort)
		}
	}
	t.finish(w.st, w.codes, w.bytes)
	t.reply = true
	w.st = nil
	return nil
}

// beat plans a sign of life.
func (t *target) beat() {
	t.mu.Lock()
	t.mu.beat = true
	t.mu.Unlock()
}

// finish counts the next Writes of a stream as ended, with their codes.
func (t *target) finish(st *inStream, codes []errs.Code, bytes uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for k, c := range codes {
		if c != errs.OK {
			st.bad = append(st.bad, exception{st.ended + uint64(k), c})
		}
	}
	st.ended += uint64(len(codes))
	t.mu.ended.Bytes += bytes
	t.mu.acking |= 1 << st.id
}

// down is machine.down.
func (t *target) down(error) {
	if t.filer != nil {
		t.filer.close()
	}
	t.rx.Lock()
	defer t.rx.Unlock()
	t.tx.Lock()
	defer t.tx.Unlock()
	t.mu.Lock()
	t.mu.dead = true
	t.mu.streams = [wire.MaxStreams]*inStream{}
	t.mu.Unlock()
	if t.plan.big != nil {
		t.rcv.pools.putBig(t.plan.big)
		t.plan.big = nil
	}
	t.snd.finish()
	t.rcv.drop()
}

// newTarget returns the machine of an inbound lane and ties the two together.
func newTarget(in *inbound, sums bool) *target {
	l := in.lane
	t := &target{memory: in.t.env.Memory, rx: &l.rx, tx: &l.tx, sums: sums, note: in, ending: l.closing, post: l.post, from: in.id.from, fail: l.fail, moved: l.moved, writePlaces: in.t.writePlaces, readPlaces: in.t.readPlaces}
	t.rcv = receiver{to: t, pools: &in.t.pools}
	t.snd = sender{pools: &in.t.pools, sums: sums}
	t.mu.granted = wire.Grant{Slots: windowSlots, Bytes: windowBytes}
	l.m, in.target = t, t
	return t
}
