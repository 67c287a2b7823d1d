package shm

import (
	"sync/atomic"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/mem"
	"github.com/tideway-io/tideway/transport"
)

// phase is what a job is doing.
type phase uint8

const (
	spare   phase = iota // not in use
	running              // workers copy it, and they end it
	reading              // a worker reads it by attach, and ends it
	asking               // waits for the owner's word on a buffer
	opening              // waits for memory to map
	pulling              // waits for the target to pull it
	ended                // is about to be reported
)

// waits reports whether it is the peer's turn.
func (p phase) waits() bool { return p == asking || p == opening || p == pulling }

// job is a slice that Post did not end by itself.
type job struct {
	e     *endpoint
	index uint32 // in endpoint.mu.jobs, and its slot on the desk
	slice transport.Slice
	b     *binding // nil while asking

	// Guarded by endpoint.mu:
	phase phase
	seq   uint32    // of its use of the slot
	id    uint64    // of what it asked
	by    errs.Code // what it is to end with early, OK: nothing
	since time.Time // when the target was told

	// Of a job that workers have:
	stop atomic.Uint32 // what it is to end with early, 0: nothing
	next atomic.Uint64 // the first byte that no worker has taken
	left atomic.Int32  // workers that have not ended
	code atomic.Uint32 // of the first step that failed
	done [1]transport.Completion
}

// newJob makes a job of a slice and counts it as a Post, if there is room. What
// the peer must know of one that asks or opens is on its way when it returns. r
// is filled in for one that is pulled. work says that the caller must give the
// job to the workers.
func (e *endpoint) newJob(s *transport.Slice, b *binding, ph phase, r *request) (j *job, work bool, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.unfit(); err != nil {
		return nil, false, err
	}
	if ph == reading && !e.lane(s.Class).wake() {
		return nil, false, e.t.tooMuch()
	}
	if n := len(e.mu.spare); n > 0 {
		j, e.mu.spare = e.mu.spare[n-1], e.mu.spare[:n-1]
	} else if n := len(e.mu.jobs); n < deskSlots {
		j = &job{e: e, index: uint32(n)}
		e.mu.jobs = append(e.mu.jobs, j)
	} else {
		return nil, false, refuse(errs.Overloaded, "post", "%d slices to this peer are under way, which is the limit: post again after a completion", deskSlots)
	}
	j.slice, j.b = *s, b
	e.mu.inside++
	e.inFlight.Add(uint64(len(s.Local)))
	e.enterPhase(j, ph)
	switch ph {
	case reading:
		l := e.lane(s.Class)
		l.queue = append(l.queue, j)
	case asking:
		e.ask(j)
	case opening:
		if !e.open(j) { // it came meanwhile
			e.enterPhase(j, running)
		}
	case pulling:
		j.seq++
		e.desk.slot(j.index).Store(uint64(j.seq)<<32 | slotPosted)
		*r = request{slot: j.index, seq: j.seq, key: b.key, offset: s.Offset, size: uint64(len(s.Local)), addr: uint64(mem.Addr(s.Local))}
	}
	return j, j.phase == running, nil
}

// enterPhase moves a job to its next phase; the lock is held.
func (e *endpoint) enterPhase(j *job, ph phase) {
	switch before, after := j.phase.waits(), ph.waits(); {
	case after && !before:
		if e.mu.waiting++; e.mu.waiting == 1 {
			e.heard.Store(e.t.env.Now().UnixNano())
			e.timer.Reset(e.every())
		}
	case before && !after:
		e.mu.waiting--
	}
	j.phase = ph
}

// discard takes back a job that was not started; the lock is not held.
func (e *endpoint) discard(j *job) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.recycle(j)
	e.out(1)
}

