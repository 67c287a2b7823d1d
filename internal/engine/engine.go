// Package engine is the shell around the scheduler: it opens the listener and
// the transports, owns every goroutine and the order of start and end, runs the
// pure machines of internal/core under their locks, and turns what they decide
// into posts, connections and results.
//
// It knows drivers only through the transport contract and peers only through
// their descriptors. The facade, package tideway, is the public face of it.
package engine

import (
	"context"
	"errors"
	"hash/maphash"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/control"
	"github.com/tideway-io/tideway/internal/core"
	"github.com/tideway-io/tideway/internal/core/admit"
	"github.com/tideway-io/tideway/internal/core/selector"
	"github.com/tideway-io/tideway/internal/listen"
	"github.com/tideway-io/tideway/internal/registry"
	"github.com/tideway-io/tideway/internal/sys"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
)

// state is where the engine is in its life. It only grows.
type state = int32

const (
	stateOpen state = iota
	stateDraining
	stateClosed
	statePoisoned
)

// Engine is one transfer engine. Goroutines it starts are counted in work and
// end when ctx does; Close waits for them.
type Engine struct {
	cfg         Config
	log         *slog.Logger
	incarnation segment.Incarnation
	host        string // identity of this boot, empty if unknown
	started     time.Time
	name        segment.Name // fixed once the listener is bound

	state atomic.Int32
	fault atomic.Pointer[errs.Error] // why it is poisoned
	ctx   context.Context
	stop  context.CancelFunc
	work  struct {
		sync.Mutex
		sync.WaitGroup
		closed bool // no new goroutines
	}
	ending  sync.Once
	endErr  error
	stopped chan struct{} // closed when Close has finished

	listener    *listen.Listener
	further     []*listen.Listener // those that transports asked for; complete once open
	dialer      *listen.Dialer
	server      *control.Server
	local       *registry.Registry
	remotes     *registry.Remotes
	transports  transports
	scratch     sync.Pool            // of *scratch
	candidates  []selector.Candidate // all configured drivers; does not change once open
	admission   admission
	shards      []*shard
	peers       peers
	own         atomic.Pointer[segment.Desc] // the last one that was made
	publication publication
	answers     map[string]control.Handler // by driver: what answers its exchanges; complete once open
	notices     notices
	counts      counts
	failures    logLimit // of what is logged about failed requests
}

var errClosed = errs.New(errs.Closed, "use engine", "the engine is closed")

// numShards is how many scheduler machines an engine runs. Peers are spread
// over them; on few cores one lock is not contended enough for more.
const numShards = 4

