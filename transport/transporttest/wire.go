package transporttest

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"
)

// wire is the network as one host sees it: each connection that the host dials
// runs through a relay on loopback, real sockets on both sides, that can hold
// bytes back, change them, lose them and hang up. Accepted connections come
// through the dialling host's wire.
type wire struct {
	listener *net.TCPListener
	pairing  sync.Mutex // one dial at a time pairs up with one accept
	pumps    sync.WaitGroup

	mu struct {
		sync.Mutex
		relays map[*relay]bool
		dials  int
		closed bool
		refuse bool // new connections fail
		deaf   bool // new connections carry nothing until a thaw
		record bool // keep what goes through first
		filter filter
		turned chan struct{} // closed and renewed when a gate may have opened
	}
}

// direction says which way bytes go through a relay.
type direction int

const (
	up   direction = iota // from the host that dialled
	down                  // back to it
)

// filter sees the bytes p of one relay in one direction, the first of which is
// byte off of that direction, and returns what to forward; cut ends the
// connection afterwards. It may change p and is called with the wire locked.
type filter func(d direction, off int64, p []byte) (out []byte, cut bool)

// relay is one connection: near leads to the host that dialled, far to the
// listener.
type relay struct {
	wire      *wire
	near, far *net.TCPConn
	budget    [2]int64  // bytes that may still pass, negative: no limit; guarded by wire.mu
	blocked   int       // pumps that hold bytes back; guarded by wire.mu
	seen      [2]int64  // bytes that came in; guarded by wire.mu
	recorded  [2][]byte // guarded by wire.mu
}

// recordLimit bounds what a relay records in one direction.
const recordLimit = 1 << 20

func newWire() (*wire, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	w := &wire{listener: l.(*net.TCPListener)}
	w.mu.relays = map[*relay]bool{}
	w.mu.turned = make(chan struct{})
	return w, nil
}

// dial connects to addr through a new relay.
func (w *wire) dial(ctx context.Context, addr string) (net.Conn, error) {
	w.mu.Lock()
	refuse := w.mu.refuse || w.mu.closed
	w.mu.dials++
	w.mu.Unlock()
	if refuse {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("the wire is down")}
	}
	var d net.Dialer
	far, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	host, near, err := w.pair(ctx)
	if err != nil {
		_ = far.Close()
		return nil, err
	}
	_ = near.SetReadBuffer(128 << 10) // so that a held relay is felt soon
	r := &relay{wire: w, near: near, far: far.(*net.TCPConn), budget: [2]int64{-1, -1}}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mu.deaf {
		r.budget = [2]int64{}
	}
	if w.mu.closed {
		_, _, _ = host.Close(), near.Close(), far.Close()
		return nil, net.ErrClosed
	}
	w.mu.relays[r] = true
	w.pumps.Go(r.run)
	return host, nil
}

// pair returns the two ends of a new loopback connection.
func (w *wire) pair(ctx context.Context) (host net.Conn, near *net.TCPConn, err error) {
	w.pairing.Lock()
	defer w.pairing.Unlock()
	var d net.Dialer
	host, err = d.DialContext(ctx, "tcp", w.listener.Addr().String())
	if err != nil {
		return nil, nil, err
	}
	for {
		near, err = w.listener.AcceptTCP()
		if err != nil {
			_ = host.Close()
			return nil, nil, err
		}
		if near.RemoteAddr().String() == host.LocalAddr().String() {
			return host, near, nil
		}
		_ = near.Close() // a stranger
	}
}

// run pumps both ways until both have ended.
func (r *relay) run() {
	var both sync.WaitGroup
	both.Go(func() { r.pump(down, r.far, r.near) })
	r.pump(up, r.near, r.far)
	both.Wait()
	_, _ = r.near.Close(), r.far.Close()
	r.wire.mu.Lock()
	delete(r.wire.mu.relays, r)
	r.wire.mu.Unlock()
}

