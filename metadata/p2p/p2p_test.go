package p2p

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/control"
	"github.com/tideway-io/tideway/internal/listen"
	"github.com/tideway-io/tideway/internal/mooncake"
	"github.com/tideway-io/tideway/internal/testenv"
	"github.com/tideway-io/tideway/internal/wire"
	"github.com/tideway-io/tideway/segment"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var own = &segment.Desc{Name: "127.0.0.1:1", Incarnation: 1, TCPVersion: 2}

func published(n int) *segment.Desc {
	d := &segment.Desc{Incarnation: 2, Version: 3, Transports: []string{"tcp"}, Protocol: "tcp", TCPVersion: 2}
	for i := range n {
		d.Buffers = append(d.Buffers, segment.Buffer{Name: string(rune('a'+i%26)) + time.Duration(i).String(), Addr: 1<<44 + uint64(i)<<14, Length: 1 << 14, Location: "cpu:0", Access: segment.ReadWrite, Key: segment.Key(i + 1)})
	}
	return d
}

// engine listens as an engine does: Mooncake's frames and the control protocol
// on one port.
func engine(t *testing.T, d *segment.Desc) string {
	t.Helper()
	testenv.Leak(t)
	l, err := listen.Open(t.Context(), listen.Options{})
	if err != nil {
		t.Fatal(err)
	}
	d.Addr, _ = l.Advertised()
	d.Name = segment.Name(d.Addr)
	d.Seal()
	current := func() *segment.Desc { return d }
	server := control.NewServer(control.ServerOptions{
		Self:    control.Self{Incarnation: d.Incarnation, Name: func() segment.Name { return d.Name }},
		Methods: map[string]control.Handler{control.MethodDescribe: control.Describe(current)},
	})
	if err := l.Handle(wire.PrefaceControl, server.Serve); err != nil {
		t.Fatal(err)
	}
	l.HandleOther(control.NewMooncake(control.MooncakeOptions{Desc: current}).Serve)
	l.Start()
	t.Cleanup(func() {
		server.Close()
		l.Close()
	})
	return d.Addr
}

func pages(ctx context.Context, d *segment.Desc, _ int) error {
	p, err := control.Dial(ctx, new(listen.Dialer).Dial, d.Addr, control.Self{Incarnation: own.Incarnation}, d.Incarnation, control.Options{})
	if err != nil {
		return err
	}
	defer func() { _ = p.Close() }()
	return p.FetchBuffers(ctx, d)
}

