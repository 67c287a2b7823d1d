package control

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/wire"
	"github.com/tideway-io/tideway/segment"
)

// Options configure a Peer. Zero fields have the documented default.
type Options struct {
	StallTimeout time.Duration // a peer silent for this long is unresponsive, default 10 s
	MaxCalls     int           // calls and notifications outstanding; more wait; default 128
	// OnGoaway is called when the peer says that it goes away, with the reason and
	// how long the connection lives on. It must neither block nor Close the Peer.
	OnGoaway func(reason errs.Code, grace time.Duration)
}

// Peer is the control connection to one incarnation of one peer, from the side
// that dialled. When it has ended it stays so: dial another.
type Peer struct {
	link     *link
	opts     Options
	greeting wire.Greeting // the peer's
	slots    chan struct{} // one token for each call outstanding
	draining atomic.Bool
	reading  sync.WaitGroup

	mu struct {
		sync.Mutex
		next    uint64                // last id given out
		pending map[wait]chan<- frame // each takes one frame
	}
}

// wait names an answer that somebody waits for: its type and id.
type wait struct {
	typ wire.Type
	id  uint64
}

// Dial connects to addr and says hello. expect is the incarnation that must
// answer, 0 for any; another one is errs.Restarted. A peer that turns out to be
// oneself is errs.SelfDial. ctx bounds the dialling and the greeting only.
func Dial(ctx context.Context, dial DialFunc, addr string, self Self, expect segment.Incarnation, opts Options) (*Peer, error) {
	conn, err := dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	p := &Peer{opts: opts}
	p.opts.StallTimeout = or(opts.StallTimeout, 10*time.Second)
	p.slots = make(chan struct{}, or(opts.MaxCalls, 128))
	p.mu.pending = make(map[wait]chan<- frame)
	_ = conn.SetDeadline(time.Now().Add(min(p.opts.StallTimeout, greetTimeout)))
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	p.greeting, err = greet(conn, addr, self, expect)
	if !stop() && err == nil {
		err = ctx.Err() // too late: the deadline is or will be set
	}
	if err != nil {
		_ = conn.Close()
		if ctx.Err() != nil {
			return nil, &errs.Error{Op: "greet", Peer: addr, Reason: errs.Of(ctx.Err()), Err: context.Cause(ctx), Retryable: true}
		}
		return nil, err
	}
	_ = conn.SetDeadline(time.Time{})
	p.link = newLink(conn, addr, p.opts.StallTimeout, p.nudge)
	p.reading.Go(p.read)
	return p, nil
}

// greet says hello and hears the welcome.
func greet(conn net.Conn, addr string, self Self, expect segment.Incarnation) (wire.Greeting, error) {
	hello := self.greeting()
	hello.MinVersion, hello.MaxVersion, hello.To = wire.Version, wire.Version, expect
	p := appendFrame(wire.PrefaceControl[:], wire.Header{Type: wire.Hello}, hello.Append(nil), nil)
	if _, err := conn.Write(p); err != nil {
		return wire.Greeting{}, unanswered(addr, err)
	}
	f, err := readFrame(conn, func(wire.Type) (int, int) { return wire.MaxMeta, 0 })
	if err != nil {
		return wire.Greeting{}, unanswered(addr, err)
	}
	if f.Type != wire.Welcome {
		return wire.Greeting{}, errs.New(errs.Invalid, "greet "+addr, "frame of type %d, want a welcome", f.Type)
	}
	g, err := wire.ParseGreeting(f.meta)
	switch {
	case err != nil:
		return g, unanswered(addr, err)
	case f.Status != errs.OK:
		return g, answered("greet", addr, f.Status, []byte(g.Detail))
	case g.From == self.Incarnation:
		return g, selfDial(addr)
	case expect != 0 && g.From != expect:
		return g, restarted(addr, expect, g.From)
	case g.MinVersion != wire.Version:
		return g, errs.New(errs.Unsupported, "greet "+addr, "the peer chose version %d, want %d", g.MinVersion, wire.Version)
	}
	return g, nil
}

