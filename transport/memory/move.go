package memory

import (
	"errors"
	"io"
	"os"
	"sync/atomic"
	"syscall"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/mem"
	"github.com/tideway-io/tideway/topology"
	"github.com/tideway-io/tideway/transport"
)

// job is a slice that a worker does.
type job struct {
	e     *endpoint
	by    *pool
	slice transport.Slice
	stop  atomic.Uint32 // the errs.Code to end with at the next step, 0: go on
	at    int           // index in endpoint.mu.live
	done  [1]transport.Completion
}

// queue gives a slice to the workers. The job counts as a Post of its own.
func (e *endpoint) queue(s *transport.Slice) error {
	if err := e.enter(); err != nil {
		return err
	}
	e.mu.Lock()
	var j *job
	if n := len(e.mu.spare); n > 0 {
		j, e.mu.spare = e.mu.spare[n-1], e.mu.spare[:n-1]
	} else {
		j = &job{e: e}
	}
	j.slice, j.by = *s, &e.from.large
	if s.Buffer.Location == topology.File {
		j.by = &e.from.files
	}
	if e.mu.closed { // since enter, and Close did not see this job
		j.stop.Store(uint32(errs.Closed))
	}
	j.at = len(e.mu.live)
	e.mu.live = append(e.mu.live, j)
	e.mu.Unlock()
	e.inFlight.Add(uint64(len(s.Local)))
	if j.by.put(j) {
		return nil
	}
	j.retire()
	e.leave()
	return refuse(errs.Overloaded, "post", "%d slices of this engine are queued, which is the limit: post again after a completion", maxQueued)
}

// run moves the job's bytes, reports it and frees it.
func (j *job) run() {
	e := j.e
	j.done[0] = e.move(&j.slice, &j.stop)
	in, out := moved(&j.slice, j.done[0].Code)
	e.bytesIn.Add(in)
	e.bytesOut.Add(out)
	j.by.done()
	e.from.env.Sink.Complete(j.done[:])
	j.retire()
	e.leave()
}

// retire takes the job off the endpoint's list and keeps it for the next.
func (j *job) retire() {
	e := j.e
	e.inFlight.Add(-uint64(len(j.slice.Local)))
	e.mu.Lock()
	defer e.mu.Unlock()
	last := len(e.mu.live) - 1
	e.mu.live[j.at] = e.mu.live[last]
	e.mu.live[j.at].at = j.at
	e.mu.live[last] = nil
	e.mu.live = e.mu.live[:last]
	j.slice, j.done[0] = transport.Slice{}, transport.Completion{}
	j.stop.Store(0)
	e.mu.spare = append(e.mu.spare, j)
}

// move does one slice, a step at a time where it is long. Whether all of it is
// allowed is asked before the first byte.
func (e *endpoint) move(s *transport.Slice, stop *atomic.Uint32) transport.Completion {
	c := transport.Completion{Tag: s.Tag}
	size := uint64(len(s.Local))
	if size <= mem.Step {
		if c.Code = e.stopped(stop); c.Code == errs.OK {
			c.Code, c.Err = e.step(s, 0, size)
		}
		return c
	}
	whole, code := e.pin(s, 0, size)
	if code != errs.OK {
		c.Code = code
		return c
	}
	back := backward(s, &whole)
	whole.Unpin()
	for done := uint64(0); done < size && c.Code == errs.OK; done += mem.Step {
		from, to := done, min(done+mem.Step, size)
		if back {
			from, to = size-to, size-from
		}
		if c.Code = e.stopped(stop); c.Code == errs.OK {
			c.Code, c.Err = e.step(s, from, to)
		}
	}
	return c
}

// stopped says whether to go on.
func (e *endpoint) stopped(stop *atomic.Uint32) errs.Code {
	if e.to.in.isClosed() {
		return errs.LaneLost
	}
	if stop != nil {
		return errs.Code(stop.Load())
	}
	return errs.OK
}

// backward says whether the steps must go from the end to the beginning, since
// the two ranges are of the same memory and overlap.
func backward(s *transport.Slice, remote *transport.Pin) bool {
	dst, src := s.Local, remote.Bytes
	if s.Op == transport.Write {
		dst, src = src, dst
	}
	return remote.File == nil && mem.Backward(dst, src, len(s.Local))
}

// step moves the bytes [from, to) of a slice, at most mem.Step of them.
func (e *endpoint) step(s *transport.Slice, from, to uint64) (errs.Code, error) {
	pin, code := e.pin(s, from, to-from)
	if code != errs.OK {
		return code, nil
	}
	var err error
	local := s.Local[from:to]
	switch {
	case pin.File != nil:
		err = moveFile(s.Op, &pin, local)
	case s.Op == transport.Read:
		copy(local, pin.Bytes)
	default:
		copy(pin.Bytes, local)
	}
	pin.Unpin()
	if err != nil {
		return failed(err)
	}
	return errs.OK, nil
}

// pin asks the target for the n bytes that start from bytes into the slice.
func (e *endpoint) pin(s *transport.Slice, from, n uint64) (transport.Pin, errs.Code) {
	at := s.Offset + from // the whole range was asked for first, and that refuses what wraps around
	if s.Buffer.Key != 0 {
		return e.to.env.Memory.Pin(s.Op, s.Buffer.Key, at, n)
	}
	if at+s.Buffer.Addr < at { // another buffer may be there
		return transport.Pin{}, errs.OutOfRange
	}
	return e.to.env.Memory.PinAddr(s.Op, s.Buffer.Addr+at, n)
}

func moveFile(op transport.Op, pin *transport.Pin, local []byte) error {
	if op == transport.Write {
		_, err := pin.File.WriteAt(local, pin.Offset)
		return err
	}
	n, err := pin.File.ReadAt(local, pin.Offset)
	if n == len(local) {
		return nil // io.EOF may come with the last byte
	}
	return err
}

// failed gives a file's error the code that a peer can act on.
func failed(err error) (errs.Code, error) {
	code := errs.Unreachable
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		code = errs.Stale // it is shorter than when it was registered
	case errors.Is(err, os.ErrClosed):
		code = errs.Revoked
	case errors.Is(err, os.ErrPermission):
		code = errs.Denied
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		code = errs.Overloaded
	}
	e := refuse(code, "move", "the file behind the buffer")
	e.Stage, e.Err = "apply", err
	return code, e
}
