package control

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/tideway-io/tideway/errs"
)

// maxOutstanding bounds the notifications to one peer that are not answered. It
// keeps their ids well within the receiver's window.
const maxOutstanding = 64

// Notifier sends notifications to one incarnation of one peer, each delivered
// once: one whose answer was lost with the connection is sent again over the
// next. Make one for each peer and keep it while that lives.
type Notifier struct {
	connect  func(ctx context.Context) (*Peer, error)
	patience time.Duration
	next     atomic.Uint64
	// slots[i] is held by the notification whose id is i modulo maxOutstanding.
	slots [maxOutstanding]chan struct{}
}

// NewNotifier returns a Notifier that asks connect for the present connection,
// to the same incarnation each time. patience bounds how long an answer that is
// owed is asked for, default 10 s. Its ids begin after an id that no earlier
// Notifier to the same incarnation has reached: the peer would take them for
// repetitions.
func NewNotifier(connect func(ctx context.Context) (*Peer, error), patience time.Duration, after uint64) *Notifier {
	n := &Notifier{connect: connect, patience: or(patience, 10*time.Second)}
	n.next.Store(after)
	for i := range n.slots {
		n.slots[i] = make(chan struct{}, 1)
	}
	return n
}

// Send delivers a notification and returns when the peer has it. nil means
// delivered once. An error with InDoubt set means that it was delivered once or
// not at all, and nobody is left who could tell; any other, that it was not and
// will not be.
func (n *Notifier) Send(ctx context.Context, name string, body []byte) error {
	id := n.next.Add(1)
	slot := n.slots[id%maxOutstanding]
	select {
	case slot <- struct{}{}:
		defer func() { <-slot }()
	case <-ctx.Done():
		return &errs.Error{Op: "notify", Reason: errs.Of(ctx.Err()), Err: context.Cause(ctx), Detail: "too many notifications to this peer are outstanding", Retryable: true}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, n.patience, errImpatient)
	defer cancel()
	doubt := false
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		how, err := n.try(ctx, id, name, body)
		doubt = doubt || how == owed
		if err == nil || how == complete || how == unreached && !doubt {
			return err
		}
		if errors.Is(err, errs.ErrStale) || !sleep(ctx, pause) {
			return ended(err, doubt)
		}
	}
}

var errImpatient = errors.New("no answer in time")

func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

func (n *Notifier) try(ctx context.Context, id uint64, name string, body []byte) (progress, error) {
	p, err := n.connect(ctx)
	if err != nil {
		return unreached, err
	}
	return p.notify(ctx, id, name, body)
}

func ended(err error, doubt bool) error {
	if !doubt {
		return err
	}
	return &errs.Error{
		Op: "notify", Reason: errs.Of(err), Err: err, InDoubt: true,
		Detail: "the connection ended before the answer: it was delivered once or not at all",
	}
}
