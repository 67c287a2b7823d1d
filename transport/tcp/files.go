package tcp

import (
	"encoding/binary"
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/wire"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
)

// Files are slow and may hang, so nothing waits for them but the streams that
// name them: payload passes through buffers (places), and one worker per lane
// makes the system calls. When a lane has as many buffers as it may have its
// receiver waits, which is why initiators give files a lane of their own.

// fileWrite is a Write frame for files that has arrived.
type fileWrite struct {
	st    *inStream
	descs []wire.Desc
	at    *place // nil: nothing of it can be done
	data  []byte // of the place
	codes []errs.Code
	sums  []uint64
	abort errs.Code
	bytes uint64
}

// fileData is a Data frame made from files, ready to be sent.
type fileData struct {
	st    *inStream
	first uint64
	outs  []wire.Outcome
	sums  []uint64
	at    *place // nil: there are no bytes
	data  []byte // of the place
}

// fileStreams is a bit for each stream whose kind of target is a file.
const fileStreams = uint64(0xff)<<(wire.ToFile<<3) | uint64(0xff)<<(wire.ToFile<<3|1<<5)

// filer is the part of a target that serves files. Its worker exists once there
// was something for it.
type filer struct {
	t      *target
	from   segment.Incarnation
	fail   func(error)          // ends the lane
	moved  func(in bool) uint64 // bytes that the lane has received, or sent
	given  atomic.Bool          // the lane is given up
	writes chan *fileWrite
	kick   chan struct{} // Reads wait
	ended  sync.WaitGroup
}

// files returns the filer, started. It is called by the receiver.
func (t *target) files() *filer {
	if t.filer == nil {
		f := &filer{t: t, from: t.from, fail: t.fail, moved: t.moved, writes: make(chan *fileWrite, laneFiles), kick: make(chan struct{}, 1)}
		t.writePlaces.join(f.from)
		t.readPlaces.join(f.from)
		f.ended.Go(f.work)
		t.filer = f
	}
	return t.filer
}

// acquire takes a buffer, waiting for one if it must; nil: the lane ends. While
// the worker waits it does the Writes that come. The receiver gives no writes.
func (f *filer) acquire(p *places, writes <-chan *fileWrite) *place {
	w := p.ask(f)
	select {
	case pl := <-w.got:
		return pl
	default:
	}
	press := time.NewTicker(fileWait)
	defer press.Stop()
	for {
		select {
		case pl := <-w.got:
			return pl
		case x := <-writes:
			f.write(x)
		case <-press.C:
			p.press(w)
		case <-f.t.ending:
			p.withdraw(w)
			return nil
		}
	}
}

// close gives back what the lane, which has ended, still has in its queues, and
// waits for the worker, which may be waiting for a file.
func (f *filer) close() {
	both := []*places{f.t.writePlaces, f.t.readPlaces}
	for _, p := range both {
		p.reclaim(f, false)
	}
	f.ended.Wait()
	for _, p := range both {
		p.reclaim(f, true)
		p.leave(f.from)
	}
}

// beginFile prepares for a Write frame whose target is a file: its payload goes
// to a buffer, unless nothing of it can be done anyway. The receiver may wait
// here; the lane's watcher then sends signs of life for it.
func (t *target) beginFile(st *inStream, h *wire.Header, meta []byte, bytes uint64) error {
	w := &fileWrite{st: st, descs: make([]wire.Desc, h.Count), codes: make([]errs.Code, h.Count), bytes: bytes}
	possible := false
	for k := range w.descs {
		w.descs[k] = wire.ParseDesc(meta[k*wire.DescSize:])
		w.codes[k] = t.resolves(transport.Write, w.descs[k])
		possible = possible || w.codes[k] == errs.OK
	}
	f := t.files()
	switch {
	case h.Payload == 0:
		w.data = empty
	case possible:
		t.busy.Store(true)
		w.at = f.acquire(t.writePlaces, nil)
		t.busy.Store(false)
		if w.at == nil {
			return errs.New(errs.Closed, "receive writes", "the lane ends")
		}
		w.data = w.at.data[:h.Payload]
		t.partial.Store(true)
	}
	t.write.st, t.write.file = st, w
	t.rcv.expect(append(t.rcv.lens[:0], h.Payload), false)
	return nil
}