func TestFetch(t *testing.T) {
	for _, n := range []int{0, 3, 100_000} {
		want := published(n)
		addr, start := engine(t, want), time.Now()
		got, err := Fetch(t.Context(), new(listen.Dialer).Dial, addr, own, pages)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%d buffers in %v", n, time.Since(start))
		if len(got.Buffers) != n || len(got.Lookup) != n || n > 0 && !cmp.Equal(got.Buffers[n-1], want.Buffers[n-1]) {
			t.Errorf("%d buffers of %d", len(got.Buffers), n)
		}
		got.Buffers, got.Lookup = want.Buffers, want.Lookup
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
}

// play answers the one connection that is dialled with what f writes.
func play(f func(net.Conn)) func(context.Context, string) (net.Conn, error) {
	return func(context.Context, string) (net.Conn, error) {
		here, there := net.Pipe()
		go func() {
			f(there)
			_ = there.Close()
		}()
		return here, nil
	}
}

func TestFetchErrors(t *testing.T) {
	answer := func(kind mooncake.Kind, body string) func(net.Conn) {
		return func(c net.Conn) {
			if f, err := mooncake.ReadFrame(c, mooncake.DefaultLimit); err != nil || f.Kind != mooncake.Metadata || !bytes.Contains(f.Body, []byte(`"tideway"`)) {
				t.Error(f, err)
			}
			_, _ = c.Write(mooncake.AppendFrame(nil, kind, []byte(body)))
		}
	}
	for name, c := range map[string]struct {
		peer func(net.Conn)
		code errs.Code
	}{
		"closes at once":   {func(net.Conn) {}, errs.Unreachable},
		"closes after":     {func(c net.Conn) { _, _ = mooncake.ReadFrame(c, mooncake.DefaultLimit) }, errs.Unreachable},
		"half a frame":     {func(c net.Conn) { _, _ = mooncake.ReadFrame(c, 1<<20); _, _ = io.WriteString(c, "\x10\x00\x00") }, errs.Unreachable},
		"null":             {answer(mooncake.Metadata, "null"), errs.NotFound},
		"another kind":     {answer(mooncake.Probe, "{}"), errs.Invalid},
		"no descriptor":    {answer(mooncake.Metadata, "[]"), errs.Invalid},
		"another protocol": {answer(mooncake.Metadata, `{"name":"n","protocol":"smtp"}`), errs.Unsupported},
		"another service": {func(c net.Conn) {
			_, _ = mooncake.ReadFrame(c, 1<<20)
			_, _ = io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n")
		}, errs.Invalid},
		"pages that cannot": {answer(mooncake.Metadata, `{"name":"n","tideway":{"incarnation":"0000000000000002","paged":true,"buffers_total":7}}`), errs.Stale},
	} {
		d, err := Fetch(t.Context(), play(c.peer), "peer:1", own, func(_ context.Context, _ *segment.Desc, n int) error {
			return errs.New(errs.Stale, "fetch", "%d", n)
		})
		var e *errs.Error
		if d != nil || !errors.As(err, &e) || e.Reason != c.code || e.Peer != "peer:1" {
			t.Errorf("%s: %v, want %v", name, err, c.code)
		}
	}
	refused := errs.New(errs.Refused, "dial", "")
	if _, err := Fetch(t.Context(), func(context.Context, string) (net.Conn, error) { return nil, refused }, "peer:1", own, nil); !errors.Is(err, errs.ErrUnreachable) {
		t.Error(err)
	}
	if _, err := Fetch(t.Context(), nil, "peer:1", &segment.Desc{}, nil); !errors.Is(err, errs.ErrInvalid) {
		t.Error("own descriptor without a name:", err)
	}
}

// TestSlowPeers: ten seconds of silence end it, and so does a minute in all.
func TestSlowPeers(t *testing.T) {
	frame := mooncake.AppendFrame(nil, mooncake.Metadata, []byte(`{"name":"n","protocol":"tcp"}`))
	for name, c := range map[string]struct {
		every, want time.Duration
		code        errs.Code
	}{
		"silent": {time.Hour, control.AskSilence, errs.Unresponsive}, "trickling": {9 * time.Second, control.AskWhole, errs.Unresponsive},
		"slow": {time.Second, time.Duration(len(frame)) * time.Second, errs.OK},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				peer := play(func(c2 net.Conn) {
					go func() { _, _ = io.Copy(io.Discard, c2) }()
					for _, b := range frame {
						time.Sleep(c.every) // virtual time: the bubble's
						if _, err := c2.Write([]byte{b}); err != nil {
							return
						}
					}
				})
				if _, err := Fetch(t.Context(), peer, "peer:1", own, nil); errs.Of(err) != c.code || time.Since(start) != c.want {
					t.Errorf("%v after %v, want %v after %v", err, time.Since(start), c.code, c.want)
				}
				time.Sleep(2 * time.Hour) // virtual time: the bubble's
			})
		})
	}
}

// TestFetchEndsWithItsContext: a peer that was stopped holds nobody longer.
func TestFetchEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	silent := play(func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
	if _, err := Fetch(ctx, silent, "peer:1", own, nil); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "another service") {
		t.Error(err)
	}
}

// TestFetchFromAnotherService: what to check is said when something else listens.
func TestFetchFromAnotherService(t *testing.T) {
	web := play(func(c net.Conn) {
		go func() { _, _ = io.Copy(io.Discard, c) }() // ends with the connection
		_, _ = c.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
	})
	if _, err := Fetch(t.Context(), web, "peer:1", own, nil); errs.Of(err) != errs.Invalid || !strings.Contains(err.Error(), "another service") {
		t.Error(err)
	}
}
