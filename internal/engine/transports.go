package engine

import (
	"context"
	"errors"
	"net"
	"strings"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/inspect"
	"github.com/tideway-io/tideway/internal/core/selector"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
)

// opened is one transport of the engine.
type opened struct {
	name      string
	transport transport.Transport
}

// transports are the drivers' outcomes, in the order of preference. They do not
// change once the engine is open.
type transports struct {
	open   []*opened
	closed []inspect.Transport // those that are not open, and why
}

func (ts *transports) find(name string) *opened {
	for _, t := range ts.open {
		if t.name == name {
			return t
		}
	}
	return nil
}

func (ts *transports) names() string {
	names := make([]string, len(ts.open))
	for i, t := range ts.open {
		names[i] = t.name
	}
	return strings.Join(names, ", ")
}

// openTransports probes and opens the configured drivers. One that this host
// cannot open is left out with its reason, unless it was asked for by name.
func (e *Engine) openTransports(ctx context.Context) error {
	for _, d := range e.cfg.Drivers {
		err := d.Probe(ctx)
		var t transport.Transport
		if err == nil {
			t, err = d.Open(ctx, e.env(d.Name()))
		}
		if err == nil {
			e.transports.open = append(e.transports.open, &opened{d.Name(), t})
			e.candidates = append(e.candidates, selector.Candidate{Name: d.Name(), Caps: t.Caps()})
			continue
		}
		if len(e.cfg.Transports) > 0 {
			return &errs.Error{Op: "open transport", Transport: d.Name(), Reason: errs.Of(err), Err: err}
		}
		e.log.Info("transport not available", "transport", d.Name(), "reason", err)
		e.candidates = append(e.candidates, selector.Candidate{Name: d.Name(), Closed: err.Error()})
		e.transports.closed = append(e.transports.closed, inspect.Transport{Name: d.Name(), Reason: err.Error()})
	}
	if len(e.transports.open) == 0 {
		return errs.New(errs.Unsupported, "open", "none of the transports %s is available here", e.cfg.transportNames())
	}
	return nil
}

// env is what the engine lends one transport.
func (e *Engine) env(name string) transport.Env {
	return transport.Env{
		Sink: e, Memory: e.local, Logger: e.log.With("transport", name), Now: time.Now, Rand: e.rand,
		Self: transport.Self{Incarnation: e.incarnation, Name: e.Name},
		Dial: e.dialer.Dial, Ways: e.ways, DialWay: e.dialWay,
		Accept: func(preface [8]byte, handle func(net.Conn)) error {
			return e.listener.Handle(preface, handle)
		},
		Listen: e.listen,
		Exchange: func(ctx context.Context, to *segment.Desc, body []byte) ([]byte, error) {
			return e.exchange(ctx, to, name, body)
		},
		Answer: func(answer func(context.Context, segment.Incarnation, []byte) ([]byte, error)) {
			e.answers[name] = answer
		},
		Limits: e.cfg.limits(),
	}
}

// drain asks the transports to bring their inbound work to an end.
func (ts *transports) drain(ctx context.Context) error {
	var failed []error
	for _, t := range ts.open {
		if d, ok := transport.As[transport.Drainer](t.transport); ok {
			failed = append(failed, d.Drain(ctx))
		}
	}
	return errors.Join(failed...)
}

// close closes the transports, the last opened first.
func (ts *transports) close() error {
	var failed []error
	for i := len(ts.open) - 1; i >= 0; i-- {
		failed = append(failed, ts.open[i].transport.Close())
	}
	return errors.Join(failed...)
}

// attach makes b reachable through every transport that wants to know, and
// returns what peers need for it, by transport name.
func (ts *transports) attach(ctx context.Context, b *segment.Buffer) (map[string][]byte, error) {
	var all map[string][]byte
	for i, t := range ts.open {
		attrs, err := t.transport.Register(ctx, b)
		if err != nil {
			for _, u := range ts.open[:i] {
				err = errors.Join(err, u.transport.Unregister(b))
			}
			return nil, &errs.Error{Op: "register", Segment: b.Name, Transport: t.name, Reason: errs.Of(err), Err: err}
		}
		if len(attrs) == 0 {
			continue
		}
		if all == nil {
			all = make(map[string][]byte)
		}
		all[t.name] = attrs
	}
	return all, nil
}

// detach undoes attach.
func (ts *transports) detach(b *segment.Buffer) error {
	var failed []error
	for _, t := range ts.open {
		failed = append(failed, t.transport.Unregister(b))
	}
	return errors.Join(failed...)
}