// Open starts an engine.
func Open(ctx context.Context, cfg Config) (*Engine, error) {
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	e := &Engine{cfg: cfg, log: cfg.Logger, started: time.Now(), stopped: make(chan struct{})}
	e.incarnation = segment.Incarnation(e.rand() | 1)
	e.host = sys.BootID(os.DirFS("/proc"))
	e.log = e.log.With("engine", e.incarnation.String())
	e.answers = make(map[string]control.Handler)
	e.ctx, e.stop = context.WithCancel(context.Background())
	e.admission.mu.door = admit.New(admit.Config{Limits: admit.Limits{Requests: int64(cfg.MaxRequests), Bytes: cfg.MaxBytes}})
	e.notices.init(cfg.MaxNotifications)
	e.publication.turn = make(chan struct{}, 1)
	for i := range numShards {
		e.shards = append(e.shards, newShard(e, i, core.Config{Retries: cfg.Retries}))
	}
	e.local = registry.New(registry.Options{Rand: e.rand, Attach: e.transports.attach, Detach: e.transports.detach})
	e.remotes = registry.NewRemotes(0)
	e.peers.init(e)
	if err := e.begin(ctx); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

// begin binds the listener, opens the transports and starts to accept.
func (e *Engine) begin(ctx context.Context) error {
	var err error
	e.dialer = &listen.Dialer{Timeout: e.cfg.ConnectTimeout}
	e.listener, err = listen.Open(ctx, listen.Options{
		Listen: e.cfg.Listen, Advertise: e.cfg.Advertise, Interface: e.cfg.Interface, PortFallback: e.cfg.PortFallback,
		Ports: e.cfg.Ports, MaxConns: e.cfg.MaxPeerConns, Logger: e.log,
	})
	if err != nil {
		return err
	}
	e.name = segment.Name(e.Addr())
	if e.published() {
		e.name = segment.Name(e.cfg.Name)
	}
	if err := e.openTransports(ctx); err != nil {
		return err
	}
	e.peers.self.desc.Store(e.selfDesc())
	if err := e.serveControl(); err != nil {
		return err
	}
	for _, l := range e.listeners() {
		l.Start()
	}
	if err := e.claim(ctx); err != nil {
		return err
	}
	if err := e.publish(ctx); err != nil {
		return err
	}
	if e.published() {
		e.spawn(e.watchStore)
	}
	if e.cfg.Refresh > 0 {
		e.spawn(e.refresh)
	}
	return nil
}

// listen opens one more port for a transport, at the address of the first. It is
// served when the engine is open.
func (e *Engine) listen(ctx context.Context, ports [2]uint16, handle func([8]byte, net.Conn)) (uint16, error) {
	host, _, err := listen.ParseAddr(e.listener.Addr(), 0)
	if err != nil {
		return 0, err
	}
	l, err := listen.Open(ctx, listen.Options{
		Listen: listen.JoinAddr(host, 0), Ports: ports, Advertise: e.Addr(), MaxConns: e.cfg.MaxPeerConns, Logger: e.log,
	})
	if err != nil {
		return 0, err
	}
	l.HandleOther(handle)
	e.further = append(e.further, l)
	_, port, err := listen.ParseAddr(l.Addr(), 0)
	return port, err
}

// stopListening refuses new connections.
func (e *Engine) stopListening() {
	for _, l := range e.listeners() {
		l.Stop()
	}
}

func (e *Engine) listeners() []*listen.Listener {
	if e.listener == nil {
		return nil
	}
	return slices.Concat([]*listen.Listener{e.listener}, e.further)
}

// Name returns the segment's name.
func (e *Engine) Name() segment.Name { return e.name }

// Addr returns the host:port that peers dial.
func (e *Engine) Addr() string {
	addr, _ := e.listener.Advertised()
	return addr
}

// rand returns 64 random bits; the hash seed is the runtime's own source.
func (e *Engine) rand() uint64 { return maphash.Bytes(maphash.MakeSeed(), nil) }

// now is the scheduler's clock.
func (e *Engine) now() core.Time { return core.Time(time.Since(e.started)) + 1 }

// at converts a wall-clock time to the scheduler's clock; what is centuries away
// is core.Never.
func (e *Engine) at(t time.Time) core.Time { return min(core.Time(t.Sub(e.started)), core.Never-1) + 1 }

// usable says why the engine takes no new work, nil if it does.
func (e *Engine) usable(op string) error {
	switch e.state.Load() {
	case stateOpen:
		return nil
	case statePoisoned:
		return e.fault.Load()
	case stateDraining:
		return errs.New(errs.Draining, op, "the engine is shutting down")
	}
	return errs.New(errs.Closed, op, "the engine is closed")
}

// over says why transfers are cut short, nil while they are not.
func (e *Engine) over() *errs.Error {
	if f := e.fault.Load(); f != nil {
		return f
	}
	if e.ctx.Err() != nil {
		return errClosed
	}
	return nil
}

// spawn runs f in a goroutine that Close waits for; false when it is too late.
func (e *Engine) spawn(f func()) bool {
	e.work.Lock()
	defer e.work.Unlock()
	if e.work.closed {
		return false
	}
	e.work.Go(f)
	return true
}

// background is spawn of work that must be done even while the engine closes:
// its context has ended then.
func (e *Engine) background(f func()) {
	if !e.spawn(f) {
		f()
	}
}

// closing closes an endpoint in the background; its slices complete meanwhile.
func (e *Engine) closing(ep transport.Endpoint) {
	e.background(func() {
		if err := ep.Close(); err != nil {
			e.log.Debug("close endpoint", "err", err)
		}
	})
}

// poison ends the engine's usefulness after a broken invariant: every call
// returns ErrInternal from now on, and the host process lives on.
func (e *Engine) poison(why string) {
	err := errs.New(errs.Internal, "use engine", "invariant broken: %s; open a new engine and report this", why)
	if e.fault.CompareAndSwap(nil, err) {
		e.state.Store(statePoisoned)
		e.log.Error("engine poisoned", "why", why)
		e.admission.close(err)
		e.notices.close()
		e.background(e.peers.close) // what is in flight ends
	}
}

// Shutdown drains and then closes the engine.
func (e *Engine) Shutdown(ctx context.Context) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, e.cfg.DrainTimeout)
		defer cancel()
	}
	if !e.state.CompareAndSwap(stateOpen, stateDraining) {
		return e.Close()
	}
	_ = e.unpublish(ctx) // Close tries again, and tells
	var failed []error
	e.stopListening()
	deadline, _ := ctx.Deadline()
	e.server.Drain(errs.Draining, max(time.Until(deadline), 0))
	failed = append(failed, e.transports.drain(ctx), e.quiet(ctx), e.Close())
	return errors.Join(failed...)
}