// pump moves bytes one way. A reader that is gone does not end it: what the
// writer still sends is taken and dropped, as a network does.
func (r *relay) pump(d direction, from, to *net.TCPConn) {
	buf := make([]byte, 32<<10)
	gone := false
	for {
		n, err := from.Read(buf)
		for p := buf[:n]; len(p) > 0 && !gone; {
			out, rest, cut, ok := r.pass(d, p)
			if !ok {
				return
			}
			if _, werr := to.Write(out); werr != nil {
				gone = true
			}
			if cut {
				r.reset()
				return
			}
			p = rest
		}
		if err != nil { // also after a reset: what was sent before it still arrives
			_ = to.CloseWrite()
			return
		}
	}
}

// reset ends both connections abruptly.
func (r *relay) reset() {
	_, _ = r.near.SetLinger(0), r.far.SetLinger(0)
	_, _ = r.near.Close(), r.far.Close()
}

// pass waits until some of p may go on and returns it as the filter leaves it,
// and the rest of p. ok is false when the wire is closed.
func (r *relay) pass(d direction, p []byte) (out, rest []byte, cut, ok bool) {
	w := r.wire
	w.mu.Lock()
	defer w.mu.Unlock()
	for !w.mu.closed && r.budget[d] == 0 {
		turned := w.mu.turned
		r.blocked++
		w.mu.Unlock()
		<-turned
		w.mu.Lock()
		r.blocked--
	}
	if w.mu.closed {
		return nil, nil, false, false
	}
	if r.budget[d] > 0 {
		n := min(int64(len(p)), r.budget[d])
		r.budget[d] -= n
		p, rest = p[:n], p[n:]
	}
	if w.mu.record && len(r.recorded[d]) < recordLimit {
		r.recorded[d] = append(r.recorded[d], p...)
	}
	off := r.seen[d]
	r.seen[d] += int64(len(p))
	out = p
	if w.mu.filter != nil {
		out, cut = w.mu.filter(d, off, p)
	}
	return out, rest, cut, true
}

// turn lets the pumps look at their gates again; w.mu is held.
func (w *wire) turn() {
	close(w.mu.turned)
	w.mu.turned = make(chan struct{})
}

// dialled returns how many connections the host has asked for.
func (w *wire) dialled() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mu.dials
}

// allow lets n more bytes through in direction d on each connection that exists
// now, then holds the rest back. New connections flow.
func (w *wire) allow(d direction, n int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for r := range w.mu.relays {
		r.budget[d] = n
	}
	w.turn()
}

// setDeaf makes new connections carry nothing until a thaw: they connect, and
// nobody answers.
func (w *wire) setDeaf() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.deaf = true
}

// thaw ends allow, setDeaf and setRefuse.
func (w *wire) thaw() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.deaf, w.mu.refuse = false, false
	for r := range w.mu.relays {
		r.budget = [2]int64{-1, -1}
	}
	w.turn()
}

// holding reports whether a relay is holding bytes back.
func (w *wire) holding() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for r := range w.mu.relays {
		if r.blocked > 0 {
			return true
		}
	}
	return false
}

// hangUp tells the dialling host that its peers have closed, while what it has
// sent still travels on, as late as the relays are held: the way in which a
// dead connection still writes.
func (w *wire) hangUp() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for r := range w.mu.relays {
		_ = r.near.CloseWrite()
	}
}

// cut resets every connection.
func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for r := range w.mu.relays {
		r.reset()
		r.budget = [2]int64{-1, -1}
	}
	w.turn()
}

// setRefuse makes new connections fail until a thaw.
func (w *wire) setRefuse() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.refuse = true
}

// setFilter installs f, or none.
func (w *wire) setFilter(f filter) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.filter = f
}

// setRecord starts or stops recording.
func (w *wire) setRecord(on bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.record = on
}

// longest returns the longest recording in direction d among the connections
// that are still open.
func (w *wire) longest(d direction) (out []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for r := range w.mu.relays {
		if len(r.recorded[d]) > len(out) {
			out = append([]byte(nil), r.recorded[d]...)
		}
	}
	return out
}

// idle reports whether every connection has ended within d, and with it every
// byte that was under way.
func (w *wire) idle(d time.Duration) bool {
	return eventually(d, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.mu.relays) == 0
	})
}

// close ends the wire and waits for its goroutines.
func (w *wire) close() {
	w.mu.Lock()
	w.mu.closed = true
	w.turn()
	for r := range w.mu.relays {
		r.reset()
	}
	w.mu.Unlock()
	_ = w.listener.Close()
	w.pumps.Wait()
}
