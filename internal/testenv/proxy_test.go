package testenv

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"
)

// echo is a server that sends back what it gets and then closes.
func echo(t *testing.T) string {
	t.Helper()
	return server(t, func(c net.Conn) { io.Copy(c, c) })
}

// server handles each connection until the test ends.
func server(t *testing.T, handle func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serve(t, l, handle)
	return l.Addr().String()
}

// serve handles each connection in a goroutine, and ends them all with the test.
func serve(t *testing.T, l net.Listener, handle func(net.Conn)) {
	var wg sync.WaitGroup
	ctx, stop := context.WithCancel(context.Background())
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			context.AfterFunc(ctx, func() { c.Close() })
			wg.Go(func() { handle(c); c.Close() })
		}
	})
	t.Cleanup(func() { l.Close(); stop(); wg.Wait() })
}

func dial(t *testing.T, addr string) *net.TCPConn {
	t.Helper()
	c, err := net.DialTimeout("tcp", addr, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	c.SetDeadline(time.Now().Add(20 * time.Second))
	t.Cleanup(func() { c.Close() })
	return c.(*net.TCPConn)
}

// through sends data to an echo server behind p and returns what comes back.
func through(t *testing.T, p *Proxy, data []byte) ([]byte, error) {
	t.Helper()
	c := dial(t, p.Addr)
	go func() { c.Write(data); c.CloseWrite() }()
	return io.ReadAll(c)
}

func pattern(n int) []byte {
	b := make([]byte, n)
	Fill(b, KeyOf(1, 1), 0)
	return b
}

func TestProxyForwards(t *testing.T) {
	Leak(t)
	p := NewProxy(t, echo(t))
	const conns, size = 8, 3 << 20
	errs := make(chan error, conns)
	for range conns {
		go func() {
			c, err := net.Dial("tcp", p.Addr)
			if err != nil {
				errs <- err
				return
			}
			defer c.Close()
			go func() { c.Write(pattern(size)); c.(*net.TCPConn).CloseWrite() }()
			got, err := io.ReadAll(c)
			errs <- errors.Join(err, Verify(got, KeyOf(1, 1), 0))
		}()
	}
	for range conns {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if up, down := p.Bytes(Up), p.Bytes(Down); up != conns*size || down != conns*size {
		t.Errorf("counted %d up and %d down, want %d each", up, down, conns*size)
	}
	Eventually(t, 5*time.Second, func() bool { accepted, live := p.Conns(); return accepted == conns && live == 0 })
}

func TestProxyFaults(t *testing.T) {
	Leak(t)
	const size, at, n = 1 << 20, 300_001, 70_000 // the range spans more than one piece
	data := pattern(size)
	flipped := slices.Clone(data)
	flipped[at] ^= 0x40
	target := echo(t)
	for _, c := range []struct {
		name string
		kind Kind
		want []byte
		err  error
	}{
		{"flip", Flip, flipped, nil},
		{"delete", Delete, slices.Concat(data[:at], data[at+n:]), nil},
		{"repeat", Repeat, slices.Concat(data[:at+n], data[at:]), nil},
		{"swap", Swap, slices.Concat(data[:at], data[at+n:at+2*n], data[at:at+n], data[at+2*n:]), nil},
		{"close", Close, data[:at], nil},
		{"reset", Reset, nil, syscall.ECONNRESET},
	} {
		for _, dir := range []Dir{Up, Down} {
			p := NewProxy(t, target)
			p.Inject(Fault{Dir: dir, Kind: c.kind, At: at, Len: n})
			got, err := through(t, p, data)
			if !errors.Is(err, c.err) {
				t.Errorf("%s, direction %d: %v, want %v", c.name, dir, err, c.err)
			}
			if c.want != nil && !bytes.Equal(got, c.want) {
				t.Errorf("%s, direction %d: %d bytes, want %d: %v", c.name, dir, len(got), len(c.want), Verify(got, KeyOf(1, 1), 0))
			}
			if c.want == nil && (len(got) > at || !bytes.HasPrefix(data, got)) {
				t.Errorf("%s, direction %d: %d bytes, want at most the first %d", c.name, dir, len(got), at)
			}
			if p.Pending() != 0 {
				t.Errorf("%s: the fault did not happen", c.name)
			}
		}
	}
}

// Faults come in the order of the bytes, each once, and only where they belong.
func TestProxyFaultsByConnection(t *testing.T) {
	p := NewProxy(t, echo(t))
	p.Inject(Fault{Kind: Flip, Conn: 2, At: 5})
	p.Inject(Fault{Kind: Flip, Conn: 2, At: 3})
	p.Inject(Fault{Kind: Flip, Conn: 2, At: 3})
	p.Inject(Fault{Kind: Flip, At: 25}) // any connection: byte 5 of the third ten
	var got [][]byte
	for range 4 {
		b, err := through(t, p, make([]byte, 10))
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, b)
	}
	want := [][]byte{make([]byte, 10), {0, 0, 0, 0x40, 0x40, 0x40, 0, 0, 0, 0}, {0, 0, 0, 0, 0, 0x40, 0, 0, 0, 0}, make([]byte, 10)}
	for i := range want {
		if !bytes.Equal(got[i], want[i]) {
			t.Errorf("connection %d: % x, want % x", i+1, got[i], want[i])
		}
	}
}

func TestProxyLetsGoOfHeldBytes(t *testing.T) {
	for _, k := range []Kind{Swap, Repeat} {
		p := NewProxy(t, echo(t))
		p.Inject(Fault{Kind: k, At: 4, Len: 100})
		got, err := through(t, p, pattern(10))
		if err != nil || !bytes.Equal(got, pattern(10)) {
			t.Errorf("kind %d: %x, %v", k, got, err)
		}
	}
}

func TestProxyStalls(t *testing.T) {
	Leak(t)
	p := NewProxy(t, echo(t))
	p.Inject(Fault{Kind: Stall, Conn: 1, At: 4})
	stalled, other := dial(t, p.Addr), dial(t, p.Addr)
	stalled.Write([]byte("12345678"))
	buf := make([]byte, 8)
	stalled.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if n, err := io.ReadFull(stalled, buf); !isTimeout(err) || n > 4 { // the first four may come back before the stall
		t.Errorf("a stalled connection: %d bytes, %v", n, err)
	}
	other.Write([]byte("other"))
	if _, err := io.ReadFull(other, buf[:5]); err != nil {
		t.Errorf("another connection stalls too: %v", err)
	}
}

func isTimeout(err error) bool {
	var n net.Error
	return errors.As(err, &n) && n.Timeout()
}

func TestProxyBlackHole(t *testing.T) {
	Leak(t)
	p := NewProxy(t, echo(t))
	c := dial(t, p.Addr)
	buf := make([]byte, 4)
	ping := func(c net.Conn) error {
		if _, err := c.Write([]byte("ping")); err != nil {
			return err
		}
		_, err := io.ReadFull(c, buf)
		return err
	}
	if err := ping(c); err != nil {
		t.Fatal(err)
	}
	p.BlackHole(true)
	late := dial(t, p.Addr) // accepted, and nothing more
	for _, c := range []net.Conn{c, late} {
		c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		if err := ping(c); !isTimeout(err) {
			t.Errorf("in a black hole: %v, want silence", err)
		}
		c.SetReadDeadline(time.Now().Add(10 * time.Second))
	}
	p.BlackHole(false)
	for _, c := range []net.Conn{c, late} {
		if _, err := io.ReadFull(c, buf); err != nil || string(buf) != "ping" {
			t.Errorf("what was held does not come: %q, %v", buf, err)
		}
	}
}

func TestProxyCutRefuseTarget(t *testing.T) {
	Leak(t)
	p := NewProxy(t, echo(t))
	c := dial(t, p.Addr)
	c.Write([]byte("x"))
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	p.Cut()
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("after Cut: %v, want a reset", err)
	}
	p.Refuse(true)
	if _, err := net.Dial("tcp", p.Addr); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("while it refuses: %v", err)
	}
	if err := p.Refuse(false); err != nil {
		t.Fatal(err)
	}
	p.Target(server(t, func(c net.Conn) { io.WriteString(c, "second") }))
	if got, err := io.ReadAll(dial(t, p.Addr)); string(got) != "second" {
		t.Errorf("after Target: %q, %v", got, err)
	}
	p.Target("127.0.0.1:1") // nobody listens there
	last, err := net.Dial("tcp", p.Addr)
	if err == nil {
		_, err = last.Read(make([]byte, 1))
		last.Close()
	}
	if !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, io.EOF) {
		t.Errorf("a dead target: %v, want the end", err)
	}
}

