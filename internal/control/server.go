package control

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime/debug"
	"sync"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/wire"
	"github.com/tideway-io/tideway/segment"
)

// Handler answers one call. ctx ends with the connection, the server, or after
// the server's CallTimeout. body is the handler's to keep; the answer, at most
// MaxAnswer bytes, is the server's. An error's reason and text are sent.
type Handler func(ctx context.Context, from segment.Incarnation, body []byte) ([]byte, error)

// ServerOptions configure a Server. Zero fields have the documented default.
type ServerOptions struct {
	Self    Self
	Methods map[string]Handler
	// OnNotify takes a notification; from is the segment name that the sender
	// gave, body is its own to keep. A code other than OK is the sender's error,
	// and the notification counts as not delivered. It must not block.
	OnNotify func(from, name string, body []byte) errs.Code

	GreetTimeout time.Duration // how long a hello may take, default 5 s
	IdleTimeout  time.Duration // a peer silent for this long is dropped, default 60 s
	CallTimeout  time.Duration // how long a handler may run, default 30 s
	MaxRunning   int           // handlers that run at the same time; more calls get ErrOverloaded; default 256
	MaxPerPeer   int           // the same for one connection, default 32
	Logger       *slog.Logger  // default slog.Default()
}

// Server serves the control connections that peers open.
type Server struct {
	opts    ServerOptions
	log     *slog.Logger
	ctx     context.Context // of handlers
	cancel  context.CancelFunc
	running chan struct{} // one token for each handler
	seen    seen
	serving sync.WaitGroup

	mu struct {
		sync.Mutex
		closed   bool
		draining bool
		methods  map[string]Handler
		links    map[*link]struct{}
	}
}

// NewServer returns a server; Serve it connections, and Close it.
func NewServer(opts ServerOptions) *Server {
	opts.GreetTimeout = or(opts.GreetTimeout, greetTimeout)
	opts.IdleTimeout = or(opts.IdleTimeout, time.Minute)
	opts.CallTimeout = or(opts.CallTimeout, 30*time.Second)
	opts.MaxPerPeer = or(opts.MaxPerPeer, 32)
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	s := &Server{opts: opts, log: opts.Logger, running: make(chan struct{}, or(opts.MaxRunning, 256))}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.seen.init()
	s.mu.links = make(map[*link]struct{})
	s.mu.methods = make(map[string]Handler, len(opts.Methods))
	for name, h := range opts.Methods {
		s.mu.methods[name] = h
	}
	return s
}

// Handle sets the handler of a method.
func (s *Server) Handle(method string, h Handler) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.methods[method] = h
}

// Drain tells every peer to go away for reason: the connections live on, and are
// expected to be closed after grace. New ones are refused.
func (s *Server) Drain(reason errs.Code, grace time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.draining = true
	for l := range s.mu.links {
		l.trySend(appendFrame(nil, wire.Header{Type: wire.Goaway, Status: reason, Seq: uint64(grace / time.Millisecond)}, nil, nil))
	}
}

// Close ends every connection and returns when handlers have.
func (s *Server) Close() {
	s.cancel()
	s.mu.Lock()
	s.mu.closed = true
	for l := range s.mu.links {
		l.fail(errs.New(errs.Closed, "serve control connection", "the server is closed"))
	}
	s.mu.Unlock()
	s.serving.Wait()
}

