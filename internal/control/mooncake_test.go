package control

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/mooncake"
	"github.com/tideway-io/tideway/internal/testenv"
	"github.com/tideway-io/tideway/segment"
)

// daemon serves handshake frames behind a loopback listener.
func daemon(t *testing.T, opts MooncakeOptions) string {
	t.Helper()
	testenv.Leak(t)
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	m := NewMooncake(opts)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				var first [8]byte
				if _, err := io.ReadFull(conn, first[:]); err != nil {
					_ = conn.Close()
					return
				}
				m.Serve(first, conn)
			})
		}
	})
	t.Cleanup(func() {
		_ = ln.Close()
		wg.Wait()
	})
	return ln.Addr().String()
}

// exchange sends bytes and returns all that comes back until the other side
// ends its writing.
func exchange(t *testing.T, addr string, p []byte) []byte {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	_, _ = conn.Write(p)
	got, err := io.ReadAll(conn)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
	return got
}

func capture(t *testing.T, name string) []byte {
	t.Helper()
	p, err := os.ReadFile("../mooncake/testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestMooncakeFrames: what real engines sent gets the bytes that real engines
// answered.
func TestMooncakeFrames(t *testing.T) {
	target, _, err := mooncake.DecodeDesc(capture(t, "tcp-reply.json"))
	if err != nil {
		t.Fatal(err)
	}
	var b box
	addr := daemon(t, MooncakeOptions{Desc: func() *segment.Desc { return target }, OnNotify: b.take})

	want := capture(t, "metadata-reply.bin")
	got := exchange(t, addr, capture(t, "metadata-request.bin"))
	stamp := bytes.Index(want, []byte(`"timestamp":"`)) + len(`"timestamp":"`)
	if len(got) != len(want) || !bytes.Equal(got[:stamp], want[:stamp]) || !bytes.Equal(got[len(got)-3:], want[len(want)-3:]) {
		t.Errorf("metadata:\n%q\n%q", got, want)
	}
	if got := exchange(t, addr, capture(t, "notify-request.bin")); !bytes.Equal(got, capture(t, "notify-reply.bin")) || b.times("/golden-notify/hello from initiator") != 1 {
		t.Errorf("notify: %q, %v", got, b.count)
	}
	b.refuse = errs.Overloaded
	if got := exchange(t, addr, capture(t, "notify-request.bin")); !strings.HasSuffix(string(got), `{"name":"","notify_msg":""}`+"\n") {
		t.Errorf("refused notify: %q", got)
	}
	if got := exchange(t, addr, []byte("\x04\x00\x00\x00\x00\x00\x00\x00\x03{}\n")); string(got) != "\x16\x00\x00\x00\x00\x00\x00\x00\x03{\"status\":\"success\"}\n" {
		t.Errorf("probe: %q", got)
	}
	empty := capture(t, "connection-reply.json")
	request := bytes.TrimSpace(capture(t, "connection-request.json"))
	if got := exchange(t, addr, mooncake.AppendFrame(nil, mooncake.Connection, request)); !bytes.Equal(got, mooncake.AppendFrame(nil, mooncake.Connection, bytes.TrimSpace(empty))) {
		t.Errorf("connection: %q", got)
	}
	if got := exchange(t, addr, mooncake.AppendFrame(nil, mooncake.Untyped, request)); !bytes.Equal(got, mooncake.AppendFrame(nil, mooncake.Untyped, bytes.TrimSpace(empty))) {
		t.Errorf("untyped connection: %q", got)
	}
}

// TestStoreModeAnswersNull, as a real engine without a handler does.
func TestStoreModeAnswersNull(t *testing.T) {
	addr := daemon(t, MooncakeOptions{})
	if got := exchange(t, addr, capture(t, "metadata-request.bin")); string(got) != "\x06\x00\x00\x00\x00\x00\x00\x00\x01null\n" {
		t.Errorf("%q", got)
	}
	if got := exchange(t, addr, capture(t, "notify-request.bin")); !strings.HasSuffix(string(got), `"notify_msg":""}`+"\n") {
		t.Errorf("%q", got)
	}
}

// TestMalformedIsNotAnswered, and what makes a real engine abort is survived.
func TestMalformedIsNotAnswered(t *testing.T) {
	addr := daemon(t, MooncakeOptions{Desc: func() *segment.Desc { return published(1, 0) }, OnNotify: func(string, string, []byte) errs.Code { return errs.OK }})
	frame := func(body string) []byte {
		return append(binary.LittleEndian.AppendUint64(nil, uint64(len(body))), body...)
	}
	for name, p := range map[string][]byte{
		"an array": frame("\x02[]\n"), "text": frame("\x02\"x\"\n"), "a kind above 3": frame("\x04{}\n"), "kind 0x80": frame("\x80{}\n"),
		"length 0": make([]byte, 8), "above the limit": binary.LittleEndian.AppendUint64(nil, 1<<20+1), "metadata of nothing": frame("\x01"),
		"metadata of an array": frame("\x01[]"), "wrong members": frame("\x00{\"qp_num\":[[]]}"), "half json": frame("\x03{"),
		"deep nesting": frame("\x01" + strings.Repeat("[", 1<<19)), "deep objects": frame("\x01" + strings.Repeat(`{"a":`, 1<<17)),
		"a number for text": frame("\x02{\"name\":7}"), "an object for text": frame("\x02{\"notify_msg\":{}}"), "a negative number": frame("\x00{\"qp_num\":[-1]}"),
		"a number beyond 64 bits": frame("\x00{\"qp_num\":[18446744073709551616]}"), "text, untyped": frame("GET / HTTP/1.1\r\n\r\n"),
	} {
		if got := exchange(t, addr, p); len(got) != 0 {
			t.Errorf("%s: %q", name, got)
		}
	}
	if got := exchange(t, addr, []byte("\x04\x00\x00\x00\x00\x00\x00\x00\x03{}\n")); len(got) == 0 {
		t.Error("no answer any more")
	}
}

// TestSilentClientHoldsNobodyUp: real engines serve one at a time.
func TestSilentClientHoldsNobodyUp(t *testing.T) {
	addr := daemon(t, MooncakeOptions{ReadTimeout: time.Second})
	for range 5 {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		_, _ = conn.Write(binary.LittleEndian.AppendUint64(nil, 100))
	}
	start := time.Now()
	if got := exchange(t, addr, []byte("\x04\x00\x00\x00\x00\x00\x00\x00\x03{}\n")); len(got) == 0 || time.Since(start) > 900*time.Millisecond {
		t.Errorf("%q after %v", got, time.Since(start))
	}
}

// TestMooncakeTimeouts: 5 s without a byte, 30 s for a whole request, and 5 s for
// a client that does not close.
func TestMooncakeTimeouts(t *testing.T) {
	length := [8]byte{100}
	for name, c := range map[string]struct {
		every time.Duration
		want  time.Duration
	}{"silent": {time.Hour, 5 * time.Second}, "trickling": {4 * time.Second, 30 * time.Second}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := NewMooncake(MooncakeOptions{Logger: slog.New(slog.DiscardHandler)})
				here, there := net.Pipe()
				start := time.Now()
				go func() {
					for {
						time.Sleep(c.every)
						if _, err := here.Write([]byte{3}); err != nil {
							return
						}
					}
				}()
				m.Serve(length, there)
				if took := time.Since(start); took != c.want {
					t.Errorf("ended after %v, want %v", took, c.want)
				}
				time.Sleep(2 * time.Hour)
			})
		})
	}
	t.Run("does not close", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			m := NewMooncake(MooncakeOptions{Logger: slog.New(slog.DiscardHandler)})
			here, there := net.Pipe()
			start := time.Now()
			go func() {
				_, _ = here.Write([]byte("\x03{}\n"))
				_, _ = io.Copy(io.Discard, here)
			}()
			m.Serve([8]byte{4}, there)
			if took := time.Since(start); took != 5*time.Second {
				t.Errorf("ended after %v", took)
			}
		})
	})
}

