package testenv

import (
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"time"
)

// Proxy forwards TCP connections on loopback to a target and does to them what a
// bad network does. Its methods may be called at any time, from any goroutine.
//
// A connection's bytes pass an exact delay line that holds twice what rate and
// delay put under way, so that the proxy never is the narrow place. The rate is
// shared by all connections of one direction and has a queue of a millisecond.
type Proxy struct {
	Addr string // host:port that it listens on

	links [2]link
	gate  gate
	wg    sync.WaitGroup
	mu    struct {
		sync.Mutex
		target   string
		listener net.Listener // nil while it refuses
		conns    []*proxyConn // those that live
		accepted int
		faults   []Fault // those to come
		bytes    [2]uint64
		closed   bool
	}
}

// NewProxy starts a proxy in front of target, a host:port. It ends with the test.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	p := &Proxy{Addr: "127.0.0.1:0"}
	p.mu.target = target
	if err := p.Refuse(false); err != nil {
		t.Fatal(err)
	}
	p.Addr = p.mu.listener.Addr().String()
	t.Cleanup(func() {
		p.mu.Lock()
		p.mu.closed = true
		p.mu.Unlock()
		p.Refuse(true)
		p.Cut()
		p.wg.Wait()
	})
	return p
}

// Delay sets how long bytes travel, each way. Bytes under way keep theirs.
func (p *Proxy) Delay(d time.Duration) { p.Link(Up, 0, d); p.Link(Down, 0, d) }

// Link sets one direction's rate (0: no limit) and delay.
func (p *Proxy) Link(dir Dir, bitsPerSecond float64, delay time.Duration) {
	p.links[dir].set(bitsPerSecond, delay)
}

// BlackHole stops forwarding on all connections, without a sign to either end,
// or goes on where it stopped. New connections are accepted and go nowhere.
func (p *Proxy) BlackHole(on bool) { p.gate.set(on) }

// Refuse closes the listening port, so that dialling is refused, or opens the
// same port again. Connections that are there stay.
func (p *Proxy) Refuse(on bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if on == (p.mu.listener == nil) {
		return nil
	}
	if on {
		l := p.mu.listener
		p.mu.listener = nil
		return l.Close()
	}
	l, err := net.Listen("tcp", p.Addr)
	if err != nil {
		return err
	}
	p.mu.listener = l
	p.wg.Go(func() { p.accept(l) })
	return nil
}

// Target changes where new connections go.
func (p *Proxy) Target(addr string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.target = addr
}

// Cut resets every connection that lives, towards both ends.
func (p *Proxy) Cut() {
	p.mu.Lock()
	conns := slices.Clone(p.mu.conns)
	p.mu.Unlock()
	for _, c := range conns {
		c.end(true)
	}
}

// Inject adds a fault to those to come.
func (p *Proxy) Inject(f Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.faults = append(p.mu.faults, f)
}

// Pending returns how many faults are still to come.
func (p *Proxy) Pending() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.mu.faults)
}

// Bytes returns how many bytes were read from the senders of one direction.
func (p *Proxy) Bytes(dir Dir) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.bytes[dir]
}

// Conns returns how many connections were accepted, and how many of them live.
func (p *Proxy) Conns() (accepted, live int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.accepted, len(p.mu.conns)
}

func (p *Proxy) accept(l net.Listener) {
	for {
		client, err := l.Accept()
		if err != nil {
			return
		}
		c := &proxyConn{p: p, done: make(chan struct{}), lines: [2]*line{newLine(), newLine()}}
		c.ends[Up] = client
		p.mu.Lock()
		p.mu.accepted++
		c.id = p.mu.accepted
		p.mu.conns = append(p.mu.conns, c)
		p.mu.Unlock()
		p.wg.Go(func() { p.serve(c) })
	}
}

// serve runs one connection to its end.
func (p *Proxy) serve(c *proxyConn) {
	p.mu.Lock()
	target, closed := p.mu.target, p.mu.closed
	p.mu.Unlock()
	if closed || !p.gate.wait(c.done) || !c.dial(target) {
		c.end(true)
	} else {
		c.forward()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.conns = slices.DeleteFunc(p.mu.conns, func(o *proxyConn) bool { return o == c })
}

// account counts n bytes read and returns where they start: in all bytes of the
// direction.
func (p *Proxy) account(dir Dir, n int) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := p.mu.bytes[dir]
	p.mu.bytes[dir] += uint64(n)
	return at
}