// quiet waits until no request is in flight, and no notification that follows one.
func (e *Engine) quiet(ctx context.Context) error {
	select {
	case <-e.admission.drained():
		return nil
	case <-ctx.Done():
		n, bytes := e.admission.inside()
		if n == 0 {
			return nil
		}
		return errs.New(errs.Draining, "shut down", "%d requests of %d bytes were cut short after the grace", n, bytes)
	}
}

// Close ends everything at once, in order: no new work, transfers flushed,
// connections closed, goroutines gone, memory released.
func (e *Engine) Close() error {
	e.ending.Do(func() {
		e.endErr = e.end()
		close(e.stopped)
	})
	<-e.stopped
	return e.endErr
}

func (e *Engine) end() error {
	e.state.CompareAndSwap(stateOpen, stateClosed)
	e.state.CompareAndSwap(stateDraining, stateClosed)
	e.admission.close(errClosed)
	e.stopListening()
	e.stop()
	e.peers.close()
	failed := []error{e.unpublish(context.Background())} // transfers do not wait for the store
	e.work.Lock()
	e.work.closed = true
	e.work.Unlock()
	e.work.Wait() // endpoints are closed, so every transfer ends
	ctx, cancel := context.WithTimeout(context.Background(), e.cfg.ConnectTimeout)
	defer cancel()
	failed = append(failed, e.settled(ctx))
	if e.server != nil {
		e.server.Close()
	}
	failed = append(failed, e.transports.close())
	for _, l := range e.listeners() {
		l.Close()
	}
	e.remotes.Close()
	e.notices.close()
	failed = append(failed, e.local.Close(ctx))
	return errors.Join(failed...)
}

// settled waits for the ends of transfers that others carry out: submitters and
// the goroutines of transports that happen to run a shard's actions.
func (e *Engine) settled(ctx context.Context) error {
	ok := wait(ctx, e.admission.drained())
	for _, s := range e.shards {
		ok = wait(ctx, s.close()) && ok
	}
	if ok {
		return nil
	}
	n, bytes := e.admission.inside()
	return errs.New(errs.Internal, "close", "%d requests of %d bytes did not end; report this", n, bytes)
}

// wait reports whether c was closed before ctx ended.
func wait(ctx context.Context, c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	case <-ctx.Done():
		return false
	}
}