// TestLongFramesAreBounded: only so many of them are in memory at a time, and
// short ones are served meanwhile.
func TestLongFramesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMooncake(MooncakeOptions{Logger: slog.New(slog.DiscardHandler)})
		var first [8]byte
		binary.LittleEndian.PutUint64(first[:], 1<<20)
		var ended atomic.Int32
		start := time.Now()
		var ends []net.Conn
		for range maxLong + 1 {
			here, there := net.Pipe()
			ends = append(ends, here)
			go func() { // slow, but never silent
				for {
					time.Sleep(time.Second)
					if _, err := here.Write([]byte{1}); err != nil {
						return
					}
				}
			}()
			go func() {
				m.Serve(first, there)
				ended.Add(1)
			}()
		}
		time.Sleep(5*time.Second + time.Millisecond)
		if n := ended.Load(); n != 1 {
			t.Errorf("%d of %d gave up after %v", n, maxLong+1, time.Since(start))
		}
		here, there := net.Pipe()
		go m.Serve([8]byte{4}, there)
		_, _ = here.Write([]byte("\x03{}\n"))
		if _, err := mooncake.ReadFrame(here, 1<<10); err != nil {
			t.Error("a short one:", err)
		}
		_ = here.Close()
		for _, c := range ends {
			_ = c.Close()
		}
		time.Sleep(time.Minute)
	})
}

// TestAnswersAreKept: the same descriptor is not encoded again, another one is,
// and native peers get no list that they would not read.
func TestAnswersAreKept(t *testing.T) {
	d := published(1, 20_000)
	m := NewMooncake(MooncakeOptions{Desc: func() *segment.Desc { return d }})
	first, err := m.describe(false)
	if err != nil {
		t.Fatal(err)
	}
	second, _ := m.describe(false)
	if &first[0] != &second[0] {
		t.Error("encoded twice")
	}
	short, err := m.describe(true)
	if err != nil || len(short) > 1000 || len(first) < 1_000_000 {
		t.Errorf("%d bytes for native peers, %d for others, %v", len(short), len(first), err)
	}
	d = published(2, 1)
	if third, err := m.describe(false); err != nil || len(third) > 1000 {
		t.Errorf("%d bytes of the new one, %v", len(third), err)
	}
}
