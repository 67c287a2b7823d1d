package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/testenv"
	"github.com/tideway-io/tideway/internal/wire"
	"github.com/tideway-io/tideway/segment"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	selfA = Self{1, func() segment.Name { return "a" }}
	selfB = Self{2, func() segment.Name { return "b" }}
)

// rig is a server behind a loopback listener.
type rig struct {
	*Server
	ln net.Listener
	wg sync.WaitGroup
}

func serve(t *testing.T, opts ServerOptions) *rig {
	t.Helper()
	testenv.Leak(t)
	if opts.Self.Incarnation == 0 {
		opts.Self = selfB
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{Server: NewServer(opts), ln: ln}
	r.wg.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			r.wg.Go(func() {
				var preface [8]byte
				if _, err := io.ReadFull(conn, preface[:]); err != nil || preface != wire.PrefaceControl {
					_ = conn.Close()
					return
				}
				r.Serve(conn)
			})
		}
	})
	t.Cleanup(r.stop)
	return r
}

func (r *rig) stop() {
	_ = r.ln.Close()
	r.Close()
	r.wg.Wait()
}

func (r *rig) addr() string { return r.ln.Addr().String() }

func tcpDial(ctx context.Context, addr string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "tcp", addr)
}

func (r *rig) dial(t *testing.T, opts Options) *Peer {
	t.Helper()
	p, err := Dial(t.Context(), tcpDial, r.addr(), selfA, selfB.Incarnation, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

func echo(_ context.Context, from segment.Incarnation, body []byte) ([]byte, error) {
	return fmt.Appendf(nil, "%d:%s", from, body), nil
}

func TestCall(t *testing.T) {
	r := serve(t, ServerOptions{Methods: map[string]Handler{"echo": echo}})
	r.Handle("fail", func(context.Context, segment.Incarnation, []byte) ([]byte, error) {
		return nil, errs.New(errs.Revoked, "x", "buffer 7 is closed")
	})
	r.Handle("plain", func(context.Context, segment.Incarnation, []byte) ([]byte, error) {
		return nil, errors.New("some reason")
	})
	r.Handle("panic", func(context.Context, segment.Incarnation, []byte) ([]byte, error) { panic("hostile body") })
	r.Handle("long", func(context.Context, segment.Incarnation, []byte) ([]byte, error) {
		return make([]byte, MaxAnswer+1), nil
	})
	r.Handle("most", func(_ context.Context, _ segment.Incarnation, b []byte) ([]byte, error) {
		return make([]byte, MaxAnswer), nil
	})
	p := r.dial(t, Options{})
	if p.Incarnation() != 2 || p.Name() != "b" || p.Addr() != r.addr() {
		t.Errorf("%v %v %v", p.Incarnation(), p.Name(), p.Addr())
	}
	for _, c := range []struct {
		method, body, want string
		code               errs.Code
		text               string
	}{
		{"echo", "hello", "1:hello", errs.OK, ""}, {"echo", "", "1:", errs.OK, ""},
		{"fail", "", "", errs.Revoked, "buffer 7 is closed"}, {"plain", "", "", errs.Internal, "some reason"},
		{"panic", "", "", errs.Internal, "failed"}, {"long", "", "", errs.Internal, "limit"}, {"none", "", "", errs.Unsupported, "no method"},
		{"echo", strings.Repeat("x", MaxBody+1), "", errs.Invalid, "limit"}, {strings.Repeat("m", MaxName+1), "", "", errs.Invalid, "limit"},
		{"echo", strings.Repeat("x", MaxBody), "1:" + strings.Repeat("x", MaxBody), errs.OK, ""},
		{"most", "", strings.Repeat("\x00", MaxAnswer), errs.OK, ""},
	} {
		got, err := p.Call(t.Context(), c.method, []byte(c.body))
		if string(got) != c.want || errs.Of(err) != c.code || err != nil && !strings.Contains(err.Error(), c.text) {
			t.Errorf("%.20s(%d bytes): %d bytes, %v", c.method, len(c.body), len(got), err)
		}
	}
	if d, err := p.Ping(t.Context()); err != nil || d <= 0 {
		t.Errorf("ping: %v, %v", d, err)
	}
	if p.Err() != nil || p.Draining() {
		t.Error(p.Err(), p.Draining())
	}
}

// TestCallsDoNotWaitForEachOther: a slow handler holds nobody up.
func TestCallsDoNotWaitForEachOther(t *testing.T) {
	gate := make(chan struct{})
	r := serve(t, ServerOptions{Methods: map[string]Handler{"echo": echo, "slow": func(ctx context.Context, _ segment.Incarnation, b []byte) ([]byte, error) {
		select {
		case <-gate:
		case <-ctx.Done():
		}
		return b, ctx.Err()
	}}})
	p := r.dial(t, Options{})
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			want := fmt.Sprint(i)
			if got, err := p.Call(t.Context(), "slow", []byte(want)); err != nil || string(got) != want {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
	for range 100 {
		if _, err := p.Call(t.Context(), "echo", nil); err != nil {
			t.Fatal(err)
		}
	}
	close(gate)
	wg.Wait()
}

// TestCallsAreBounded: more than the server runs are refused, and retryable.
func TestCallsAreBounded(t *testing.T) {
	for name, opts := range map[string]ServerOptions{"per peer": {MaxPerPeer: 2}, "in all": {MaxRunning: 2}} {
		t.Run(name, func(t *testing.T) {
			gate := make(chan struct{})
			var running atomic.Int32
			opts.Methods = map[string]Handler{"slow": func(ctx context.Context, _ segment.Incarnation, _ []byte) ([]byte, error) {
				running.Add(1)
				<-gate
				return nil, nil
			}}
			r := serve(t, opts)
			p := r.dial(t, Options{})
			var wg sync.WaitGroup
			for range 2 {
				wg.Go(func() {
					if _, err := p.Call(t.Context(), "slow", nil); err != nil {
						t.Error(err)
					}
				})
			}
			testenv.Eventually(t, 10*time.Second, func() bool { return running.Load() == 2 }, "two run")
			_, err := p.Call(t.Context(), "slow", nil)
			var e *errs.Error
			if !errors.As(err, &e) || e.Reason != errs.Overloaded || !e.Retryable {
				t.Error(err)
			}
			close(gate)
			wg.Wait()
			if _, err := p.Call(t.Context(), "slow", nil); err != nil {
				t.Error("after the two ended:", err)
			}
		})
	}
}

// TestCallEndsWithItsContext, and the connection is as good as before.
func TestCallEndsWithItsContext(t *testing.T) {
	gate := make(chan struct{})
	r := serve(t, ServerOptions{Methods: map[string]Handler{"echo": echo, "slow": func(context.Context, segment.Incarnation, []byte) ([]byte, error) {
		<-gate
		return []byte("late"), nil
	}}})
	p := r.dial(t, Options{MaxCalls: 1})
	ctx, cancel := context.WithCancel(t.Context())
	held := make(chan error)
	go func() {
		_, err := p.Call(ctx, "slow", nil)
		held <- err
	}()
	testenv.Eventually(t, 10*time.Second, func() bool { return len(p.slots) == 1 }, "the only slot is taken")
	short, cancelShort := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancelShort()
	if _, err := p.Call(short, "echo", nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Error("a call beyond MaxCalls:", err)
	}
	cancel()
	if err := <-held; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	close(gate)
	if got, err := p.Call(t.Context(), "echo", nil); err != nil || string(got) != "1:" {
		t.Errorf("%q, %v", got, err)
	}
	if n := len(p.mu.pending); n != 0 {
		t.Errorf("%d answers are waited for", n)
	}
}

func TestGreetingsThatAreRefused(t *testing.T) {
	r := serve(t, ServerOptions{})
	for _, c := range []struct {
		name   string
		self   Self
		expect segment.Incarnation
		code   errs.Code
	}{
		{"another incarnation", selfA, 77, errs.Restarted}, {"oneself", selfB, 0, errs.SelfDial}, {"nobody", Self{}, 0, errs.Invalid},
	} {
		if p, err := Dial(t.Context(), tcpDial, r.addr(), c.self, c.expect, Options{}); p != nil || errs.Of(err) != c.code {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	for name, g := range map[string]wire.Greeting{"a later version": {MinVersion: 2, MaxVersion: 3, From: 1}, "no version": {From: 1}} {
		conn, err := tcpDial(t.Context(), r.addr())
		if err != nil {
			t.Fatal(err)
		}
		_, _ = conn.Write(appendFrame(wire.PrefaceControl[:], wire.Header{Type: wire.Hello}, g.Append(nil), nil))
		f, err := readFrame(conn, answerLimit)
		if err != nil || f.Type != wire.Welcome || f.Status != errs.Unsupported {
			t.Errorf("%s: %+v, %v", name, f, err)
		}
		_ = conn.Close()
	}
	p, err := Dial(t.Context(), tcpDial, r.addr(), selfA, 0, Options{})
	if err != nil {
		t.Fatal("any incarnation:", err)
	}
	_ = p.Close()
}

// TestWelcomesThatAreRefused: a server that lies about itself is not believed.
func TestWelcomesThatAreRefused(t *testing.T) {
	welcome := func(g wire.Greeting) []byte {
		return appendFrame(nil, wire.Header{Type: wire.Welcome}, g.Append(nil), nil)
	}
	good := wire.Greeting{MinVersion: 1, MaxVersion: 1, From: 2}
	for name, c := range map[string]struct {
		answer []byte
		code   errs.Code
	}{
		"another":      {welcome(wire.Greeting{MinVersion: 1, MaxVersion: 1, From: 3}), errs.Restarted},
		"oneself":      {welcome(wire.Greeting{MinVersion: 1, MaxVersion: 1, From: 1}), errs.SelfDial},
		"version 2":    {welcome(wire.Greeting{MinVersion: 2, MaxVersion: 2, From: 2}), errs.Unsupported},
		"no welcome":   {appendFrame(nil, wire.Header{Type: wire.Ping}, nil, nil), errs.Invalid},
		"garbage":      {[]byte(strings.Repeat("HTTP/1.1 400 Bad Request\r\n", 4)), errs.Invalid},
		"nothing":      {nil, errs.Unreachable},
		"flipped":      {flip(welcome(good), 40), errs.Checksum},
		"cut":          {welcome(good)[:40], errs.Unreachable},
		"bad greeting": {appendFrame(nil, wire.Header{Type: wire.Welcome}, []byte{1}, nil), errs.Invalid},
	} {
		dial := func(context.Context, string) (net.Conn, error) {
			here, there := net.Pipe()
			go func() {
				_, _ = readFrame(io.MultiReader(io.LimitReader(there, 0), skip(there, 8)), answerLimit)
				_, _ = there.Write(c.answer)
				_ = there.Close()
			}()
			return here, nil
		}
		p, err := Dial(t.Context(), dial, "x:1", selfA, 2, Options{})
		if p != nil || errs.Of(err) != c.code {
			t.Errorf("%s: %v, want %v", name, err, c.code)
		}
	}
}

// skip is a reader without the first n bytes.
func skip(r io.Reader, n int64) io.Reader {
	_, _ = io.CopyN(io.Discard, r, n)
	return r
}

func flip(p []byte, at int) []byte {
	p[at] ^= 1
	return p
}

func TestDrain(t *testing.T) {
	r := serve(t, ServerOptions{Methods: map[string]Handler{"echo": echo}})
	type word struct {
		reason errs.Code
		grace  time.Duration
	}
	heard := make(chan word, 2)
	p := r.dial(t, Options{OnGoaway: func(reason errs.Code, grace time.Duration) { heard <- word{reason, grace} }})
	r.Drain(errs.Draining, 1500*time.Millisecond)
	r.Drain(errs.Draining, time.Second)
	if w := <-heard; w != (word{errs.Draining, 1500 * time.Millisecond}) || !p.Draining() {
		t.Errorf("%+v", w)
	}
	if _, err := p.Call(t.Context(), "echo", nil); err != nil {
		t.Error("while it drains:", err)
	}
	if _, err := Dial(t.Context(), tcpDial, r.addr(), selfA, 0, Options{}); errs.Of(err) != errs.Draining || !errors.Is(err, net.ErrClosed) {
		t.Error("a new connection:", err)
	}
	r.Close()
	<-p.Done()
	if _, err := p.Call(t.Context(), "echo", nil); !errors.Is(err, errs.ErrUnreachable) {
		t.Error(err)
	}
	if len(heard) != 0 {
		t.Error("told twice")
	}
}

// TestServerClose ends handlers, and returns after them.
func TestServerClose(t *testing.T) {
	started := make(chan struct{})
	var ended atomic.Bool
	r := serve(t, ServerOptions{Methods: map[string]Handler{"slow": func(ctx context.Context, _ segment.Incarnation, _ []byte) ([]byte, error) {
		close(started)
		<-ctx.Done()
		ended.Store(true)
		return nil, ctx.Err()
	}}})
	p := r.dial(t, Options{})
	failed := make(chan error)
	go func() {
		_, err := p.Call(t.Context(), "slow", nil)
		failed <- err
	}()
	<-started
	r.Close()
	if !ended.Load() {
		t.Error("Close returned before the handler")
	}
	if err := <-failed; !errors.Is(err, errs.ErrUnreachable) {
		t.Error(err)
	}
	r.Close()
	here, there := net.Pipe()
	r.Serve(there)
	if _, err := here.Read(make([]byte, 1)); err != io.EOF {
		t.Error("served after Close:", err)
	}
	_ = here.Close()
}

// TestHandlersEndWithTheirConnection: a peer that leaves takes its calls along.
func TestHandlersEndWithTheirConnection(t *testing.T) {
	started, ended := make(chan struct{}), make(chan struct{})
	r := serve(t, ServerOptions{Methods: map[string]Handler{"slow": func(ctx context.Context, _ segment.Incarnation, _ []byte) ([]byte, error) {
		close(started)
		<-ctx.Done()
		close(ended)
		return nil, nil
	}}})
	p := r.dial(t, Options{})
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := p.Call(t.Context(), "slow", nil); !errors.Is(err, errs.ErrClosed) || !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	})
	<-started
	_ = p.Close()
	<-ended
	wg.Wait()
}

// TestDialGivesUp: the greeting ends with the context.
func TestDialGivesUp(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := Dial(ctx, tcpDial, ln.Addr().String(), selfA, 0, Options{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	_ = ln.Close()
	if _, err := Dial(t.Context(), tcpDial, ln.Addr().String(), selfA, 0, Options{}); err == nil {
		t.Error("nobody listens, but no error")
	}
}
