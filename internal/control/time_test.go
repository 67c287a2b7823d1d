package control

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/wire"
	"github.com/tideway-io/tideway/segment"
)

// pair joins a client and a server through a pipe, inside a bubble of virtual
// time. The conns are returned so that a test can play a broken one.
func pair(t *testing.T, opts Options, sopts ServerOptions) (*Peer, *Server, net.Conn) {
	t.Helper()
	sopts.Self, sopts.Logger = selfB, slog.New(slog.DiscardHandler)
	s := NewServer(sopts)
	here, there := net.Pipe()
	go s.Serve(skipped(there))
	p, err := Dial(t.Context(), func(context.Context, string) (net.Conn, error) { return here, nil }, "b:1", selfA, 2, opts)
	if err != nil {
		t.Fatal(err)
	}
	return p, s, there
}

// skipped is conn after its preface.
func skipped(conn net.Conn) net.Conn { return &late{Conn: conn} }

type late struct {
	net.Conn
	done bool
}

func (l *late) Read(p []byte) (int, error) {
	if !l.done {
		l.done = true
		if _, err := io.CopyN(io.Discard, l.Conn, 8); err != nil {
			return 0, err
		}
	}
	return l.Conn.Read(p)
}

// TestQuietConnectionsLive: an hour without calls is no reason to part.
func TestQuietConnectionsLive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, s, _ := pair(t, Options{}, ServerOptions{})
		time.Sleep(time.Hour)
		if _, err := p.Ping(t.Context()); err != nil || p.Err() != nil {
			t.Error(err, p.Err())
		}
		_ = p.Close()
		s.Close()
	})
}

// mute plays a peer that welcomes and then says nothing; if deaf it does not
// even read.
func mute(t *testing.T, deaf bool) DialFunc {
	return func(context.Context, string) (net.Conn, error) {
		here, there := net.Pipe()
		go func() {
			defer func() { _ = there.Close() }()
			if _, err := readFrame(skip(there, 8), answerLimit); err != nil {
				t.Error(err)
			}
			g := wire.Greeting{MinVersion: 1, MaxVersion: 1, From: 2}
			_, _ = there.Write(appendFrame(nil, wire.Header{Type: wire.Welcome}, g.Append(nil), nil))
			if deaf {
				time.Sleep(time.Hour) // virtual time: the caller's bubble
			}
			_, _ = io.Copy(io.Discard, there)
		}()
		return here, nil
	}
}

// TestSilentPeerIsUnresponsive: a peer that was stopped is found out after the
// stall timeout, whether or not its kernel still takes bytes.
func TestSilentPeerIsUnresponsive(t *testing.T) {
	for name, deaf := range map[string]bool{"reads": false, "does not read": true} {
		for _, stall := range []time.Duration{10 * time.Second, time.Second, time.Minute} {
			t.Run(name+" "+stall.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					p, err := Dial(t.Context(), mute(t, deaf), "b:1", selfA, 2, Options{StallTimeout: stall})
					if err != nil {
						t.Fatal(err)
					}
					start := time.Now()
					_, err = p.Call(t.Context(), "x", nil)
					if took := time.Since(start); errs.Of(err) != errs.Unresponsive || took != stall {
						t.Errorf("%v after %v, want %v", err, took, stall)
					}
					_ = p.Close()
					time.Sleep(2 * time.Hour)
				})
			})
		}
	}
}

// TestNoWelcome: a peer that was stopped before it could greet is unresponsive.
func TestNoWelcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dial := func(context.Context, string) (net.Conn, error) {
			here, there := net.Pipe()
			go func() { _, _ = io.Copy(io.Discard, there) }()
			return here, nil
		}
		start := time.Now()
		if _, err := Dial(t.Context(), dial, "b:1", selfA, 2, Options{}); errs.Of(err) != errs.Unresponsive || time.Since(start) != 5*time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
	})
}

// TestTrickleIsLife: an answer that takes longer than the stall timeout, byte
// by byte, is not silence.
func TestTrickleIsLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dial := func(context.Context, string) (net.Conn, error) {
			here, there := net.Pipe()
			go func() {
				_, _ = readFrame(skip(there, 8), answerLimit)
				g := wire.Greeting{MinVersion: 1, MaxVersion: 1, From: 2}
				_, _ = there.Write(appendFrame(nil, wire.Header{Type: wire.Welcome}, g.Append(nil), nil))
				f, err := readFrame(there, requestLimit)
				if err != nil {
					t.Error(err)
				}
				go func() { _, _ = io.Copy(io.Discard, there) }()
				for _, b := range appendFrame(nil, wire.Header{Type: wire.Reply, Seq: f.Seq}, nil, []byte("slow")) {
					time.Sleep(4 * time.Second)
					_, _ = there.Write([]byte{b})
				}
			}()
			return here, nil
		}
		p, err := Dial(t.Context(), dial, "b:1", selfA, 2, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := p.Call(t.Context(), "x", nil); err != nil || string(got) != "slow" {
			t.Errorf("%q, %v", got, err)
		}
		_ = p.Close()
	})
}

// TestHelloThatNeverEnds is cut off after 5 s.
func TestHelloThatNeverEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewServer(ServerOptions{Self: selfB, Logger: slog.New(slog.DiscardHandler)})
		here, there := net.Pipe()
		go s.Serve(there)
		start := time.Now()
		var wg sync.WaitGroup
		wg.Go(func() {
			for _, b := range appendFrame(nil, wire.Header{Type: wire.Hello}, make([]byte, 1000), nil) {
				time.Sleep(time.Second)
				if _, err := here.Write([]byte{b}); err != nil {
					return
				}
			}
		})
		if _, err := here.Read(make([]byte, 1)); err != io.EOF || time.Since(start) != 5*time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		s.Close()
		wg.Wait()
	})
}

// TestServerDropsSilentClients after a minute without a frame.
func TestServerDropsSilentClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewServer(ServerOptions{Self: selfB, Logger: slog.New(slog.DiscardHandler)})
		here, there := net.Pipe()
		go s.Serve(there)
		hello := wire.Greeting{MinVersion: 1, MaxVersion: 1, From: 1}
		_, _ = here.Write(appendFrame(nil, wire.Header{Type: wire.Hello}, hello.Append(nil), nil))
		if _, err := readFrame(here, answerLimit); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if _, err := here.Read(make([]byte, 1)); err != io.EOF || time.Since(start) != time.Minute {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		s.Close()
	})
}

// TestCallTimeout: a handler that waits for ever is told to end.
func TestCallTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, s, _ := pair(t, Options{}, ServerOptions{Methods: map[string]Handler{"slow": func(ctx context.Context, _ segment.Incarnation, _ []byte) ([]byte, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}}})
		start := time.Now()
		_, err := p.Call(t.Context(), "slow", nil)
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 30*time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		_ = p.Close()
		s.Close()
	})
}
