package engine

import (
	"context"
	"errors"
	"sync"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/registry"
)

// Notification is a small message between engines.
type Notification struct {
	From string // the sender's segment name; set by the receiver's engine
	Name string // at most 256 bytes
	Body []byte // at most 64 KiB
}

// Bounds of a notification.
const (
	maxNoticeName = 256
	maxNoticeBody = 64 << 10
)

// check finds what is wrong with sending n through s.
func (n *Notification) check(e *Engine, s *Segment) error {
	if s == nil {
		return errs.New(errs.Invalid, "notify", "no segment; open the receiver's")
	}
	if s.e != e {
		return errs.New(errs.Invalid, "notify", "segment %q was opened by another engine", s.name)
	}
	if len(n.Name) > maxNoticeName {
		return errs.New(errs.Invalid, "notify", "name of %d bytes, limit %d", len(n.Name), maxNoticeName)
	}
	if len(n.Body) > maxNoticeBody {
		return errs.New(errs.Invalid, "notify", "body of %d bytes, limit %d; write it into a buffer instead", len(n.Body), maxNoticeBody)
	}
	return nil
}

// notices are the notifications received and not yet taken.
type notices struct {
	queue chan Notification
	once  sync.Once
	ended chan struct{}
}

func (n *notices) init(limit int) {
	n.queue = make(chan Notification, limit)
	n.ended = make(chan struct{})
}

func (n *notices) close() { n.once.Do(func() { close(n.ended) }) }

// deliver is called by the control server, once for each notification.
func (e *Engine) deliver(from, name string, body []byte) errs.Code {
	if err := e.usable("notify"); err != nil {
		return errs.Of(err)
	}
	return e.keep(from, name, body)
}

// keep queues a notification for Receive.
func (e *Engine) keep(from, name string, body []byte) errs.Code {
	select {
	case e.notices.queue <- Notification{From: from, Name: name, Body: body}:
		e.counts.noticesIn.Add(1)
		return errs.OK
	default:
		return errs.Overloaded
	}
}

// Receive returns the next notification.
func (e *Engine) Receive(ctx context.Context) (Notification, error) {
	select {
	case n := <-e.notices.queue:
		return n, nil
	default:
	}
	select {
	case n := <-e.notices.queue:
		return n, nil
	case <-e.notices.ended:
		return Notification{}, e.usable("receive")
	case <-ctx.Done():
		return Notification{}, ended(ctx, "receive")
	}
}

// Notify delivers n to the engine that owns s: exactly once, or an error.
func (e *Engine) Notify(ctx context.Context, s *Segment, n Notification) error {
	if err := e.usable("notify"); err != nil {
		return err
	}
	if err := n.check(e, s); err != nil {
		return err
	}
	return e.notify(ctx, s, n)
}

// send delivers what follows the bytes of a batch, also while the engine drains.
func (e *Engine) send(s *Segment, n Notification) error {
	if why := e.over(); why != nil {
		return why
	}
	err := e.notify(e.ctx, s, n)
	if why := e.over(); err != nil && why != nil {
		return why
	}
	return err
}

func (e *Engine) notify(ctx context.Context, s *Segment, n Notification) error {
	v := s.now()
	p := v.peer
	if p.own {
		if code := e.keep(string(e.name), n.Name, append([]byte(nil), n.Body...)); code != errs.OK {
			return &errs.Error{Op: "notify", Segment: string(s.name), Reason: code}
		}
		return nil
	}
	if v.desc.Incarnation == 0 {
		return e.notifyForeign(ctx, s, v.desc, n)
	}
	p = e.peers.get(registry.IdentityOf(v.desc, s.name), v.desc) // one sender of ids, also for a closed segment
	if err := p.notifier.Send(ctx, n.Name, n.Body); err != nil {
		failed := &errs.Error{Op: "notify", Segment: string(s.name), Peer: p.addr(), Reason: errs.Of(err), Err: err}
		var inner *errs.Error
		if errors.As(err, &inner) {
			failed.InDoubt, failed.Retryable = inner.InDoubt, inner.Retryable
		}
		return failed
	}
	e.counts.noticesSent.Add(1)
	return nil
}
