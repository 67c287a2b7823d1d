// Package control is the control protocol: one connection from an engine to
// each peer, with calls, notifications, liveness and the word that a peer is
// going away. The client's side is Peer, the served side is Server; Mooncake is
// the served side of Mooncake's own handshake frames, on the same listener.
//
// It moves no payload and knows no transport: those talk through "exchange/X"
// calls, whose bodies it does not look into. docs/wire.md specifies the frames.
package control

import (
	"context"
	"net"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/wire"
	"github.com/tideway-io/tideway/segment"
)

// Bounds that both sides keep.
const (
	MaxBody    = 64 << 10      // bytes of a call's or a notification's body
	MaxAnswer  = wire.MaxFrame // bytes of an answer's body
	MaxName    = 256           // bytes of a method's or a notification's name
	maxDetail  = 1024          // bytes of an error's text
	maxWaiting = 16            // frames that wait to be written on one connection
)

// greetTimeout bounds a greeting, on both sides.
const greetTimeout = 5 * time.Second

// Self is who an engine tells its peers it is.
type Self struct {
	Incarnation segment.Incarnation
	Name        func() segment.Name
}

func (s Self) greeting() wire.Greeting {
	g := wire.Greeting{From: s.Incarnation, Features: uint64(wire.FeatureSums)}
	if s.Name != nil {
		g.Name = string(s.Name())
	}
	return g
}

// DialFunc connects to host:port.
type DialFunc func(ctx context.Context, addr string) (net.Conn, error)

// or returns d, or otherwise where d is not set.
func or[T time.Duration | int](d, otherwise T) T {
	if d <= 0 {
		return otherwise
	}
	return d
}

// answered is an error that the peer sent, as opposed to one of the connection.
func answered(op, peer string, status errs.Code, detail []byte) *errs.Error {
	return &errs.Error{
		Op: op, Peer: peer, Reason: status, Detail: string(detail),
		Retryable: status == errs.Overloaded || status == errs.Busy || status == errs.Draining,
	}
}
