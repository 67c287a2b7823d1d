package tcp

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// memNet is a network in memory whose connections are links, so that whole
// transports run in a synctest bubble. It can cut and freeze what it carries.
type memNet struct {
	mu        sync.Mutex
	changed   *sync.Cond
	listeners map[string]*memListener
	next      int
	room      int                   // bytes that each direction of a connection holds
	short     *rand.Rand            // if set, calls move a random part of what they could
	cut       func() (bytes int64)  // if set, says after how many bytes a new connection is reset
	conns     map[*memConn]struct{} // client ends
}

func newMemNet(room int) *memNet {
	n := &memNet{listeners: map[string]*memListener{}, room: room, conns: map[*memConn]struct{}{}}
	n.changed = sync.NewCond(&n.mu)
	return n
}

type memListener struct {
	net    *memNet
	addr   memAddr
	queue  []*memConn
	closed bool
	frozen bool // its host neither receives nor sends
}

type memAddr string

func (memAddr) Network() string  { return "mem" }
func (a memAddr) String() string { return string(a) }

func (n *memNet) listen() (net.Listener, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.next++
	l := &memListener{net: n, addr: memAddr(fmt.Sprintf("mem:%d", n.next))}
	n.listeners[string(l.addr)] = l
	return l, nil
}

func (n *memNet) dial(_ context.Context, addr string) (net.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := n.listeners[addr]
	if l == nil || l.closed {
		return nil, &net.OpError{Op: "dial", Net: "mem", Err: unix.ECONNREFUSED}
	}
	life := int64(1) << 62
	if n.cut != nil {
		life = n.cut()
	}
	w := &memWire{life: life}
	c := &memConn{net: n, wire: w, local: "mem:client", remote: l.addr}
	s := &memConn{net: n, wire: w, local: l.addr, remote: "mem:client", host: l}
	c.peer, s.peer = s, c
	l.queue = append(l.queue, s)
	n.conns[c] = struct{}{}
	n.changed.Broadcast()
	return c, nil
}

// freeze stops or resumes everything that the host behind addr does on the
// network, like SIGSTOP: what is sent to it piles up.
func (n *memNet) freeze(addr string, frozen bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.listeners[addr].frozen = frozen
	n.changed.Broadcast()
}

// pair has the first connection of h's endpoint frozen with h.
func (n *memNet) pair(ep *Endpoint, h *host) {
	n.mu.Lock()
	defer n.mu.Unlock()
	(*ep.table.Load())[0].lane.link.(*memConn).host = n.listeners[h.desc.Addr]
}

// reset cuts every connection that is open, losing what is under way.
func (n *memNet) reset() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for c := range n.conns {
		c.wire.reset = true
	}
	n.changed.Broadcast()
}

// open returns how many connections are not closed at both ends.
func (n *memNet) open() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.conns)
}

func (l *memListener) Accept() (net.Conn, error) {
	l.net.mu.Lock()
	defer l.net.mu.Unlock()
	for len(l.queue) == 0 || l.frozen {
		if l.closed {
			return nil, net.ErrClosed
		}
		l.net.changed.Wait()
	}
	c := l.queue[0]
	l.queue = l.queue[1:]
	return c, nil
}

func (l *memListener) Close() error {
	l.net.mu.Lock()
	defer l.net.mu.Unlock()
	l.closed = true
	for _, c := range l.queue {
		c.wire.reset = true
	}
	l.net.changed.Broadcast()
	return nil
}

func (l *memListener) Addr() net.Addr { return l.addr }

// memWire is what both ends of a connection share.
type memWire struct {
	life  int64 // bytes until it is reset
	reset bool
	ends  int // closed
}

// memConn is one end: a net.Conn for the handshake and a link after it.
type memConn struct {
	net           *memNet
	wire          *memWire
	peer          *memConn
	host          *memListener // of a server's end
	local, remote memAddr
	in            []byte // arrived and not read
	eof           bool   // the peer has closed
	stopped       bool
	closed        bool

	readable, writable func() bool
	onNow              func()
}

func (c *memConn) frozen() bool { return c.host != nil && c.host.frozen }

// get moves bytes that arrived to p. The caller holds the net's mutex.
func (c *memConn) get(p []byte) (int, error) {
	switch {
	case c.closed:
		return 0, net.ErrClosed
	case c.frozen():
		return 0, errAgain
	case len(c.in) > 0:
		n := copy(p, c.in[:c.net.part(min(len(p), len(c.in)))])
		c.in = c.in[n:]
		c.net.changed.Broadcast()
		return n, nil
	case c.wire.reset:
		return 0, unix.ECONNRESET
	case c.eof:
		return 0, io.EOF
	}
	return 0, errAgain
}

