package control

import (
	"context"
	"net"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/mooncake"
)

// AskSilence is how long an asked Mooncake engine may be silent: a real one serves
// one connection at a time, each for up to five seconds. AskWhole bounds an answer.
const (
	AskSilence = 10 * time.Second
	AskWhole   = time.Minute
)

// AskMooncake makes one call in Mooncake's handshake frames, which is all that a
// connection is for: it sends the request, reads the answer, which must be of the
// same kind, and closes conn at once, since a real engine serves nobody else
// before.
func AskMooncake(ctx context.Context, conn net.Conn, kind mooncake.Kind, body []byte) (mooncake.Frame, error) {
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	_ = conn.SetWriteDeadline(time.Now().Add(AskSilence))
	if _, err := conn.Write(mooncake.AppendFrame(nil, kind, body)); err != nil {
		return mooncake.Frame{}, orContext(ctx, err)
	}
	f, err := mooncake.ReadFrame(&paced{conn, AskSilence, time.Now().Add(AskWhole)}, mooncake.MaxLimit)
	if err != nil {
		return mooncake.Frame{}, orContext(ctx, err)
	}
	if f.Kind != kind {
		return mooncake.Frame{}, errs.New(errs.Invalid, "ask", "answered by a frame of kind %d, want %d", f.Kind, kind)
	}
	return f, nil
}

// orContext prefers the context's error, which is why the connection was closed.
func orContext(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
