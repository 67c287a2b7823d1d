// Package p2p finds a descriptor without a metadata store: it asks the engine
// that publishes it. A segment's name is then the host:port that its engine
// listens on.
package p2p

import (
	"context"
	"errors"
	"net"
	"os"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/control"
	"github.com/tideway-io/tideway/internal/mooncake"
	"github.com/tideway-io/tideway/segment"
)

// Pages fills in the buffers of a descriptor that was published without them,
// because there are that many. It asks the peer at d.Addr.
type Pages = func(ctx context.Context, d *segment.Desc, buffers int) error

// Fetch asks the engine at addr for its descriptor, by Mooncake's handshake
// frame, which both kinds of engine answer. own is the caller's descriptor, which
// goes along. Errors of the connection are errs.Unreachable, an answer that is
// no descriptor errs.Invalid, errs.NotFound or errs.Unsupported, and ctx ends it
// with its own. The result is sealed and the caller's.
func Fetch(ctx context.Context, dial func(ctx context.Context, addr string) (net.Conn, error), addr string, own *segment.Desc, pages Pages) (*segment.Desc, error) {
	body, err := mooncake.EncodeRequest(own, time.Now())
	if err != nil {
		return nil, err
	}
	conn, err := dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	d, more, err := ask(ctx, conn, addr, body)
	if err != nil {
		return nil, explain(ctx, addr, err)
	}
	if more > 0 {
		if err := pages(ctx, d, more); err != nil {
			return nil, explain(ctx, addr, err)
		}
	}
	return d, nil
}

func ask(ctx context.Context, conn net.Conn, addr string, body []byte) (*segment.Desc, int, error) {
	f, err := control.AskMooncake(ctx, conn, mooncake.Metadata, body)
	if err != nil {
		return nil, 0, err
	}
	d, pages, err := mooncake.DecodeDesc(f.Body)
	if err == nil && d.Incarnation == 0 {
		mooncake.SetDaemons(d, mooncake.PeerAddrs(string(d.Name), addr)...)
	}
	return d, pages, err
}

const whoIsIt = "check that an engine listens there, not another service"

// explain makes a typed error that names the peer.
func explain(ctx context.Context, addr string, err error) error {
	e := &errs.Error{Op: "fetch descriptor", Peer: addr, Err: err}
	var typed *errs.Error
	switch {
	case ctx.Err() != nil:
		e.Reason, e.Err = errs.Of(ctx.Err()), context.Cause(ctx)
		if e.Reason == errs.Deadline {
			e.Detail = "connected, but no descriptor came in time; " + whoIsIt
		}
	case errors.Is(err, os.ErrDeadlineExceeded):
		e.Reason, e.Retryable = errs.Unresponsive, true
		e.Detail = "connected, but silent for " + control.AskSilence.String() + ", or not done after " + control.AskWhole.String()
	case errors.As(err, &typed) && typed.Reason != errs.Unreachable:
		e.Reason, e.Retryable = typed.Reason, typed.Retryable
		if e.Reason == errs.Invalid {
			e.Detail = "what came is no descriptor; " + whoIsIt
		}
	default:
		e.Reason, e.Retryable = errs.Unreachable, true
		e.Detail = "connected, but no descriptor came; " + whoIsIt
	}
	return e
}