// resolves says whether a range can be had now. It is asked before a buffer is
// taken for it, and once more when the bytes are there.
func (t *target) resolves(op transport.Op, d wire.Desc) errs.Code {
	pin, code := t.memory.Pin(op, segment.Key(d.Key), d.Offset, uint64(d.Length))
	if code == errs.OK {
		pin.Unpin()
	}
	return code
}

// endFile hands a Write frame that has arrived to the worker. The queue is as
// long as the lane has buffers; what has none may wait for room here.
func (t *target) endFile(trailer []byte, abort errs.Code) {
	w := t.write.file
	t.write.file, t.write.st = nil, nil
	t.partial.Store(false)
	if w.abort = abort; t.sums {
		w.sums = parseSums(trailer, len(w.descs))
	}
	if w.at != nil {
		t.writePlaces.turn(w.at, false)
	}
	t.busy.Store(true)
	select {
	case t.filer.writes <- w:
	case <-t.ending:
	}
	t.busy.Store(false)
}

// work is the worker.
func (f *filer) work() {
	for {
		select {
		case <-f.t.ending:
			return
		case w := <-f.writes:
			f.write(w)
		case <-f.kick:
			if f.read() {
				f.wake()
			}
		}
	}
}

// wake has the worker look for Reads.
func (f *filer) wake() {
	select {
	case f.kick <- struct{}{}:
	default:
	}
}

// write does the Writes of one frame, after checking what arrived.
func (f *filer) write(w *fileWrite) {
	rest := w.data
	for k, d := range w.descs {
		if w.codes[k] != errs.OK {
			rest = rest[min(len(rest), int(d.Length)):]
			continue
		}
		p := rest[:d.Length]
		rest = rest[d.Length:]
		switch {
		case f.t.sums && digest(p) != w.sums[k]:
			w.codes[k] = errs.Checksum
			if w.abort != errs.OK {
				w.codes[k] = w.abort
			}
		case !f.t.sums && w.abort != errs.OK:
			w.codes[k] = w.abort
		default:
			w.codes[k] = f.writeAt(d, p)
		}
	}
	if w.at != nil {
		f.t.writePlaces.release(w.at)
	}
	f.t.finish(w.st, w.codes, w.bytes)
	f.t.post()
}

func (f *filer) writeAt(d wire.Desc, p []byte) errs.Code {
	pin, code := f.t.memory.Pin(transport.Write, segment.Key(d.Key), d.Offset, uint64(d.Length))
	if code != errs.OK {
		return code
	}
	defer pin.Unpin()
	if pin.File == nil {
		move(pin.Bytes, p)
		return errs.OK
	}
	if _, err := pin.File.WriteAt(p, pin.Offset); err != nil {
		f.t.note.failed("write", d.Key, err)
		return fileCode(err)
	}
	return errs.OK
}

// fileCode is what a peer is told of a file's error.
func fileCode(err error) errs.Code {
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF): // it is shorter than when it was registered: not what was published
		return errs.Stale
	case errors.Is(err, os.ErrClosed):
		return errs.Revoked
	case errors.Is(err, os.ErrPermission):
		return errs.Denied
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return errs.Overloaded
	}
	return errs.Internal
}

// read answers some Reads of one stream, and reports whether there may be more.
func (f *filer) read() bool {
	st, reads := f.t.takeFiles()
	if st == nil {
		return false
	}
	out := &fileData{st: st, first: reads.first, outs: make([]wire.Outcome, len(reads.taken))}
	need := false
	for k := range reads.taken {
		q := &reads.taken[k]
		if out.outs[k].Code = errs.Canceled; !q.canceled {
			out.outs[k].Code = f.t.resolves(transport.Read, q.desc)
		}
		need = need || out.outs[k].Code == errs.OK && q.desc.Length > 0
	}
	if need {
		if out.at = f.acquire(f.t.readPlaces, f.writes); out.at == nil {
			return false
		}
		out.data = out.at.data[:0]
	}
	for k := range reads.taken {
		f.readInto(out, k, reads.taken[k].desc)
	}
	if out.at != nil {
		f.t.readPlaces.turn(out.at, true)
	}
	f.t.ready(out)
	f.t.post()
	return true
}