// unanswered is the error of a greeting that did not come to its end.
func unanswered(addr string, err error) error {
	var e *errs.Error
	if errors.As(err, &e) {
		c := *e
		c.Peer = addr
		return &c
	}
	e = &errs.Error{
		Op: "greet", Peer: addr, Stage: "connect", Reason: errs.Unreachable, Err: err, Retryable: true,
		Detail: "connected, but no welcome came; check that a Tideway engine listens there",
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		e.Reason, e.Detail = errs.Unresponsive, "connected, but no welcome came in time; the peer hangs, or something else listens there"
	}
	return e
}

func selfDial(addr string) *errs.Error {
	return &errs.Error{Op: "greet", Peer: addr, Reason: errs.SelfDial, Detail: "the address is this engine's own; use the local segment, or correct what the peer advertises"}
}

func restarted(addr string, want, got segment.Incarnation) *errs.Error {
	return &errs.Error{Op: "greet", Peer: addr, Reason: errs.Restarted, Detail: "incarnation " + got.String() + " answered, want " + want.String() + "; fetch its descriptor again"}
}

// Addr returns the host:port that was dialled.
func (p *Peer) Addr() string { return p.link.peer }

// Incarnation returns the peer's.
func (p *Peer) Incarnation() segment.Incarnation { return p.greeting.From }

// Name returns the segment name that the peer gave.
func (p *Peer) Name() segment.Name { return segment.Name(p.greeting.Name) }

// Done is closed when the connection has ended.
func (p *Peer) Done() <-chan struct{} { return p.link.done }

// Err returns why it ended, nil while it lives.
func (p *Peer) Err() error { return p.link.failure() }

// Draining reports whether the peer said that it goes away.
func (p *Peer) Draining() bool { return p.draining.Load() }

// Close ends the connection and what is outstanding on it, and returns when its
// goroutines have ended.
func (p *Peer) Close() error {
	p.link.fail(errs.New(errs.Closed, "control connection", "closed by this side"))
	p.reading.Wait()
	p.link.wrote.Wait()
	return nil
}

// Call asks the peer for method. body is at most MaxBody bytes and the caller's
// again when Call returns; so is the answer, of at most MaxAnswer. An error that
// the peer sent has its reason and its text.
func (p *Peer) Call(ctx context.Context, method string, body []byte) ([]byte, error) {
	op := "call " + method
	if len(method) > MaxName || len(body) > MaxBody {
		return nil, errs.New(errs.Invalid, op, "name of %d and body of %d bytes, limits %d and %d", len(method), len(body), MaxName, MaxBody)
	}
	id := p.id()
	f, _, err := p.ask(ctx, op, wait{wire.Reply, id}, appendFrame(nil, wire.Header{Type: wire.Call, Seq: id}, []byte(method), body))
	if err != nil {
		return nil, err
	}
	if f.Status != errs.OK {
		return nil, answered(op, p.Addr(), f.Status, f.meta)
	}
	return f.body, nil
}

// Notify delivers a notification and returns when the peer has it. If the
// connection ends first it may have it or not; the same id may then be sent
// again, over another connection to the same incarnation, and is delivered once.
// Ids count up from 1 for each peer; Notifier does all that.
func (p *Peer) Notify(ctx context.Context, id uint64, name string, body []byte) error {
	_, err := p.notify(ctx, id, name, body)
	return err
}

// notify is Notify that says how far it came.
func (p *Peer) notify(ctx context.Context, id uint64, name string, body []byte) (progress, error) {
	const op = "notify"
	if len(name) > MaxName || len(body) > MaxBody || id == 0 {
		return complete, errs.New(errs.Invalid, op, "id %d, name of %d and body of %d bytes, limits %d and %d", id, len(name), len(body), MaxName, MaxBody)
	}
	f, how, err := p.ask(ctx, op, wait{wire.Noted, id}, appendFrame(nil, wire.Header{Type: wire.Notify, Seq: id}, []byte(name), body))
	if err == nil && f.Status != errs.OK {
		err = answered(op, p.Addr(), f.Status, f.meta)
	}
	return how, err
}

