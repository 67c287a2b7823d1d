package tcp

import (
	"context"
	"errors"
	"io"
	"net"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/wire"
)

// helloTimeout bounds a handshake, on both sides.
const helloTimeout = 5 * time.Second

// maxGreeting bounds the meta of a Hello or Welcome.
const maxGreeting = 4 << 10

// sendGreeting writes a Hello, preceded by the preface, or a Welcome.
func sendGreeting(c net.Conn, t wire.Type, status errs.Code, g *wire.Greeting) error {
	var p []byte
	if t == wire.Hello {
		p = append(p, wire.PrefaceData[:]...)
	}
	at := len(p)
	p = g.Append(append(p, make([]byte, wire.HeaderSize)...))
	h := wire.Header{Type: t, Status: status, Meta: uint32(len(p) - at - wire.HeaderSize)}
	h.Put(p[at:])
	wire.Seal(p[at:])
	_, err := c.Write(p)
	return err
}

// receiveGreeting reads a Hello or Welcome and not a byte more.
func receiveGreeting(c net.Conn, t wire.Type) (errs.Code, wire.Greeting, error) {
	head := make([]byte, wire.HeaderSize)
	if _, err := io.ReadFull(c, head); err != nil {
		return 0, wire.Greeting{}, err
	}
	h, err := wire.ParseHeader(head)
	if err != nil {
		return 0, wire.Greeting{}, err
	}
	if h.Type != t || h.Meta > maxGreeting || h.Payload != 0 {
		return 0, wire.Greeting{}, errs.New(errs.Invalid, "greet", "frame of type %d with %d+%d bytes, want type %d with at most %d", h.Type, h.Meta, h.Payload, t, maxGreeting)
	}
	head = append(head, make([]byte, h.Meta)...)
	if _, err := io.ReadFull(c, head[wire.HeaderSize:]); err != nil {
		return 0, wire.Greeting{}, err
	}
	if !wire.Intact(head) {
		return 0, wire.Greeting{}, errs.New(errs.Checksum, "greet", "frame does not match its check")
	}
	g, err := wire.ParseGreeting(head[wire.HeaderSize:])
	return h.Status, g, err
}

// greet makes the initiator's side of the handshake on a new connection to peer,
// which is a name for people. It ends with ctx or after helloTimeout, and then c
// is closed.
func greet(ctx context.Context, c net.Conn, peer string, hello *wire.Greeting) (wire.Greeting, error) {
	ctx, cancel := context.WithTimeout(ctx, helloTimeout)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	err := sendGreeting(c, wire.Hello, errs.OK, hello)
	var status errs.Code
	var g wire.Greeting
	if err == nil {
		status, g, err = receiveGreeting(c, wire.Welcome)
	}
	if !stop() {
		err = ctx.Err()
	}
	if err == nil {
		err = welcomed(status, &g, hello)
	}
	if err == nil {
		return g, nil
	}
	_ = c.Close()
	return g, greetError(err, peer)
}

// greetError says why a handshake failed.
func greetError(err error, peer string) *errs.Error {
	var e *errs.Error
	if !errors.As(err, &e) {
		e = &errs.Error{Op: "greet", Reason: errs.LaneLost, Detail: "the peer hung up during the handshake", Err: err}
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		e.Reason, e.Detail = errs.Unresponsive, "connected, but the peer sent no welcome in time"
	case errors.Is(err, context.Canceled):
		e.Reason, e.Detail = errs.Canceled, ""
	}
	kind := e.Reason.Kind()
	e.Peer, e.Transport, e.Stage, e.Retryable = peer, name, "connect", kind == errs.ErrUnreachable || kind == errs.ErrOverloaded
	return e
}

// welcomed checks the target's answer.
func welcomed(status errs.Code, g, hello *wire.Greeting) error {
	switch {
	case status != errs.OK:
		return errs.New(status, "greet", "the peer answered: %s", g.Detail)
	case hello.To != 0 && g.From != hello.To:
		return errs.New(errs.Restarted, "greet", "incarnation %v answered, want %v: open the segment again", g.From, hello.To)
	case g.MaxVersion != wire.Version:
		return errs.New(errs.Unsupported, "greet", "the peer chose version %d, offered was %d", g.MaxVersion, wire.Version)
	case g.MaxFrame < hello.MaxFrame:
		return errs.New(errs.Unsupported, "greet", "the peer takes frames of %d bytes, this engine sends up to %d: lower MaxFrame", g.MaxFrame, hello.MaxFrame)
	case g.Features&^hello.Features != 0:
		return errs.New(errs.Invalid, "greet", "features %#x were not offered", g.Features&^hello.Features)
	}
	return nil
}