// part is how many of n bytes one call moves.
func (n *memNet) part(k int) int {
	if n.short == nil || k < 2 {
		return k
	}
	return 1 + n.short.IntN(k)
}

// put moves bytes to the peer. The caller holds the net's mutex.
func (c *memConn) put(p []byte) (int, error) {
	switch {
	case c.closed:
		return 0, net.ErrClosed
	case c.frozen():
		return 0, errAgain
	case c.wire.reset:
		return 0, unix.ECONNRESET
	case c.peer.closed:
		c.wire.reset = true
		return 0, unix.EPIPE
	}
	n := min(len(p), c.net.room-len(c.peer.in))
	if n <= 0 {
		return 0, errAgain
	}
	if n = c.net.part(n); int64(n) >= c.wire.life {
		n = int(c.wire.life)
		c.wire.reset = true
	}
	c.wire.life -= int64(n)
	c.peer.in = append(c.peer.in, p[:n]...)
	c.net.changed.Broadcast()
	return n, nil
}

func (c *memConn) readv(to [][]byte) (total int, err error) {
	c.net.mu.Lock()
	defer c.net.mu.Unlock()
	for _, p := range to {
		if len(p) == 0 {
			continue
		}
		n, err := c.get(p)
		total += n
		if err != nil && total == 0 {
			return 0, err
		}
		if n < len(p) {
			break
		}
	}
	return total, nil
}

func (c *memConn) writev(from [][]byte) (total int, err error) {
	c.net.mu.Lock()
	defer c.net.mu.Unlock()
	for _, p := range from {
		if len(p) == 0 {
			continue
		}
		n, err := c.put(p)
		total += n
		if err != nil && total == 0 {
			return 0, err
		}
		if n < len(p) {
			break
		}
	}
	return total, nil
}

func (c *memConn) Read(p []byte) (int, error) {
	c.net.mu.Lock()
	defer c.net.mu.Unlock()
	for {
		n, err := c.get(p)
		if err != errAgain {
			return n, err
		}
		c.net.changed.Wait()
	}
}

func (c *memConn) Write(p []byte) (total int, err error) {
	c.net.mu.Lock()
	defer c.net.mu.Unlock()
	for len(p) > 0 {
		n, err := c.put(p)
		total, p = total+n, p[n:]
		if err == errAgain {
			c.net.changed.Wait()
		} else if err != nil {
			return total, err
		}
	}
	return total, nil
}

func (c *memConn) bind(readable, writable func() bool, now, _ func()) {
	c.readable, c.writable, c.onNow = readable, writable, now
}

func (c *memConn) waitRead() error {
	return c.wait(c.readable, func() bool { return len(c.in) > 0 || c.eof || c.wire.reset })
}

func (c *memConn) waitWrite() error {
	return c.wait(c.writable, func() bool { return len(c.peer.in) < c.net.room || c.peer.closed || c.wire.reset })
}

func (c *memConn) wait(f, ready func() bool) error {
	for {
		c.net.mu.Lock()
		for !c.stopped && !c.closed && (c.frozen() || !ready()) {
			c.net.changed.Wait()
		}
		over := c.stopped || c.closed
		c.net.mu.Unlock()
		if over {
			return net.ErrClosed
		}
		if f() {
			return nil
		}
	}
}

// Nobody spins on a link in memory: in a bubble no time would pass.
func (c *memConn) poll() error    { return nil }
func (c *memConn) hush(bool) bool { return false }

func (c *memConn) now() error {
	c.net.mu.Lock()
	closed := c.closed
	c.net.mu.Unlock()
	if closed {
		return net.ErrClosed
	}
	c.onNow()
	return nil
}

func (c *memConn) stop() {
	c.net.mu.Lock()
	defer c.net.mu.Unlock()
	c.stopped = true
	c.net.changed.Broadcast()
}

func (c *memConn) Close() error {
	c.net.mu.Lock()
	defer c.net.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	c.closed, c.peer.eof = true, true
	if c.wire.ends++; c.wire.ends == 2 {
		delete(c.net.conns, c)
		delete(c.net.conns, c.peer)
	}
	c.net.changed.Broadcast()
	return nil
}

func (c *memConn) LocalAddr() net.Addr              { return c.local }
func (c *memConn) RemoteAddr() net.Addr             { return c.remote }
func (c *memConn) SetDeadline(time.Time) error      { return nil }
func (c *memConn) SetReadDeadline(time.Time) error  { return nil }
func (c *memConn) SetWriteDeadline(time.Time) error { return nil }