// Ping measures a round trip.
func (p *Peer) Ping(ctx context.Context) (time.Duration, error) {
	id, start := p.id(), time.Now()
	if _, _, err := p.ask(ctx, "ping", wait{wire.Pong, id}, appendFrame(nil, wire.Header{Type: wire.Ping, Seq: id}, nil, nil)); err != nil {
		return 0, err
	}
	return time.Since(start), nil
}

func (p *Peer) id() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.next++
	return p.mu.next
}

// progress is how far a frame that wants an answer came.
type progress uint8

const (
	unreached progress = iota // there was no connection to send it on
	unsent                    // it did not leave
	owed                      // it may have arrived, and no answer did
	complete                  // the answer came, or there can be none
)

// ask sends a frame and waits for its answer.
func (p *Peer) ask(ctx context.Context, op string, w wait, out []byte) (frame, progress, error) {
	select {
	case p.slots <- struct{}{}:
		defer func() { <-p.slots }()
	case <-ctx.Done():
		return frame{}, unsent, p.gaveUp(ctx, op)
	case <-p.link.done:
		return frame{}, unsent, p.ended(op)
	}
	answer := make(chan frame, 1)
	if !p.expect(w, answer) {
		return frame{}, complete, errs.New(errs.Invalid, op, "id %d is outstanding", w.id)
	}
	defer p.forget(w)
	if err := p.link.send(out, ctx.Done()); errors.Is(err, errStopped) {
		return frame{}, unsent, p.gaveUp(ctx, op)
	} else if err != nil {
		return frame{}, unsent, p.ended(op)
	}
	select {
	case f := <-answer:
		return f, complete, nil
	case <-ctx.Done():
		return frame{}, owed, p.gaveUp(ctx, op)
	case <-p.link.done:
	}
	select {
	case f := <-answer: // it came before the end
		return f, complete, nil
	default:
		return frame{}, owed, p.ended(op)
	}
}

func (p *Peer) gaveUp(ctx context.Context, op string) error {
	return &errs.Error{Op: op, Peer: p.Addr(), Reason: errs.Of(ctx.Err()), Err: context.Cause(ctx), Retryable: true}
}

// ended is the connection's error as op met it.
func (p *Peer) ended(op string) error {
	err := p.Err()
	return &errs.Error{Op: op, Peer: p.Addr(), Reason: errs.Of(err), Err: err, Retryable: true}
}

func (p *Peer) expect(w wait, answer chan<- frame) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.pending[w] != nil {
		return false
	}
	p.mu.pending[w] = answer
	return true
}

func (p *Peer) forget(w wait) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.mu.pending, w)
}

// nudge asks a silent peer for a sign of life.
func (p *Peer) nudge() {
	p.link.trySend(appendFrame(nil, wire.Header{Type: wire.Ping}, nil, nil))
}

// read is the reader's goroutine.
func (p *Peer) read() {
	for {
		f, err := readFrame(p.link.r, answerLimit)
		if err != nil {
			p.link.fail(err)
			return
		}
		p.take(f)
	}
}

// answerLimit bounds what a server may send.
func answerLimit(t wire.Type) (meta, body int) {
	if t == wire.Reply {
		return maxDetail, MaxAnswer
	}
	return maxDetail, 0
}

func (p *Peer) take(f frame) {
	switch f.Type {
	case wire.Reply, wire.Noted, wire.Pong:
		p.mu.Lock()
		w := wait{f.Type, f.Seq}
		answer := p.mu.pending[w]
		delete(p.mu.pending, w)
		p.mu.Unlock()
		if answer != nil { // else whoever asked has left
			answer <- f
		}
	case wire.Ping:
		p.link.trySend(appendFrame(nil, wire.Header{Type: wire.Pong, Seq: f.Seq}, nil, nil))
	case wire.Goaway:
		p.goaway(f)
	default:
		if f.Flags&wire.FlagOptional == 0 {
			p.link.fail(errs.New(errs.Invalid, "read frame", "type %d is none that a server sends", f.Type))
		}
	}
}

func (p *Peer) goaway(f frame) {
	const longest = uint64(24 * time.Hour / time.Millisecond)
	grace := time.Duration(min(f.Seq, longest)) * time.Millisecond
	if !p.draining.Swap(true) && p.opts.OnGoaway != nil {
		p.opts.OnGoaway(f.Status, grace)
	}
}