// A round trip takes twice the delay and hardly more, also while the line is full.
func TestProxyDelay(t *testing.T) {
	const delay = 10 * time.Millisecond
	p := NewProxy(t, echo(t))
	p.Delay(delay)
	c := dial(t, p.Addr)
	best := time.Hour
	for range 10 {
		start := time.Now()
		c.Write([]byte("x"))
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		took := time.Since(start)
		if took < 2*delay {
			t.Fatalf("a round trip took %v, less than twice %v", took, delay)
		}
		best = min(best, took)
	}
	if best > 3*delay {
		t.Errorf("the best of ten round trips took %v, want little more than %v", best, 2*delay)
	}
}

// The line holds what rate and delay put under way, so that delay does not lower
// the rate: a window of 64 KiB would take fifteen times as long.
func TestProxyRate(t *testing.T) {
	const bits, size, delay = 400e6, 20 << 20, 20 * time.Millisecond
	p := NewProxy(t, server(t, func(c net.Conn) { io.Copy(io.Discard, c) }))
	p.Link(Up, bits, delay)
	ideal := time.Duration(size * 8 / bits * float64(time.Second))
	best := time.Hour
	for range 3 { // a busy machine is slow now and then
		start := time.Now()
		c := dial(t, p.Addr)
		c.Write(make([]byte, size))
		c.CloseWrite()
		if _, err := io.ReadAll(c); err != nil {
			t.Fatal(err)
		}
		if best = min(best, time.Since(start)); best < ideal {
			t.Fatalf("%d MiB at %v Mbit/s took %v, less than %v", size>>20, bits/1e6, best, ideal)
		}
		if best < 2*ideal {
			return
		}
	}
	if best > 6*ideal {
		t.Errorf("%d MiB at %v Mbit/s took %v, want %v and little more", size>>20, bits/1e6, best, ideal)
	}
}
