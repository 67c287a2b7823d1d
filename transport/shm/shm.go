// Package shm moves bytes between processes of one user on one host, without a
// network in between.
//
// Memory that Alloc made lies in a memfd. A peer is given the descriptor over a
// Unix socket, maps it, and copies there and back by itself; the owner has no
// part in it. All other memory is reached by cross-memory attach, which here
// only ever reads: a READ reads out of the target's memory, and for a WRITE the
// target reads out of the initiator's. So nobody stores into memory of an owner
// who no longer knows of it: a copy that comes late falls on pages of a memfd
// that Close has abandoned.
//
// Which memory is registered, and for what, stands in a table that each engine
// shares with its peers (table); a peer looks there before and after each copy.
// What needs an answer travels as messages on the Unix socket (message), and the
// state of WRITEs under way in a page that both sides share (desk).
//
// Close of an endpoint or a transport must not be called from inside
// Sink.Complete: it waits for that call to return.
package shm

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/mem"
	"github.com/tideway-io/tideway/internal/sys"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
)

// Name is the transport's name.
const Name = "shm"

// New returns the driver.
func New() transport.Driver { return driver{} }

type driver struct{}

func (driver) Name() string { return Name }

// Probe makes one of each thing that the transport is built of.
func (driver) Probe(context.Context) error {
	l, _, err := listen()
	if err != nil {
		return lack(err, "no Unix socket of whole messages (SOCK_SEQPACKET) in the abstract namespace")
	}
	_ = l.Close()
	fd, err := sys.NewMemfd("tideway-probe", 4096, pageSeals|sys.SealFuture)
	if err != nil {
		return lack(err, "no memfd with seals, the one against future writes included (Linux 5.1)")
	}
	return sys.Close(fd)
}

// lack is the error for what this host does not have.
func lack(err error, what string) error {
	e := refuse(errs.Unsupported, "probe", "%s", what)
	e.Err = err
	return e
}

// refuse makes an error of this transport; op is also the stage.
func refuse(reason errs.Code, op, format string, args ...any) *errs.Error {
	e := errs.New(reason, op, format, args...)
	e.Transport, e.Stage = Name, op
	switch reason {
	case errs.Overloaded, errs.Restarted, errs.Draining, errs.LaneLost, errs.Unresponsive:
		e.Retryable = true
	}
	return e
}

// Open starts to listen.
func (driver) Open(_ context.Context, env transport.Env) (transport.Transport, error) {
	t := &Transport{env: env, log: env.Logger, stop: make(chan struct{})}
	if t.log == nil {
		t.log = slog.New(slog.DiscardHandler)
	}
	var err error
	if t.table, err = newTable(env.Self.Incarnation); err != nil {
		return nil, &errs.Error{Op: "open", Transport: Name, Reason: errs.Overloaded, Detail: "the table of registrations", Err: err}
	}
	if t.listener, t.offer.name, err = listen(); err != nil {
		t.table.close()
		return nil, lack(err, "no Unix socket in the abstract namespace")
	}
	t.offer.secret, t.life = newSecret(), newLife()
	t.moves.init(maxMoves)
	t.pulls.init(2 * t.maxLinks()) // two lanes each
	t.own.init()
	t.refused.until = map[segment.Incarnation]refusal{}
	t.out.endpoints = map[*endpoint]struct{}{}
	t.in.links, t.in.greeting = map[*inbound]struct{}{}, map[*net.UnixConn]struct{}{}
	t.in.moved = make(chan struct{})
	env.Answer(t.answer)
	t.serving.Go(t.accept)
	return t, nil
}

// Transport is one engine's part.
type Transport struct {
	env      transport.Env
	log      *slog.Logger
	table    *table
	own      allocations
	offer    offer
	life     *life
	listener *net.UnixListener
	stop     chan struct{}  // closed by Close
	serving  sync.WaitGroup // the listener and inbound links
	moves    pool           // copies and reads of this engine's own slices
	pulls    pool           // of peers' WRITEs
	posts    sync.Pool      // of *post
	mover    mem.Mover      // of what is mapped
	readers  sync.Pool      // of *reader
	endings  sync.Pool      // of *endings

	refused struct {
		sync.Mutex
		until map[segment.Incarnation]refusal
	}
	out struct {
		sync.Mutex
		closed, draining bool
		endpoints        map[*endpoint]struct{}
	}
	in struct {
		sync.Mutex
		closed, draining bool
		links            map[*inbound]struct{}
		greeting         map[*net.UnixConn]struct{} // in their handshakes
		moved            chan struct{}              // closed and renewed when a link has ended or drained
	}
}

var (
	_ transport.Drainer   = (*Transport)(nil)
	_ transport.Allocator = (*Transport)(nil)
)

// Caps implements transport.Transport.
func (t *Transport) Caps() transport.Caps {
	return transport.Caps{SameHost: true, Checks: true, Fences: true}
}

// Register implements transport.Transport. What peers need is the buffer's place
// in the table.
func (t *Transport) Register(_ context.Context, b *segment.Buffer) ([]byte, error) {
	if b.Access == segment.LocalOnly || !reachable(b) {
		return nil, nil
	}
	e := t.own.enter(b)
	slot, ok := t.table.add(e)
	if !ok { // peers take another transport
		t.own.leave(b.Key)
		t.log.Warn("no room for one more buffer in the table that same-host peers read", "limit", tableSlots, "buffer", b.Name)
		return nil, nil
	}
	return appendSlot(nil, slot), nil
}