// readInto makes answer k, whose Read may still be possible.
func (f *filer) readInto(out *fileData, k int, d wire.Desc) {
	at := len(out.data)
	p := out.data[at:at]
	if o := &out.outs[k]; o.Code == errs.OK {
		p = out.data[at : at+int(d.Length)]
		if o.Code = f.readAt(d, p); o.Code != errs.OK {
			p = p[:0]
		}
		o.Length = uint32(len(p))
	}
	out.data = out.data[:at+len(p)]
	if f.t.sums {
		out.sums = append(out.sums, digest(p))
	}
}

func (f *filer) readAt(d wire.Desc, p []byte) errs.Code {
	pin, code := f.t.memory.Pin(transport.Read, segment.Key(d.Key), d.Offset, uint64(d.Length))
	if code != errs.OK {
		return code
	}
	defer pin.Unpin()
	if pin.File == nil {
		move(p, pin.Bytes)
		return errs.OK
	}
	if n, err := pin.File.ReadAt(p, pin.Offset); n < len(p) {
		f.t.note.failed("read", d.Key, err)
		return fileCode(err)
	}
	return errs.OK
}

// fileReads are Reads taken from a stream.
type fileReads struct {
	first uint64
	taken []readReq
}

// takeFiles removes from one file stream as many Reads as one frame answers.
func (t *target) takeFiles() (*inStream, fileReads) {
	t.mu.Lock()
	defer t.mu.Unlock()
	m := &t.mu
	waiting := m.reading & fileStreams
	if waiting == 0 {
		return nil, fileReads{}
	}
	id := nextBit(waiting, m.fileTurn)
	m.fileTurn = id + 1
	st := m.streams[id]
	out := fileReads{first: st.reads.head}
	for size := 0; st.reads.len() > 0 && len(out.taken) < takeMax; {
		q := *st.reads.at(st.reads.head)
		if size += int(q.desc.Length); size > wire.MaxFrame {
			break
		}
		out.taken = append(out.taken, q)
		t.pop(st)
	}
	if st.reads.len() == 0 {
		m.reading &^= 1 << id
	}
	return st, out
}

// ready queues a Data frame made from files. The queue is bounded by what was
// granted to the peer, and its bytes by the lane's buffers.
func (t *target) ready(d *fileData) {
	t.mu.Lock()
	t.mu.ready = append(t.mu.ready, d)
	t.mu.Unlock()
}

// sendFiles plans the Data frames that are ready, as long as they fit.
func (t *target) sendFiles() {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := &t.snd
	for len(t.mu.ready) > 0 && s.slots() >= 4 && s.room() >= frameRoom+takeMax*(wire.OutcomeSize+wire.SumSize) {
		d := t.mu.ready[0]
		if s.payload > 0 && s.payload+len(d.data) > planPayload {
			return
		}
		t.mu.ready = append(t.mu.ready[:0], t.mu.ready[1:]...)
		h := t.dataHeader(d.st, d.first, len(d.outs))
		h.Payload = uint32(len(d.data))
		head := s.control(h)
		for k, out := range d.outs {
			out.Put(head[wire.HeaderSize+k*wire.OutcomeSize:])
		}
		wire.Seal(head)
		if len(d.data) > 0 {
			s.refer(d.data, -1)
		}
		trailer := s.reserve(h.TrailerSize())
		for k, sum := range d.sums {
			binary.LittleEndian.PutUint64(trailer[k*wire.SumSize:], sum)
		}
		putEnd(trailer[len(trailer)-wire.EndSize:], wire.EndWhole)
		s.payload += len(d.data)
		if d.at != nil {
			t.plan.files = append(t.plan.files, d.at)
		}
	}
}