// Serve serves one connection, whose preface has been read, until it ends.
func (s *Server) Serve(conn net.Conn) {
	s.mu.Lock()
	if s.mu.closed {
		s.mu.Unlock()
		_ = conn.Close()
		return
	}
	s.serving.Add(1)
	s.mu.Unlock()
	defer s.serving.Done()
	stop := context.AfterFunc(s.ctx, func() { _ = conn.Close() })
	defer stop()
	defer func() { _ = conn.Close() }()
	hello, err := s.greet(conn)
	if err != nil {
		s.log.Debug("control connection refused", "peer", conn.RemoteAddr(), "err", err)
		return
	}
	sess := &session{s: s, from: hello, slots: make(chan struct{}, s.opts.MaxPerPeer)}
	sess.ctx, sess.cancel = context.WithCancel(s.ctx)
	sess.link = newLink(conn, conn.RemoteAddr().String(), s.opts.IdleTimeout, nil)
	if !s.add(sess.link) {
		sess.link.fail(errs.New(errs.Closed, "serve control connection", "the server is closed"))
	}
	sess.seen = s.seen.hold(hello.From)
	err = sess.run()
	sess.link.fail(err)
	sess.cancel()
	sess.calls.Wait()
	sess.link.wrote.Wait()
	s.seen.release(sess.seen)
	s.remove(sess.link)
	s.log.Debug("control connection ended", "peer", sess.link.peer, "err", err)
}

func (s *Server) add(l *link) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.links[l] = struct{}{}
	if s.mu.draining { // it began between the welcome and now
		l.trySend(appendFrame(nil, wire.Header{Type: wire.Goaway, Status: errs.Draining}, nil, nil))
	}
	return !s.mu.closed
}

func (s *Server) remove(l *link) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.mu.links, l)
}

// greet hears the hello and says welcome, or why not.
func (s *Server) greet(conn net.Conn) (wire.Greeting, error) {
	_ = conn.SetDeadline(time.Now().Add(s.opts.GreetTimeout))
	f, err := readFrame(conn, func(wire.Type) (int, int) { return wire.MaxMeta, 0 })
	if err != nil {
		return wire.Greeting{}, err
	}
	if f.Type != wire.Hello {
		return wire.Greeting{}, errs.New(errs.Invalid, "greet", "frame of type %d, want a hello", f.Type)
	}
	hello, err := wire.ParseGreeting(f.meta)
	if err != nil {
		return hello, err
	}
	refusal := s.judge(&hello)
	welcome, status := s.opts.Self.greeting(), errs.OK
	if refusal != nil {
		status, welcome.Detail = refusal.Reason, refusal.Detail
	} else {
		welcome.MinVersion, welcome.MaxVersion = wire.Version, wire.Version
		welcome.Features &= hello.Features
	}
	if _, err := conn.Write(appendFrame(nil, wire.Header{Type: wire.Welcome, Status: status}, welcome.Append(nil), nil)); err != nil {
		return hello, err
	}
	_ = conn.SetDeadline(time.Time{})
	if refusal != nil {
		return hello, refusal
	}
	return hello, nil
}

// judge says why a hello is refused.
func (s *Server) judge(hello *wire.Greeting) *errs.Error {
	own := s.opts.Self.Incarnation
	s.mu.Lock()
	draining := s.mu.draining
	s.mu.Unlock()
	switch {
	case hello.MinVersion > wire.Version || hello.MaxVersion < wire.Version:
		return errs.New(errs.Unsupported, "greet", "versions %d to %d asked for, %d spoken here", hello.MinVersion, hello.MaxVersion, wire.Version)
	case hello.From == 0:
		return errs.New(errs.Invalid, "greet", "the hello has no incarnation")
	case hello.From == own:
		return selfDial("")
	case hello.To != 0 && hello.To != own:
		return restarted("", hello.To, own)
	case draining:
		return errs.New(errs.Draining, "greet", "the engine is shutting down")
	}
	return nil
}

// session is one connection that is served.
type session struct {
	s      *Server
	link   *link
	from   wire.Greeting
	seen   *window
	ctx    context.Context // of its handlers; ends with the connection
	cancel context.CancelFunc
	slots  chan struct{} // one token for each handler of this connection
	calls  sync.WaitGroup
}

