package core

import "github.com/tideway-io/tideway/errs"

// place makes transfer ti wait on the first rung, from its present one down,
// that takes work now; if none does, on the first that exists. It reports
// whether there is one.
func (s *Shard) place(now Time, ti uint32, front bool) bool {
	t := &s.transfers[ti]
	found, rung := uint32(0), t.rung
	for r := t.rung; r < t.rungs; r++ {
		pi := s.pathOf(t.ladder[r])
		if pi == 0 {
			continue
		}
		takes := s.paths[pi].takes(now)
		if found == 0 || takes {
			found, rung = pi, r
		}
		if takes {
			break
		}
	}
	if found == 0 {
		return false
	}
	t.rung = rung
	s.touch(found)
	if t.queued && t.queuedOn == found {
		return true
	}
	s.dequeue(ti)
	s.enqueue(found, ti, front)
	return true
}

// takes reports whether a transfer that has other paths should wait for this one.
func (p *path) takes(now Time) bool {
	switch p.state {
	case Up, Idle:
		return true
	case Connecting:
		return !p.rest.Trial()
	case Draining, Resting:
		return !p.rest.Resting(int64(now))
	}
	return false
}

// setback charges transfer ti with a failed try and lets it go on where the
// verdict says, or end.
func (s *Shard) setback(now Time, ti uint32, v verdict, a Attempt, out *Actions) {
	t := &s.transfers[ti]
	t.try++
	t.note(a)
	if t.done-t.mark >= restoreSlices*s.cfg.SliceBytes {
		t.retries = 0
	}
	t.mark = t.done
	if v == wait && s.hasNext(t) {
		v = next
	}
	switch {
	case v == final:
		s.fail(ti, a, out)
		return
	case t.ladder[t.rung] != a.Path: // it has left that path already
	case v == next || t.retries >= s.cfg.Retries:
		t.rung++
	default:
		t.retries++
	}
	if !s.place(now, ti, false) {
		s.fail(ti, a, out)
	}
}

// note remembers a failed try; of very many those in the middle are forgotten.
func (t *transfer) note(a Attempt) {
	if len(t.attempts) == maxAttempts {
		t.attempts = append(t.attempts[:maxAttempts/2], t.attempts[maxAttempts/2+1:]...)
	}
	t.attempts = append(t.attempts, a)
}

// hasNext reports whether t has another path to go to.
func (s *Shard) hasNext(t *transfer) bool {
	for r := t.rung + 1; r < t.rungs; r++ {
		if s.pathOf(t.ladder[r]) != 0 {
			return true
		}
	}
	return false
}

// fail makes transfer ti end with a's reason: nothing more is issued, what is in
// flight is cancelled, and it ends when that is quiet. Only the first reason counts.
func (s *Shard) fail(ti uint32, a Attempt, out *Actions) {
	t := &s.transfers[ti]
	if t.code != errs.OK {
		return
	}
	if a.Code == errs.OK {
		a.Code = errs.Internal // whoever reported it does not know what failed
	}
	t.code, t.err, t.endedOn = a.Code, a.Err, a.Path
	s.dequeue(ti)
	for i := t.again; i != 0; {
		next := s.slices[i].next
		s.dropSlice(i)
		i = next
	}
	t.again = 0
	for i := t.liveHead; i != 0; i = s.slices[i].next {
		out.cancel(s.paths[s.slices[i].path].id, s.tag(i))
	}
	s.settle(ti, out)
}

// settle ends transfer ti if nothing is left of it.
func (s *Shard) settle(ti uint32, out *Actions) {
	t := &s.transfers[ti]
	if t.live == 0 && (t.code != errs.OK || t.done == t.length) {
		s.end(ti, out)
	}
}

// end reports the one end of transfer ti and frees its slot.
func (s *Shard) end(ti uint32, out *Actions) {
	t := &s.transfers[ti]
	e := grow(&out.Ends)
	e.Owner, e.Bytes, e.Path = t.owner, t.done, t.endedOn
	if t.code != errs.OK {
		e.Code, e.Err, e.InDoubt = t.code, t.err, t.inDoubt
		e.Retryable = !t.inDoubt && ruleOf(t.code).retryable
		t.err = nil
	}
	if t.attempts != nil {
		e.Attempts, t.attempts = t.attempts, nil
	}
	if t.timer != 0 {
		s.clearTimer(transferRef(ti))
	}
	item := t.item
	t.gen++
	t.qnext = s.freeTransfer
	s.freeTransfer = ti
	if item != 0 {
		s.quit(item - 1)
	}
}
