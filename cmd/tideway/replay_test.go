package main

import (
	"bytes"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/tideway-io/tideway/internal/testenv"
)

// tape is a relay in front of an address that keeps what clients say.
type tape struct {
	l    net.Listener
	to   string
	mu   sync.Mutex
	said []*bytes.Buffer // by connection
	wg   sync.WaitGroup
}

func newTape(t *testing.T, to string) *tape {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &tape{l: l, to: to}
	p.wg.Go(p.run)
	t.Cleanup(func() { l.Close(); p.wg.Wait() })
	return p
}

func (p *tape) run() {
	for {
		c, err := p.l.Accept()
		if err != nil {
			return
		}
		p.wg.Go(func() { p.relay(c) })
	}
}

func (p *tape) relay(c net.Conn) {
	defer c.Close()
	s, err := net.Dial("tcp", p.to)
	if err != nil {
		return
	}
	defer s.Close()
	b := &bytes.Buffer{}
	p.mu.Lock()
	p.said = append(p.said, b)
	p.mu.Unlock()
	p.wg.Go(func() { _, _ = io.Copy(c, s); c.Close() })
	_, _ = io.Copy(io.MultiWriter(s, b), c)
}

// replay says all of it again, each connection on one of its own, and returns
// how many bytes that was.
func (p *tape) replay(t *testing.T) (total int) {
	t.Helper()
	p.wg.Wait() // what was said is complete
	for _, b := range p.said {
		c, err := net.Dial("tcp", p.to)
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(patience))
		n, _ := c.Write(b.Bytes()) // it may be hung up on
		total += n
		_ = c.(*net.TCPConn).CloseWrite()
		_, _ = io.Copy(io.Discard, c)
		c.Close()
	}
	return total
}

// WRITEs that somebody recorded are worth nothing to the next life of a server:
// they name the one before. To the same life they are what anybody who can reach
// it may send, and do it no other harm.
func TestReplayedWrites(t *testing.T) {
	const size = 4 << 20
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	p := newTape(t, addr)
	at := p.l.Addr().String()
	serve := []string{"tideway", "serve", "--listen", addr, "--advertise", at, "--memory", "m=4MiB"}
	s := testenv.Start(t, serve...)
	s.Expect(patience, "serving at ")
	src := patternFile(t, t.TempDir(), "src", size, 1)
	runs(t, "put", "--transport", "tcp", src, at+"/m")
	p.l.Close() // from here on only the server itself is spoken to
	if n := p.replay(t); n < size {
		t.Fatalf("only %d bytes were recorded", n)
	}
	s.Kill()
	serve[5] = addr
	s = testenv.Start(t, serve...)
	s.Expect(patience, "serving at ")
	p.replay(t)
	to := filepath.Join(t.TempDir(), "out")
	runs(t, "get", "--transport", "tcp", addr+"/m", to)
	if got, err := os.ReadFile(to); err != nil || !bytes.Equal(got, make([]byte, size)) {
		t.Errorf("%d bytes, %v: memory of the next life was written to", len(got), err)
	}
	runs(t, "put", "--transport", "tcp", src, addr+"/m")
}
