package engine

import (
	"context"
	"sync"
	"time"

	"github.com/tideway-io/tideway/errs"
)

// askTimeout bounds how long the end of a transfer waits for the store's word
// on whether the peer is gone, or lives elsewhere.
const askTimeout = 500 * time.Millisecond

// suspects are the transfers of one segment that could not reach its owner, while
// the store is asked about it.
type suspects struct {
	sync.Mutex
	list   []suspect
	asking bool
}

type suspect struct {
	t   *transfer
	err *errs.Error
}

// suspicious reports whether a transfer that ended with err may have met a peer
// that restarted at another address. Only a store knows; peer to peer the name is
// the address.
func (t *transfer) suspicious(e *Engine, err *errs.Error) bool {
	return e.cfg.Metadata != nil && err.Is(errs.ErrUnreachable) && t.remote.Segment.remote != nil && e.over() == nil
}

// suspect ends t with err, or as stale if the store says that the peer restarted.
func (s *Segment) suspect(t *transfer, err *errs.Error) {
	s.suspects.Lock()
	s.suspects.list = append(s.suspects.list, suspect{t, err})
	first := !s.suspects.asking
	s.suspects.asking = true
	s.suspects.Unlock()
	if first {
		s.e.background(s.ask)
	}
}

// ask asks the store until no transfer waits for the answer.
func (s *Segment) ask() {
	for {
		s.suspects.Lock()
		list := s.suspects.list
		s.suspects.list = nil
		s.suspects.asking = len(list) > 0
		s.suspects.Unlock()
		if len(list) == 0 {
			return
		}
		ctx, cancel := context.WithTimeout(s.e.ctx, askTimeout)
		if err := s.Refresh(ctx); err != nil {
			s.e.log.Debug("ask for a peer that is unreachable", "segment", s.name, "err", err)
		}
		cancel()
		for _, it := range list {
			if why := it.t.restarted(); why != nil {
				it.err.Reason, it.err.Retryable, it.err.Detail, it.err.Err = why.Reason, false, why.Detail, nil
			}
			s.e.fail(it.t, it.err)
		}
	}
}

// restarted says that the owner of t's target has another life than the one that
// t is for, nil if that is not known.
func (t *transfer) restarted() *errs.Error {
	s := t.remote.Segment
	if s.remote == nil {
		return nil
	}
	if d := s.remote.Desc(); d.Incarnation != t.view.desc.Incarnation {
		return errs.New(errs.Restarted, t.op.String(), "the owner restarted, as %v at %s; look the buffer up again", d.Incarnation, d.Addr)
	}
	return nil
}
