package engine

import (
	"context"
	"errors"
	"time"
	"unicode/utf8"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/control"
	"github.com/tideway-io/tideway/internal/mooncake"
	"github.com/tideway-io/tideway/segment"
)

// daemons notes where the owner of d, which does not speak the native wire,
// listens: in a store that is said beside the descriptor.
func (e *Engine) daemons(ctx context.Context, d *segment.Desc) error {
	if d.Incarnation != 0 {
		return nil
	}
	value, err := e.cfg.Metadata.Get(ctx, mooncake.AddrKey(e.cfg.Cluster, string(d.Name)))
	if err != nil {
		return err
	}
	addr, err := mooncake.DecodeAddr(value)
	if err != nil {
		return err
	}
	mooncake.SetDaemons(d, addr)
	return nil
}

// askForeign makes one call to the owner of d, at the first of its addresses that
// can be dialled.
func (e *Engine) askForeign(ctx context.Context, d *segment.Desc, kind mooncake.Kind, body []byte) (f mooncake.Frame, sent bool, err error) {
	for _, addr := range mooncake.Daemons(d) {
		conn, failed := e.dialer.Dial(ctx, addr)
		if failed != nil {
			err = failed
			continue
		}
		f, err = control.AskMooncake(ctx, conn, kind, body)
		return f, true, err
	}
	return f, false, err
}

// notifyForeign delivers n once, or perhaps not: that wire has no way to tell a
// second one from a repetition, so nothing is repeated.
func (e *Engine) notifyForeign(ctx context.Context, s *Segment, d *segment.Desc, n Notification) error {
	if !utf8.ValidString(n.Name) || !utf8.Valid(n.Body) {
		return errs.New(errs.Invalid, "notify", "name or body is no UTF-8 text, and the receiver is a Mooncake engine, which takes nothing else")
	}
	f, sent, err := e.askForeign(ctx, d, mooncake.Notify, mooncake.Notice{Name: n.Name, Text: string(n.Body)}.Append(nil))
	answer := mooncake.Notice{}
	if err == nil {
		answer, err = mooncake.ParseNotice(f.Body)
	}
	if err == nil && answer.Text == "" {
		return &errs.Error{Op: "notify", Segment: string(s.name), Reason: errs.Overloaded, Retryable: true, Detail: "the receiver did not take it"}
	}
	if err != nil {
		failed := &errs.Error{Op: "notify", Segment: string(s.name), Reason: errs.Of(err), Err: err, InDoubt: sent, Retryable: !sent}
		var inner *errs.Error
		if errors.As(err, &inner) {
			failed.Peer = inner.Peer
		}
		return failed
	}
	e.counts.noticesSent.Add(1)
	return nil
}

// probeForeign measures one call; any answer of the kind will do.
func (e *Engine) probeForeign(ctx context.Context, s *Segment, d *segment.Desc) (time.Duration, error) {
	start := time.Now()
	if _, _, err := e.askForeign(ctx, d, mooncake.Probe, mooncake.AppendProbe(nil)); err != nil {
		return 0, s.failed(err)
	}
	return time.Since(start), nil
}

// refresh fetches the descriptors of Mooncake's engines again and again, since
// nothing tells when they change.
func (e *Engine) refresh() {
	for !e.pause(e.cfg.Refresh) {
		for _, r := range e.remotes.All() {
			d := r.Desc()
			if d.Incarnation != 0 {
				continue
			}
			ctx, cancel := context.WithTimeout(e.ctx, e.cfg.ConnectTimeout)
			if _, _, err := r.Refresh(ctx, d); err != nil {
				e.log.Debug("refresh descriptor", "segment", r.Name(), "err", err)
			}
			cancel()
		}
	}
}
