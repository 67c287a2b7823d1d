package engine

import (
	"context"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/control"
	"github.com/tideway-io/tideway/internal/registry"
	"github.com/tideway-io/tideway/internal/wire"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
)

// methodExchange, followed by a driver's name, is the call that carries the
// driver's set-up messages.
const methodExchange = "exchange/"

func (e *Engine) self() control.Self {
	return control.Self{Incarnation: e.incarnation, Name: e.Name}
}

// serveControl starts to answer peers: our own control protocol, and Mooncake's
// handshake frames.
func (e *Engine) serveControl() error {
	e.server = control.NewServer(control.ServerOptions{
		Self:        e.self(),
		Methods:     map[string]control.Handler{control.MethodDescribe: control.Describe(e.ownDesc)},
		OnNotify:    e.deliver,
		IdleTimeout: 6 * e.cfg.StallTimeout,
		Logger:      e.log,
	})
	for name, answer := range e.answers {
		e.server.Handle(methodExchange+name, answer)
	}
	m := control.MooncakeOptions{OnNotify: e.deliver, Limit: e.cfg.HandshakeLimit, Logger: e.log}
	if e.cfg.Metadata == nil {
		m.Desc = e.ownDesc
	}
	e.listener.HandleOther(control.NewMooncake(m).Serve)
	return e.listener.Handle(wire.PrefaceControl, e.server.Serve)
}

// dialControl opens a control connection to the owner of d.
func (e *Engine) dialControl(ctx context.Context, d *segment.Desc) (*control.Peer, error) {
	if d.Addr == "" {
		return nil, errs.New(errs.Unsupported, "open control connection", "%s does not speak the native wire", d.Name)
	}
	return control.Dial(ctx, e.dialer.Dial, d.Addr, e.self(), d.Incarnation, control.Options{StallTimeout: e.cfg.StallTimeout})
}

// fetchPages fills in the buffers of a descriptor that was too long to publish.
func (e *Engine) fetchPages(ctx context.Context, d *segment.Desc, _ int) error {
	c, err := e.dialControl(ctx, d)
	if err != nil {
		return err
	}
	defer c.Close()
	return c.FetchBuffers(ctx, d)
}

// exchange carries a driver's set-up message to the same driver of the peer.
func (e *Engine) exchange(ctx context.Context, to *segment.Desc, driver string, body []byte) ([]byte, error) {
	c, err := e.peers.get(registry.IdentityOf(to, to.Name), to).dial(ctx)
	if err != nil {
		return nil, err
	}
	return c.Call(ctx, methodExchange+driver, body)
}

// Probe measures one round trip to the engine that owns the segment.
func (e *Engine) Probe(ctx context.Context, name segment.Name) (time.Duration, error) {
	s, err := e.OpenSegment(ctx, name)
	if err != nil {
		return 0, err
	}
	defer s.Close()
	v := s.now()
	p := v.peer
	switch {
	case p.own:
		return 0, nil
	case v.desc.Incarnation == 0:
		return e.probeForeign(ctx, s, v.desc)
	}
	c, err := p.dial(ctx)
	if err != nil {
		return 0, s.failed(err)
	}
	return c.Ping(ctx)
}

// Warm opens the segment and connects the path that a transfer between host
// memory here and there would take first.
func (e *Engine) Warm(ctx context.Context, name segment.Name) error {
	s, err := e.OpenSegment(ctx, name)
	if err != nil {
		return err
	}
	defer s.Close()
	warm := &Found{Segment: s, Desc: &segment.Buffer{Access: segment.ReadWrite, Location: "cpu:0"}, view: s.now()}
	// A transfer of nothing ends well as soon as its path is connected.
	return e.Do(ctx, Request{Op: transport.Read, Remote: Remote{Segment: s, Found: warm}})
}