// recycle frees a job; the lock is held.
func (e *endpoint) recycle(j *job) {
	e.inFlight.Add(-uint64(len(j.slice.Local)))
	j.slice, j.b, j.phase, j.by, j.since = transport.Slice{}, nil, spare, errs.OK, time.Time{}
	j.stop.Store(0)
	j.next.Store(0)
	j.code.Store(0)
	e.mu.spare = append(e.mu.spare, j)
}

// endings are jobs that have ended, to be reported together without the lock.
type endings struct {
	jobs []*job
	done []transport.Completion
}

func (t *Transport) newEndings() *endings {
	if x, ok := t.endings.Get().(*endings); ok {
		return x
	}
	return new(endings)
}

// end takes a job that waits out of where it waits, with the lock held. It is
// report that tells the engine.
func (e *endpoint) end(x *endings, j *job, c transport.Completion) {
	switch j.phase {
	case asking:
		delete(e.mu.asks, j.id)
	case opening:
		j.b.from.forget(j)
	case pulling:
		e.desk.slot(j.index).Store(0)
	}
	e.enterPhase(j, ended)
	c.Tag = j.slice.Tag
	x.jobs, x.done = append(x.jobs, j), append(x.done, c)
}

// report tells the engine of jobs that have ended, and frees them and x.
func (e *endpoint) report(x *endings) {
	if len(x.jobs) > 0 {
		for i, j := range x.jobs {
			e.count(j.slice.Op, len(j.slice.Local), x.done[i].Code)
		}
		e.t.env.Sink.Complete(x.done)
		e.mu.Lock()
		for _, j := range x.jobs {
			e.recycle(j)
		}
		e.out(len(x.jobs))
		e.mu.Unlock()
	}
	clear(x.jobs)
	clear(x.done)
	x.jobs, x.done = x.jobs[:0], x.done[:0]
	e.t.endings.Put(x)
}

// count adds what a slice moved to RailState.
func (e *endpoint) count(op transport.Op, n int, code errs.Code) {
	switch {
	case code != errs.OK:
	case op == transport.Read:
		e.bytesIn.Add(uint64(n))
	default:
		e.bytesOut.Add(uint64(n))
	}
}

// wideSlice is how long a copy must be for several workers to share it.
const wideSlice = 64 << 20

// schedule gives a running job to the workers; false: they have too much to do.
func (j *job) schedule() bool {
	n, workers := 1, usual()
	if len(j.slice.Local) >= wideSlice {
		n, workers = wide(), wide()
	}
	j.left.Store(int32(n))
	for i := range n {
		if j.e.t.moves.put(j, j.slice.Class, workers) {
			continue
		}
		if i == 0 {
			return false
		}
		if j.left.Add(int32(i-n)) == 0 { // those that have it are through already
			j.finish()
		}
		break
	}
	return true
}

// step implements task: it moves the next part of the slice. Several workers may
// be in it.
func (j *job) step() bool {
	size := uint64(len(j.slice.Local))
	from := j.next.Add(mem.Step) - mem.Step
	code := errs.Code(j.stop.Load())
	if code == errs.OK && from < size && j.code.Load() == 0 {
		if code = j.move(from, min(from+mem.Step, size)); code == errs.OK {
			return true
		}
	}
	if code != errs.OK {
		j.code.CompareAndSwap(0, uint32(code))
	}
	if j.left.Add(-1) == 0 {
		j.finish()
	}
	return false
}

// move copies the bytes [from, to) of the slice.
func (j *job) move(from, to uint64) errs.Code {
	m := j.b.from
	if !m.use() { // the owner has revoked it
		return errs.Revoked
	}
	defer m.drop()
	return j.b.copy(j.slice.Op, j.slice.Local[from:to], j.slice.Offset+from)
}

// finish reports a running job.
func (j *job) finish() {
	e := j.e
	j.done[0] = transport.Completion{Tag: j.slice.Tag, Code: errs.Code(j.code.Load())}
	e.count(j.slice.Op, len(j.slice.Local), j.done[0].Code)
	e.t.env.Sink.Complete(j.done[:])
	e.discard(j)
}
