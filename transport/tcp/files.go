package tcp

import (
	"encoding/binary"
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/wire"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
)

// Files are slow and may hang, so nothing waits for them but the streams that
// name them: payload passes through buffers of one frame each, at most
// laneFiles of a lane and allFiles of the transport, and one worker per lane
// makes the system calls. When a lane's buffers are all taken its receiver
// waits, which is why initiators give files a lane of their own.
const (
	laneFiles = 4
	allFiles  = 64
)

// fileWrite is a Write frame for files that has arrived.
type fileWrite struct {
	st    *inStream
	descs []wire.Desc
	data  []byte // of a frame buffer
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
	data  []byte // of a frame buffer
}

// fileStreams is a bit for each stream whose kind of target is a file.
const fileStreams = uint64(0xff)<<(wire.ToFile<<3) | uint64(0xff)<<(wire.ToFile<<3|1<<5)

// filer is the part of a target that serves files. Its worker exists once there
// was something for it.
type filer struct {
	t      *target
	ending <-chan struct{} // the lane's
	post   func()          // has the lane send
	places chan struct{}   // a token per frame buffer that the lane has or waits for
	held   atomic.Int32    // frame buffers that the lane has
	writes chan *fileWrite
	kick   chan struct{} // Reads wait
	ended  sync.WaitGroup
}

// files returns the filer, started. It is called by the receiver.
func (t *target) files() *filer {
	if t.filer == nil {
		f := &filer{t: t, ending: t.ending, post: t.post, places: make(chan struct{}, laneFiles), writes: make(chan *fileWrite, laneFiles), kick: make(chan struct{}, 1)}
		f.ended.Go(f.work)
		t.filer = f
	}
	return t.filer
}

// acquire takes a frame buffer, waiting for one if it must; nil: the lane ends.
// While the worker waits it does the Writes that come: their buffers may be the
// ones that it waits for. The receiver gives no writes.
func (f *filer) acquire(writes <-chan *fileWrite) []byte {
	for _, tokens := range []chan struct{}{f.places, f.t.places} {
		for taken := false; !taken; {
			select {
			case tokens <- struct{}{}:
				taken = true
			case w := <-writes:
				f.write(w)
			case <-f.ending:
				return nil
			}
		}
	}
	f.held.Add(1)
	return f.t.rcv.pools.big()
}

// release gives a frame buffer back.
func (f *filer) release(b []byte) {
	f.t.rcv.pools.putBig(b)
	f.held.Add(-1)
	<-f.t.places
	<-f.places
}

// close waits for the worker and gives back what the lane, which has ended, still
// has in its queues.
func (f *filer) close() {
	f.ended.Wait()
	for range f.held.Load() {
		<-f.t.places
	}
}

// beginFile prepares for a Write frame whose target is a file: its payload goes
// to a frame buffer. The receiver may wait here; the lane's watcher then sends
// signs of life for it.
func (t *target) beginFile(st *inStream, h *wire.Header, meta []byte, bytes uint64) error {
	t.busy.Store(true)
	b := t.files().acquire(nil)
	t.busy.Store(false)
	if b == nil {
		return errs.New(errs.Closed, "receive writes", "the lane ends")
	}
	w := &fileWrite{st: st, data: b[:h.Payload], descs: make([]wire.Desc, h.Count), bytes: bytes}
	for k := range w.descs {
		w.descs[k] = wire.ParseDesc(meta[k*wire.DescSize:])
	}
	t.write.st, t.write.file = st, w
	t.partial.Store(true)
	t.rcv.expect(append(t.rcv.lens[:0], h.Payload), false)
	return nil
}

// endFile hands a Write frame that has arrived to the worker. There is room:
// the queue is as long as the lane has buffers.
func (t *target) endFile(trailer []byte, abort errs.Code) {
	w := t.write.file
	t.write.file, t.write.st = nil, nil
	t.partial.Store(false)
	if w.abort = abort; t.sums {
		w.sums = parseSums(trailer, len(w.descs))
	}
	t.filer.writes <- w
}

// work is the worker.
func (f *filer) work() {
	for {
		select {
		case <-f.ending:
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
	codes := make([]errs.Code, len(w.descs))
	rest := w.data
	for k, d := range w.descs {
		p := rest[:d.Length]
		rest = rest[d.Length:]
		switch {
		case f.t.sums && digest(p) != w.sums[k]:
			codes[k] = errs.Checksum
			if w.abort != errs.OK {
				codes[k] = w.abort
			}
		case !f.t.sums && w.abort != errs.OK:
			codes[k] = w.abort
		default:
			codes[k] = f.writeAt(d, p)
		}
	}
	f.release(w.data)
	f.t.finish(w.st, codes, w.bytes)
	f.post()
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
	case errors.Is(err, io.EOF): // it is shorter than when it was registered: not what was published
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
	b := f.acquire(f.writes)
	if b == nil {
		return false
	}
	out := &fileData{st: st, first: reads.first, data: b[:0]}
	for k := range reads.taken {
		q := &reads.taken[k]
		at := len(out.data)
		p := b[at : at+int(q.desc.Length)]
		code := errs.Canceled
		if !q.canceled {
			code = f.readAt(q.desc, p)
		}
		if code != errs.OK {
			p = p[:0]
		}
		out.data = b[:at+len(p)]
		out.outs = append(out.outs, wire.Outcome{Length: uint32(len(p)), Code: code})
		if f.t.sums {
			out.sums = append(out.sums, digest(p))
		}
	}
	f.t.ready(out)
	f.post()
	return true
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

// ready queues a Data frame made from files. The queue is bounded by the lane's
// frame buffers.
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
		s.refer(d.data, -1)
		trailer := s.reserve(h.TrailerSize())
		for k, sum := range d.sums {
			binary.LittleEndian.PutUint64(trailer[k*wire.SumSize:], sum)
		}
		putEnd(trailer[len(trailer)-wire.EndSize:], wire.EndWhole)
		s.payload += len(d.data)
		t.plan.files = append(t.plan.files, d.data)
	}
}
