package shm

import (
	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/mem"
	"github.com/tideway-io/tideway/transport"
)

// readLane is a queue of READs by attach to one peer, and the task that does
// them: many short ones with one system call, long ones in steps.
type readLane struct {
	e      *endpoint
	queue  []*job // guarded by endpoint.mu
	active bool   // the pool has it; guarded by endpoint.mu
	batch  []*job // the worker's: those of the step under way
}

func (e *endpoint) lane(c transport.Class) *readLane {
	if c < urgentClasses {
		return &e.reads[0]
	}
	return &e.reads[1]
}

// wake makes sure that the pool has the lane, before a job is queued there; the
// lock is held.
func (l *readLane) wake() bool {
	if !l.active {
		class := transport.Class(0)
		if l == &l.e.reads[1] {
			class = urgentClasses
		}
		l.active = l.e.t.moves.put(l, class, usual())
	}
	return l.active
}

// tooMuch refuses what the workers have no room for.
func (t *Transport) tooMuch() error {
	return refuse(errs.Overloaded, "post", "%d slices of all peers are queued, which is the limit: post again after a completion", maxMoves)
}

// step implements task.
func (l *readLane) step() bool {
	e := l.e
	e.mu.Lock()
	if l.active = len(l.queue) > 0; !l.active {
		e.mu.Unlock()
		return false
	}
	l.batch = append(l.batch[:0], l.queue[:min(len(l.queue), maxBatch)]...)
	e.mu.Unlock()

	x, r := e.t.newEndings(), e.t.reader()
	n := l.gather(r)
	whole, why := 0, error(nil)
	if len(r.pieces) > 0 {
		whole, why = r.run(e.pid, &e.life)
	}
	e.mu.Lock()
	done := l.conclude(x, l.batch[:n], whole, why)
	left := copy(l.queue, l.queue[done:])
	clear(l.queue[left:])
	l.queue = l.queue[:left]
	e.mu.Unlock()
	clear(l.batch)
	e.t.put(r)
	e.report(x)
	return true
}

// gather adds to r what fits into one step, and returns how many jobs that is
// about, those included that end without being read.
func (l *readLane) gather(r *reader) (n int) {
	for left := uint64(mem.Step); n < len(l.batch) && left > 0; n++ {
		j := l.batch[n]
		j.code.Store(j.stop.Load())
		if j.code.Load() == 0 && !j.b.valid() {
			j.code.Store(uint32(errs.Revoked))
		}
		if j.code.Load() != 0 {
			continue
		}
		from := j.next.Load()
		to := min(from+left, uint64(len(j.slice.Local)))
		r.add(j.slice.Local[from:to], j.b.addr+j.slice.Offset+from)
		left -= to - from
		j.next.Store(to)
	}
	return n
}

// conclude ends those of the batch that are through, and returns how many they
// are: all but one that has more steps to go, or those behind one that could not
// be read. The lock is held.
func (l *readLane) conclude(x *endings, batch []*job, whole int, why error) (done int) {
	for _, j := range batch {
		code := errs.Code(j.code.Load())
		switch {
		case code != errs.OK:
		case whole > 0:
			whole--
			if code = j.b.read(nil); code == errs.OK && j.next.Load() < uint64(len(j.slice.Local)) {
				return done
			}
		default:
			l.e.end(x, j, transport.Completion{Code: j.b.read(why)})
			l.undo(batch[done+1:])
			return done + 1
		}
		l.e.end(x, j, transport.Completion{Code: code})
		done++
	}
	return done
}

// undo lets jobs that were gathered and not read be gathered again: they are at
// their beginning, since only the first of a queue is ever further.
func (l *readLane) undo(batch []*job) {
	for _, j := range batch {
		j.next.Store(0)
		j.code.Store(0)
	}
}

// read says how a read out of the buffer's memory by attach went.
func (b *binding) read(err error) errs.Code {
	code := unread(err)
	if code != errs.LaneLost && !b.valid() {
		return errs.Revoked
	}
	return code
}