// run reads until the connection ends.
func (c *session) run() error {
	for {
		f, err := readFrame(c.link.r, requestLimit)
		if err != nil {
			return err
		}
		switch f.Type {
		case wire.Call:
			err = c.call(f)
		case wire.Notify:
			err = c.notify(f)
		case wire.Ping:
			err = c.link.send(appendFrame(nil, wire.Header{Type: wire.Pong, Seq: f.Seq}, nil, nil), nil)
		case wire.Pong:
		case wire.Goaway:
			return io.EOF
		default:
			if f.Flags&wire.FlagOptional == 0 {
				return errs.New(errs.Invalid, "read frame", "type %d is none that a client sends", f.Type)
			}
		}
		if err != nil {
			return err
		}
	}
}

// requestLimit bounds what a client may send.
func requestLimit(t wire.Type) (meta, body int) {
	if t == wire.Call || t == wire.Notify {
		return MaxName, MaxBody
	}
	return maxDetail, 0
}

// call starts a handler, or answers at once that there are too many.
func (c *session) call(f frame) error {
	c.s.mu.Lock()
	h := c.s.mu.methods[string(f.meta)]
	c.s.mu.Unlock()
	if h == nil {
		return c.reply(f.Seq, nil, errs.New(errs.Unsupported, "", "no method %.64q here", f.meta))
	}
	select {
	case c.slots <- struct{}{}:
	default:
		return c.reply(f.Seq, nil, errs.New(errs.Overloaded, "", "%d calls of this peer are running", cap(c.slots)))
	}
	select {
	case c.s.running <- struct{}{}:
	default:
		<-c.slots
		return c.reply(f.Seq, nil, errs.New(errs.Overloaded, "", "%d calls are running", cap(c.s.running)))
	}
	c.calls.Go(func() {
		answer, err := c.handle(h, f)
		<-c.s.running
		if c.ctx.Err() == nil { // else the caller learns that the connection ended, not how its handler took that
			_ = c.reply(f.Seq, answer, err)
		}
		<-c.slots
	})
	return nil
}

// handle runs a handler. A panic is that call's error and nobody else's.
func (c *session) handle(h Handler, f frame) (answer []byte, err error) {
	ctx, cancel := context.WithTimeout(c.ctx, c.s.opts.CallTimeout)
	defer cancel()
	defer func() {
		if r := recover(); r != nil {
			c.s.log.Error("control handler panicked", "method", string(f.meta), "panic", r, "stack", string(debug.Stack()))
			answer, err = nil, errs.New(errs.Internal, "", "the handler of %.64q failed", f.meta)
		}
	}()
	return h(ctx, c.from.From, f.body)
}

// reply sends an answer or an error. It waits for room as long as the
// connection lives.
func (c *session) reply(id uint64, body []byte, err error) error {
	h := wire.Header{Type: wire.Reply, Seq: id}
	if len(body) > MaxAnswer {
		body, err = nil, errs.New(errs.Internal, "", "an answer of %d bytes, limit %d", len(body), MaxAnswer)
	}
	if err == nil {
		return c.link.send(appendFrame(nil, h, nil, body), nil)
	}
	h.Status = errs.Of(err)
	detail := fmt.Append(nil, text(err))
	return c.link.send(appendFrame(nil, h, detail[:min(len(detail), maxDetail)], nil), nil)
}

// text is what a peer is told of an error: without what was attempted, which it
// knows, and without the reason, which is the status.
func text(err error) string {
	if e, ok := err.(*errs.Error); ok && e.Detail != "" && e.Err == nil {
		return e.Detail
	}
	return err.Error()
}

// notify delivers a notification unless it was before.
func (c *session) notify(f frame) error {
	code := errs.Unsupported
	if c.s.opts.OnNotify != nil {
		code = c.seen.deliver(f.Seq, func() errs.Code { return c.s.opts.OnNotify(c.from.Name, string(f.meta), f.body) })
	}
	return c.link.send(appendFrame(nil, wire.Header{Type: wire.Noted, Seq: f.Seq, Status: code}, nil, nil), nil)
}
