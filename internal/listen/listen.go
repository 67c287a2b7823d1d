// Package listen owns an engine's one listener and how it dials. The listener
// reads the first eight bytes of each connection and hands it to whom they
// belong; it bounds how many connections there are and how long a silent one
// may stay. It knows no protocol.
package listen

import (
	"cmp"
	"context"
	"io"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/topology"
)

// PrefaceSize is how many bytes tell whom a connection is for.
const PrefaceSize = 8

// Options configure a Listener. Zero fields have the documented default.
type Options struct {
	Listen       string // host, host:port or an IP literal; default "127.0.0.1:0"
	PortFallback bool   // take a free port when the one asked for is taken
	// Ports are the first and the last port to choose from, at random, when Listen
	// asks for none. Both 0: the kernel chooses.
	Ports     [2]uint16
	Advertise string // host or host:port that peers dial; default: chosen
	Interface string // limits the choice to one interface

	MaxConns       int           // connections at the same time, default 4096
	MaxHalfOpen    int           // those that have not said what they are for, default 256
	PrefaceTimeout time.Duration // how long they may take to say it, default 5 s

	Logger *slog.Logger // default slog.Default()
	// Network lists this host's interfaces and default routes; default: the
	// kernel's. It is asked only when the listener is bound to every address.
	Network func() ([]topology.NIC, []topology.Route, error)
}

// Listener accepts connections and hands them on. Its methods may be called
// from any goroutine.
type Listener struct {
	opts       Options
	log        *slog.Logger
	tcp        *net.TCPListener
	bound      string
	advertised string
	reason     string
	others     []string
	stopping   chan struct{}
	wg         sync.WaitGroup

	mu struct {
		sync.Mutex
		started  bool
		stopped  bool
		closed   bool
		handlers map[[PrefaceSize]byte]func(net.Conn)
		other    func([PrefaceSize]byte, net.Conn)
		conns    map[net.Conn]struct{} // every connection that is open
		waiting  []net.Conn            // those without a preface yet, the oldest first
	}
}

// Open binds, so that the address is known; handlers are set before Start, and a
// connection that none takes is closed. The error is errs.PortInUse when the port is taken,
// with its owner where the kernel tells; errs.Denied when it may not be bound;
// errs.Invalid when the address is not one of this host's.
func Open(ctx context.Context, opts Options) (*Listener, error) {
	opts.Listen = cmp.Or(opts.Listen, "127.0.0.1:0")
	opts.MaxConns = cmp.Or(opts.MaxConns, 4096)
	opts.MaxHalfOpen = cmp.Or(opts.MaxHalfOpen, 256)
	opts.PrefaceTimeout = cmp.Or(opts.PrefaceTimeout, 5*time.Second)
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	if opts.Network == nil {
		opts.Network = Network
	}
	tcp, bound, err := bind(ctx, &opts)
	if err != nil {
		return nil, err
	}
	l := &Listener{opts: opts, log: opts.Logger, tcp: tcp, bound: bound.String(), stopping: make(chan struct{})}
	l.mu.handlers = make(map[[PrefaceSize]byte]func(net.Conn))
	l.mu.conns = make(map[net.Conn]struct{})
	if l.advertised, l.reason, l.others, err = advertise(&opts, bound); err != nil {
		_ = tcp.Close()
		return nil, err
	}
	return l, nil
}

// Start begins to accept. Connections that come between Open and Start wait.
func (l *Listener) Start() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.started || l.mu.stopped {
		return
	}
	l.mu.started = true
	l.wg.Add(1)
	go l.accept()
}

// Addr returns the host:port that is bound.
func (l *Listener) Addr() string { return l.bound }

// Advertised returns the host:port that peers dial, and why it is this one.
func (l *Listener) Advertised() (hostport, reason string) { return l.advertised, l.reason }

// Others returns further host:ports at which peers reach the listener, one of
// each other network interface; none unless it is bound to every address and
// what to advertise was left to it.
func (l *Listener) Others() []string { return l.others }

// Handle hands on those connections that start with preface, which has been
// read. handle owns the connection for as long as it runs, in a goroutine of its
// own; when it returns the connection is closed. A preface has one handler.
func (l *Listener) Handle(preface [PrefaceSize]byte, handle func(net.Conn)) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, taken := l.mu.handlers[preface]; taken {
		return errs.New(errs.Invalid, "handle connections", "preface %q has a handler", preface)
	}
	l.mu.handlers[preface] = handle
	return nil
}

