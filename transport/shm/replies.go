package shm

import (
	"errors"
	"io"
	"syscall"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/transport"
)

const (
	// maxTick is how often a peer that is waited for is looked at.
	maxTick = 250 * time.Millisecond
	// grace is how long the target has to say that it has stopped reading a slice
	// that was told to end early: a step takes it some 100 µs.
	grace = 2 * time.Second
)

// receive takes the peer's messages until the link ends, and returns why.
func (e *endpoint) receive() error {
	b := make([]byte, maxMessage)
	var m message
	for {
		n, fd, err := e.link.p.Receive(b)
		if err != nil {
			return err
		}
		e.heard.Store(e.t.env.Now().UnixNano())
		if err = m.parse(b[:n]); err == nil {
			err = e.handle(&m, fd)
		}
		closeFD(fd)
		if err != nil {
			e.t.log.Warn("same-host peer breaks the rules", "pid", e.pid, "err", err)
			return err
		}
	}
}

// hungUp reports whether the end of a link is the peer's doing. Who closes a link
// has ended the reads under way before, and so has a process that ends.
func hungUp(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET)
}

func (e *endpoint) handle(m *message, fd int) error {
	x := e.t.newEndings()
	defer e.report(x)
	switch m.kind {
	case kindAnswer:
		e.answered(x, m)
	case kindFetched:
		e.fetched(x, m, fd)
	case kindPulled:
		e.pulled(x, m)
	case kindRevoked:
		e.revoked(x, m.id)
	case kindDrain:
		e.mu.Lock()
		e.mu.draining = true
		e.out(0)
		e.mu.Unlock()
	default:
		return refuse(errs.Invalid, "receive", "a target sent a message of kind %d", m.kind)
	}
	return nil
}

// ask asks the owner about a buffer of which the table says nothing; the lock is
// held.
func (e *endpoint) ask(j *job) {
	e.mu.asked++
	j.id = e.mu.asked
	e.mu.asks[j.id] = j
	s := &j.slice
	m := message{head: head{kind: kindAsk}, id: j.id, op: s.Op, key: s.Buffer.Key, offset: s.Offset, size: uint64(len(s.Local))}
	e.link.send(m.append(nil), -1)
}

// answered takes the owner's word.
func (e *endpoint) answered(x *endings, m *message) {
	e.mu.Lock()
	defer e.mu.Unlock()
	j := e.mu.asks[m.id]
	if j == nil {
		return // it has ended meanwhile
	}
	if m.code == errs.OK {
		m.code = errs.Unsupported // allowed, but the table had no room for it
	}
	e.end(x, j, transport.Completion{Code: m.code})
}

// pulled takes the ends of slices that the target has pulled.
func (e *endpoint) pulled(x *endings, m *message) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range int(m.count) {
		r := m.result(i)
		if int(r.slot) >= len(e.mu.jobs) {
			continue
		}
		j := e.mu.jobs[r.slot]
		if j.phase != pulling || j.seq != r.seq {
			continue // it has ended meanwhile
		}
		switch {
		case r.code == errs.OK:
		case j.by != errs.OK:
			r.code = j.by
		case r.code == errs.Canceled: // not by us
			r.code = errs.LaneLost
		}
		e.end(x, j, transport.Completion{Code: r.code})
	}
}

// withdraw makes a job end early with code, now or as soon as it is quiet. The
// lock is held.
func (e *endpoint) withdraw(x *endings, j *job, code errs.Code) {
	switch j.phase {
	case running, reading:
		j.stop.CompareAndSwap(0, uint32(code))
	case asking, opening:
		e.end(x, j, transport.Completion{Code: code})
	case pulling:
		if e.takeBack(j) {
			e.end(x, j, transport.Completion{Code: code})
			return
		}
		// The target is reading it at this moment, or has just ended: its answer
		// says which.
		if j.by == errs.OK {
			j.by, j.since = code, e.t.env.Now()
		}
	}
}

// takeBack takes a slice back that the target has not claimed, or else tells it
// to stop. An honest target changes the state only once between two looks.
func (e *endpoint) takeBack(j *job) bool {
	for range 100 {
		if e.desk.change(j.index, j.seq, slotPosted, slotFree) {
			return true
		}
		if e.desk.change(j.index, j.seq, slotClaimed, slotAborted) {
			return false
		}
		if s := e.desk.state(j.index, j.seq); s != slotPosted && s != slotClaimed {
			return false
		}
	}
	return false
}

// giveUp ends a job that the target does not answer for. While the target may
// still be inside a read that it has claimed, the slice is in doubt: what such a
// read brings, the target clears when it goes on. The lock is held.
func (e *endpoint) giveUp(x *endings, j *job, gone bool) {
	doubt := !gone && e.desk.state(j.index, j.seq) != slotDone
	e.end(x, j, transport.Completion{Code: j.by, InDoubt: doubt})
}

// every is how often a peer that is waited for is looked at.
func (e *endpoint) every() time.Duration {
	return max(min(e.t.env.Limits.StallTimeout/4, maxTick), time.Millisecond)
}

// tick looks at a peer that is waited for.
func (e *endpoint) tick() {
	x := e.t.newEndings()
	now, stalled := e.t.env.Now(), false
	e.mu.Lock()
	if e.mu.waiting > 0 { // else the desk may be gone
		if p := e.desk.progress().Load(); p != e.mu.progress {
			e.mu.progress = p
			e.heard.Store(now.UnixNano())
		}
		for _, j := range e.mu.jobs {
			if j.phase == pulling && j.by != errs.OK && now.Sub(j.since) >= grace {
				e.giveUp(x, j, false)
			}
		}
		stalled = now.UnixNano()-e.heard.Load() >= int64(e.t.env.Limits.StallTimeout)
		e.timer.Reset(e.every())
	}
	e.mu.Unlock()
	e.report(x)
	if stalled {
		e.lose(errs.Unresponsive, nil)
	}
}