// take removes and returns the first fault that hits bytes [pos, pos+n) of a
// piece that starts at byte own of its connection and byte all of its direction.
func (p *Proxy) take(dir Dir, conn int, own, all uint64, pos, n int) (f Fault, at int, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	best := -1
	for i, f := range p.mu.faults {
		start := all
		if f.Conn != 0 {
			start = own
		}
		rel := pos
		if f.At > start+uint64(pos) {
			rel = int(min(f.At-start, uint64(pos+n)))
		}
		if f.Dir == dir && (f.Conn == 0 || f.Conn == conn) && rel < pos+n && (best < 0 || rel < at) {
			best, at = i, rel
		}
	}
	if best < 0 {
		return Fault{}, 0, false
	}
	f = p.mu.faults[best]
	p.mu.faults = slices.Delete(p.mu.faults, best, best+1)
	return f, at, true
}

// proxyConn is one forwarded connection.
type proxyConn struct {
	p     *Proxy
	id    int
	lines [2]*line
	gate  gate // shut for ever by a Stall
	mu    sync.Mutex
	ends  [2]net.Conn // who sends Up, who sends Down
	over  bool
	done  chan struct{}
}

func (c *proxyConn) dial(target string) bool {
	server, err := net.DialTimeout("tcp", target, 10*time.Second)
	if err != nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		server.Close()
		return false
	}
	c.ends[Down] = server
	return true
}

// forward moves bytes both ways until both streams have ended.
func (c *proxyConn) forward() {
	var wg sync.WaitGroup
	for _, dir := range []Dir{Up, Down} {
		wg.Go(func() { c.read(dir) })
		wg.Go(func() { c.write(dir) })
	}
	wg.Wait()
	c.end(false)
}

// read takes bytes from who sends in dir, edits them and puts them on the line.
func (c *proxyConn) read(dir Dir) {
	line, link, src := c.lines[dir], &c.p.links[dir], c.ends[dir]
	var clock sleeper
	defer clock.close()
	var own, all uint64
	edit := editor{next: func(pos, n int) (Fault, int, bool) { return c.p.take(dir, c.id, own, all, pos, n) }}
	for c.p.gate.wait(c.done) && c.gate.wait(c.done) {
		turn, ok := link.admit(&clock, c.done)
		if !ok {
			return
		}
		buf := line.buffer()
		n, err := src.Read(buf[:turn.chunk])
		all = c.p.account(dir, n)
		out, ends := edit.edit(buf[:n])
		own += uint64(n)
		if err != nil && ends == 0 {
			out, ends = append(out, edit.rest()...), Close
			if !errors.Is(err, io.EOF) {
				ends = Reset
			}
		}
		if n < chunkMax/4 { // a small one does not keep a big buffer
			out = slices.Clone(out)
			line.recycle(buf)
		}
		ok = line.push(chunk{out, link.enter(n, turn.late), ends}, turn.capacity)
		if ends == Close && err == nil { // unread bytes would make a reset of it
			io.Copy(io.Discard, src)
		}
		if !ok || ends != 0 {
			return
		}
	}
}

// write takes bytes from the line when they are due.
func (c *proxyConn) write(dir Dir) {
	line, dst := c.lines[dir], c.ends[1-dir]
	var clock sleeper
	defer clock.close()
	for {
		k, ok := line.pop()
		if !ok || !clock.until(k.due, c.done) || !c.p.gate.wait(c.done) || !c.gate.wait(c.done) {
			return
		}
		_, err := dst.Write(k.buf)
		line.left(len(k.buf))
		line.recycle(k.buf)
		switch {
		case err != nil || k.ends == Reset:
			c.end(true)
			return
		case k.ends == Close:
			dst.(*net.TCPConn).CloseWrite()
			return
		case k.ends == Stall:
			c.gate.set(true)
			<-c.done
			return
		}
	}
}

// end closes both sides once, with a reset if asked.
func (c *proxyConn) end(reset bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return
	}
	c.over = true
	close(c.done)
	for dir, conn := range c.ends {
		c.lines[dir].close()
		if tcp, ok := conn.(*net.TCPConn); ok {
			if reset {
				tcp.SetLinger(0)
			}
			tcp.Close()
		}
	}
}

// gate is open, or shut and makes who comes wait. The zero value is open.
type gate struct {
	mu   sync.Mutex
	shut chan struct{} // closed when it opens; nil while it is open
}

func (g *gate) set(shut bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case shut && g.shut == nil:
		g.shut = make(chan struct{})
	case !shut && g.shut != nil:
		close(g.shut)
		g.shut = nil
	}
}

// wait waits while the gate is shut. It returns false when done was closed.
func (g *gate) wait(done <-chan struct{}) bool {
	for {
		g.mu.Lock()
		shut := g.shut
		g.mu.Unlock()
		if shut == nil {
			select {
			case <-done:
				return false
			default:
				return true
			}
		}
		select {
		case <-shut:
		case <-done:
			return false
		}
	}
}