// Unregister implements transport.Transport. Peers that have the memory mapped
// for writing are asked to unmap it, and waited for a moment, so that what they
// were copying has arrived when it returns. One that is stopped may still store
// into the pages when it wakes: they are never lent again, and are to be freed.
func (t *Transport) Unregister(b *segment.Buffer) error {
	t.table.drop(b.Key)
	id, writable := t.own.leave(b.Key)
	switch {
	case id == 0:
	case !writable:
		t.eachLink(func(in *inbound) { in.revoke(id, nil) })
	case !t.settle(id):
		t.own.stray(id)
	}
	return nil
}

// Drain implements transport.Drainer. Peers see it in the table before their
// next Post, and say when they have nothing under way.
func (t *Transport) Drain(ctx context.Context) error {
	t.out.Lock()
	t.out.draining = true
	t.out.Unlock()
	t.in.Lock()
	t.in.draining = true
	t.in.Unlock()
	t.table.setState(stateDraining)
	t.eachLink(func(in *inbound) { in.link.send(appendHead(nil, head{kind: kindDrain}), -1) })
	for {
		left, moved := t.undrained()
		if left == 0 {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			e := refuse(errs.Draining, "drain", "%d peers still have slices under way", left)
			e.Err = context.Cause(ctx)
			return e
		}
	}
}

// undrained counts the links that have not said that they are done, and returns
// what is closed when that may have changed.
func (t *Transport) undrained() (n int, moved <-chan struct{}) {
	t.in.Lock()
	defer t.in.Unlock()
	for in := range t.in.links {
		if !in.drained {
			n++
		}
	}
	return n, t.in.moved
}

// eachLink calls f for every inbound link, without the lock.
func (t *Transport) eachLink(f func(*inbound)) {
	t.in.Lock()
	all := make([]*inbound, 0, len(t.in.links))
	for in := range t.in.links {
		all = append(all, in)
	}
	t.in.Unlock()
	for _, in := range all {
		f(in)
	}
}

// Close implements transport.Transport. When it returns, nothing of the
// transport runs, and peers find the table closed. Memory of Alloc stays until
// it is freed.
func (t *Transport) Close() error {
	t.out.Lock()
	first := !t.out.closed
	t.out.closed = true
	left := make([]*endpoint, 0, len(t.out.endpoints))
	for e := range t.out.endpoints {
		left = append(left, e)
	}
	t.out.Unlock()
	for _, e := range left {
		_ = e.Close() // never fails
	}
	if !first {
		return nil
	}
	t.in.Lock()
	t.in.closed = true
	for c := range t.in.greeting {
		_ = c.SetDeadline(time.Unix(1, 0))
	}
	t.in.Unlock()
	close(t.stop)
	t.table.setState(stateClosed)
	_ = t.listener.Close()
	t.eachLink(func(in *inbound) { in.link.end() })
	t.serving.Wait()
	t.pulls.close()
	t.moves.close()
	t.life.end()
	t.table.close()
	return nil
}

// forget drops a closed endpoint.
func (t *Transport) forget(e *endpoint) {
	t.out.Lock()
	defer t.out.Unlock()
	delete(t.out.endpoints, e)
}

// reader returns one to read other processes with; put gives it back.
func (t *Transport) reader() *reader {
	if r, ok := t.readers.Get().(*reader); ok {
		return r
	}
	return new(reader)
}

func (t *Transport) put(r *reader) {
	r.reset()
	t.readers.Put(r)
}

// maxMoves bounds what all endpoints together have queued for the workers.
const maxMoves = 2 * deskSlots

// maxLinks is how many peers of this host are served at the same time.
func (t *Transport) maxLinks() int { return min(t.env.Limits.MaxInbound, 512) }

const (
	// refusalTime is how long it is remembered that a peer cannot be reached: a
	// transfer to it then goes on to the next transport at once.
	refusalTime = 10 * time.Second
	// maxRefusals bounds what is remembered.
	maxRefusals = 256
)

// refusal is why a peer could not be reached, and until when that is believed.
type refusal struct {
	err   *errs.Error
	until time.Time
}

// remembered returns the refusal of a peer that is still believed, or nil.
func (t *Transport) remembered(peer segment.Incarnation) error {
	t.refused.Lock()
	defer t.refused.Unlock()
	r, ok := t.refused.until[peer]
	if !ok || t.env.Now().After(r.until) {
		return nil
	}
	return r.err
}

// remember keeps the refusal of a peer that no second try would change.
func (t *Transport) remember(peer segment.Incarnation, err *errs.Error) {
	t.refused.Lock()
	defer t.refused.Unlock()
	if len(t.refused.until) >= maxRefusals {
		clear(t.refused.until)
	}
	t.refused.until[peer] = refusal{err, t.env.Now().Add(refusalTime)}
}

// String names the transport in logs.
func (t *Transport) String() string { return fmt.Sprintf("%s %v", Name, t.env.Self.Incarnation) }
