package control

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/wire"
)

var greetingA = appendFrame(nil, wire.Header{Type: wire.Hello}, (&wire.Greeting{MinVersion: 1, MaxVersion: 1, From: 1, Name: "a"}).Append(nil), nil)

// TestFlippedFrames: one bit wrong anywhere, and the frame is refused.
func TestFlippedFrames(t *testing.T) {
	whole := appendFrame(nil, wire.Header{Type: wire.Call, Seq: 7}, []byte("method"), []byte("some body"))
	for at := range whole {
		for bit := range 8 {
			p := bytes.Clone(whole)
			p[at] ^= 1 << bit
			f, err := readFrame(bytes.NewReader(p), requestLimit)
			if err == nil && !(at == 1 && bit == 0) {
				t.Errorf("byte %d bit %d: %+v", at, bit, f)
			}
			if err == nil && at == 1 {
				t.Errorf("the flag of the sum is not covered")
			}
		}
	}
	if f, err := readFrame(bytes.NewReader(whole), requestLimit); err != nil || string(f.meta) != "method" || string(f.body) != "some body" || f.Seq != 7 {
		t.Errorf("%+v, %v", f, err)
	}
	for n := 1; n < len(whole); n++ {
		if _, err := readFrame(bytes.NewReader(whole[:n]), requestLimit); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
}

func TestFramesThatAreRefused(t *testing.T) {
	frame := func(typ wire.Type, flags uint8, meta, body int) []byte {
		return appendFrame(nil, wire.Header{Type: typ, Flags: flags}, make([]byte, meta), make([]byte, body))
	}
	for name, c := range map[string]struct {
		p  []byte
		ok bool
	}{
		"long method":       {frame(wire.Call, 0, MaxName+1, 0), false},
		"long body":         {frame(wire.Call, 0, 1, MaxBody+1), false},
		"a body of a ping":  {frame(wire.Ping, 0, 0, 1), false},
		"a reply":           {frame(wire.Reply, 0, 0, 0), false},
		"a write":           {frame(wire.Write, 0, 0, 0), false},
		"unknown":           {frame(99, 0, 0, 0), false},
		"unknown, optional": {frame(99, wire.FlagOptional, 10, 0), true},
		"a second hello":    {greetingA, false},
		"pong":              {frame(wire.Pong, 0, 0, 0), true},
	} {
		s := NewServer(ServerOptions{Self: selfB, Logger: slog.New(slog.DiscardHandler)})
		here, there := net.Pipe()
		go s.Serve(there)
		_ = here.SetDeadline(time.Now().Add(10 * time.Second))
		_, _ = here.Write(greetingA)
		if _, err := readFrame(here, answerLimit); err != nil {
			t.Fatal(err)
		}
		go func() {
			_, _ = here.Write(append(c.p, appendFrame(nil, wire.Header{Type: wire.Ping, Seq: 3}, nil, nil)...))
		}()
		f, err := readFrame(here, answerLimit)
		if alive := err == nil && f.Type == wire.Pong && f.Seq == 3; alive != c.ok {
			t.Errorf("%s: %+v, %v", name, f, err)
		}
		s.Close()
		_ = here.Close()
	}
}

// TestHostileServer: what a client is sent that no server sends ends the
// connection, with an error that says what.
func TestHostileServer(t *testing.T) {
	for name, c := range map[string]struct {
		p    []byte
		code errs.Code
	}{
		"a call":             {appendFrame(nil, wire.Header{Type: wire.Call}, []byte("m"), nil), errs.Invalid},
		"a body of a pong":   {appendFrame(nil, wire.Header{Type: wire.Pong}, nil, []byte("x")), errs.Invalid},
		"garbage":            {bytes.Repeat([]byte{0xff}, 64), errs.Invalid},
		"a flip":             {flip(appendFrame(nil, wire.Header{Type: wire.Reply, Seq: 1}, nil, []byte("x")), 33), errs.Checksum},
		"nothing":            {nil, errs.LaneLost},
		"a half frame":       {appendFrame(nil, wire.Header{Type: wire.Reply, Seq: 1}, nil, []byte("x"))[:33], errs.LaneLost},
		"an unasked reply":   {appendFrame(nil, wire.Header{Type: wire.Reply, Seq: 77}, nil, nil), errs.LaneLost},
		"unknown, optional":  {appendFrame(nil, wire.Header{Type: 99, Flags: wire.FlagOptional}, nil, nil), errs.LaneLost},
		"a ping and nothing": {appendFrame(nil, wire.Header{Type: wire.Ping}, nil, nil), errs.LaneLost},
	} {
		dial := func(context.Context, string) (net.Conn, error) {
			here, there := net.Pipe()
			go func() {
				_, _ = readFrame(skip(there, 8), answerLimit)
				g := wire.Greeting{MinVersion: 1, MaxVersion: 1, From: 2}
				_, _ = there.Write(append(appendFrame(nil, wire.Header{Type: wire.Welcome}, g.Append(nil), nil), c.p...))
				_ = there.Close()
			}()
			return here, nil
		}
		p, err := Dial(t.Context(), dial, "x:1", selfA, 2, Options{})
		if err != nil {
			t.Fatal(name, err)
		}
		_, err = p.Call(t.Context(), "m", nil)
		if errs.Of(err) != c.code || errs.Of(p.Err()) != c.code {
			t.Errorf("%s: %v, %v, want %v", name, err, p.Err(), c.code)
		}
		_ = p.Close()
	}
}

// TestLyingServerCostsLittle: lengths are not believed before they are checked.
func TestLyingServerCostsLittle(t *testing.T) {
	h := wire.Header{Type: wire.Reply, Payload: wire.MaxFrame}
	p := make([]byte, wire.HeaderSize)
	h.Put(p)
	if n := testing.AllocsPerRun(100, func() {
		if _, err := readFrame(bytes.NewReader(p), answerLimit); !errors.Is(err, errs.ErrChecksum) {
			t.Fatal(err)
		}
	}); n > 20 {
		t.Errorf("%v allocations", n)
	}
}

// FuzzServer feeds a greeted server arbitrary bytes: it never panics, and always
// ends when the connection does.
func FuzzServer(f *testing.F) {
	f.Add(appendFrame(nil, wire.Header{Type: wire.Call, Seq: 1}, []byte("echo"), []byte("x")))
	f.Add(appendFrame(nil, wire.Header{Type: wire.Notify, Seq: 1}, []byte("n"), nil))
	f.Add(appendFrame(nil, wire.Header{Type: wire.Ping, Seq: 1}, nil, nil))
	f.Fuzz(func(t *testing.T, p []byte) {
		s := NewServer(ServerOptions{
			Self: selfB, Methods: map[string]Handler{"echo": echo}, Logger: slog.New(slog.DiscardHandler),
			OnNotify: func(string, string, []byte) errs.Code { return errs.OK },
		})
		here, there := net.Pipe()
		served := make(chan struct{})
		go func() {
			s.Serve(there)
			close(served)
		}()
		go func() { _, _ = io.Copy(io.Discard, here) }()
		_, _ = here.Write(append(bytes.Clone(greetingA), p...))
		_ = here.Close()
		<-served
		s.Close()
	})
}

func FuzzFrame(f *testing.F) {
	f.Add(appendFrame(nil, wire.Header{Type: wire.Call, Seq: 7}, []byte("method"), []byte("some body")))
	f.Add(greetingA)
	f.Fuzz(func(t *testing.T, p []byte) {
		g, err := readFrame(bytes.NewReader(p), func(wire.Type) (int, int) { return wire.MaxMeta, wire.MaxFrame })
		if err != nil || g.Flags != wire.FlagSums || g.Type == wire.Write || g.Type == wire.Data || len(g.body) == 0 {
			return
		}
		h := g.Header
		h.Flags = 0
		if again := appendFrame(nil, h, g.meta, g.body); g.TrailerSize() > 0 && !bytes.HasPrefix(p, again) {
			t.Fatalf("%x\n%x", p, again)
		}
	})
}