// HandleOther hands on the connections that no other handler takes, with the
// bytes that were read.
func (l *Listener) HandleOther(handle func(first [PrefaceSize]byte, conn net.Conn)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.other = handle
}

// Conns returns how many connections are open, and how many of them have not
// said what they are for.
func (l *Listener) Conns() (open, halfOpen int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.mu.conns), len(l.mu.waiting)
}

// Stop ends accepting: the port is free again, and connections that have not
// said what they are for are closed. Others live on.
func (l *Listener) Stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.stopped {
		return
	}
	l.mu.stopped = true
	close(l.stopping)
	_ = l.tcp.Close()
	for _, c := range l.mu.waiting {
		_ = c.Close()
	}
}

// Close stops, closes every connection and returns when all handlers have.
func (l *Listener) Close() {
	l.Stop()
	l.mu.Lock()
	l.mu.closed = true
	for c := range l.mu.conns {
		_ = c.Close()
	}
	l.mu.Unlock()
	l.wg.Wait()
}

// accept runs until Stop. Running out of descriptors is no reason to end: it
// waits, longer each time, and lets the oldest silent connection go.
func (l *Listener) accept() {
	defer l.wg.Done()
	const least, most = 5 * time.Millisecond, time.Second
	pause := time.Duration(0)
	for {
		conn, err := l.tcp.Accept()
		if err == nil {
			pause = 0
			l.admit(conn)
			continue
		}
		select {
		case <-l.stopping:
			return
		default:
		}
		if pause == 0 {
			l.log.Warn("accept failed, trying again", "addr", l.Addr(), "err", err)
		}
		l.evict()
		pause = min(max(2*pause, least), most)
		select {
		case <-l.stopping:
			return
		case <-time.After(pause):
		}
	}
}

// admit starts to serve conn, or closes it when there are too many. Of those
// that are silent the oldest makes room, so that they keep nobody out.
func (l *Listener) admit(conn net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.mu.waiting) >= l.opts.MaxHalfOpen || len(l.mu.conns) >= l.opts.MaxConns && len(l.mu.waiting) > 0 {
		l.evictLocked()
	}
	if l.mu.stopped || len(l.mu.conns) >= l.opts.MaxConns {
		_ = conn.Close()
		return
	}
	l.mu.conns[conn] = struct{}{}
	l.mu.waiting = append(l.mu.waiting, conn)
	l.wg.Add(1)
	go l.serve(conn)
}

func (l *Listener) evict() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.evictLocked()
}

// evictLocked closes the oldest connection that has not said what it is for.
func (l *Listener) evictLocked() {
	if len(l.mu.waiting) == 0 {
		return
	}
	conn := l.mu.waiting[0]
	l.mu.waiting = slices.Delete(l.mu.waiting, 0, 1)
	delete(l.mu.conns, conn)
	_ = conn.Close()
}

func (l *Listener) serve(conn net.Conn) {
	defer l.wg.Done()
	defer l.forget(conn)
	_ = conn.SetReadDeadline(time.Now().Add(l.opts.PrefaceTimeout))
	var first [PrefaceSize]byte
	if _, err := io.ReadFull(conn, first[:]); err != nil {
		return
	}
	handle, other := l.choose(conn, first)
	_ = conn.SetReadDeadline(time.Time{})
	switch {
	case handle != nil:
		handle(conn)
	case other != nil:
		other(first, conn)
	}
}

// choose ends conn's wait and returns who takes it, nobody if it was evicted
// meanwhile.
func (l *Listener) choose(conn net.Conn, first [PrefaceSize]byte) (func(net.Conn), func([PrefaceSize]byte, net.Conn)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.unwait(conn) || l.mu.stopped {
		return nil, nil
	}
	if h := l.mu.handlers[first]; h != nil {
		return h, nil
	}
	return nil, l.mu.other
}

func (l *Listener) unwait(conn net.Conn) bool {
	i := slices.Index(l.mu.waiting, conn)
	if i < 0 {
		return false
	}
	l.mu.waiting = slices.Delete(l.mu.waiting, i, i+1)
	return true
}

func (l *Listener) forget(conn net.Conn) {
	_ = conn.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unwait(conn)
	delete(l.mu.conns, conn)
}
