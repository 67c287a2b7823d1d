package registry

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/segment"
)

// DefaultMaxRemotes is how many remote segments may be open at once.
const DefaultMaxRemotes = 65536

// Fetch asks the owner of a segment, or the metadata store, for its present
// descriptor. It returns soon after ctx has ended.
type Fetch func(ctx context.Context) (*segment.Desc, error)

// Remotes is the table of the remote segments that one engine has open. Its
// methods may be called from any goroutine.
type Remotes struct {
	limit int
	life  context.Context // of fetches; ends with Close
	end   context.CancelFunc
	wg    sync.WaitGroup // fetches
	mu    struct {
		sync.Mutex
		closed bool
		byName map[segment.Name]*Remote
	}
}

// NewRemotes returns an empty table for limit segments; 0: DefaultMaxRemotes.
func NewRemotes(limit int) *Remotes {
	if limit == 0 {
		limit = DefaultMaxRemotes
	}
	t := &Remotes{limit: limit}
	t.life, t.end = context.WithCancel(context.Background())
	t.mu.byName = map[segment.Name]*Remote{}
	return t
}

// Remote is one open remote segment, under the name by which it was opened. Two
// names of one peer are two Remotes with the same Identity; each believes only
// what its own name's owner says, so that a lying peer harms nobody else's.
type Remote struct {
	name  segment.Name
	table *Remotes
	fetch Fetch
	desc  atomic.Pointer[segment.Desc]

	// Guarded by table.mu:
	refs   int
	flight *flight
}

// Identity tells one life of one peer from all others, whatever name it was
// opened by. It can be compared and used as a map key.
type Identity struct {
	Incarnation segment.Incarnation // 0: unknown, a Mooncake peer
	Addr        string              // native address; of a Mooncake peer the segment's own name
}

// flight is one fetch and those who wait for it.
type flight struct {
	waiters int // guarded by table.mu
	cancel  context.CancelFunc
	done    chan struct{}
	desc    *segment.Desc // desc and err are read after done
	err     error
}

// Open asks for the segment's descriptor and returns its Remote, with one more
// reference if the name is open already; Close gives the reference back. The
// first Open of a name brings the fetch that all others and Refresh use. Calls
// for one name share one fetch, which is given up when all of them have. The
// error is fetch's, the context's, errs.Overloaded where the table is full, or
// errs.Closed.
func (t *Remotes) Open(ctx context.Context, name segment.Name, fetch Fetch) (*Remote, error) {
	r, err := t.hold(name, fetch)
	if err != nil {
		return nil, err
	}
	if _, err := r.ask(ctx, nil); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// hold returns the entry of name with one more reference.
func (t *Remotes) hold(name segment.Name, fetch Fetch) (*Remote, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.closed {
		return nil, errs.New(errs.Closed, "open segment", "%s: the engine is closed", name)
	}
	r := t.mu.byName[name]
	if r == nil {
		if len(t.mu.byName) >= t.limit {
			return nil, errs.New(errs.Overloaded, "open segment", "%s: %d segments are open, the limit is %d: close some", name, len(t.mu.byName), t.limit)
		}
		r = &Remote{name: name, table: t, fetch: fetch}
		t.mu.byName[name] = r
	}
	r.refs++
	return r, nil
}

// Name returns the name by which the segment was opened.
func (r *Remote) Name() segment.Name { return r.name }

// Desc returns the newest descriptor known. It is immutable; a later call may
// return another one.
func (r *Remote) Desc() *segment.Desc { return r.desc.Load() }

// Identity returns who answers under the segment's name, as of Desc.
func (r *Remote) Identity() Identity { return IdentityOf(r.desc.Load(), r.name) }

// IdentityOf returns the identity in a descriptor that was found under name.
func IdentityOf(d *segment.Desc, name segment.Name) Identity {
	if d.Incarnation == 0 {
		return Identity{Addr: string(name)}
	}
	return Identity{Incarnation: d.Incarnation, Addr: d.Addr}
}

// Refresh returns a descriptor other than seen, the one that turned out to be
// stale: what somebody else has fetched meanwhile, else what a new fetch
// brings, which is seen itself where nothing changed. If the fetch fails the
// old descriptor stays. restarted reports another incarnation than seen's.
func (r *Remote) Refresh(ctx context.Context, seen *segment.Desc) (now *segment.Desc, restarted bool, err error) {
	now, err = r.ask(ctx, seen)
	return now, err == nil && seen != nil && now.Incarnation != seen.Incarnation, err
}

// ask joins the fetch in flight or starts one.
func (r *Remote) ask(ctx context.Context, seen *segment.Desc) (*segment.Desc, error) {
	t := r.table
	t.mu.Lock()
	if now := r.desc.Load(); seen != nil && now != seen {
		t.mu.Unlock()
		return now, nil
	}
	if t.mu.closed {
		t.mu.Unlock()
		return nil, errs.New(errs.Closed, "refresh segment", "%s: the engine is closed", r.name)
	}
	f := r.flight
	if f == nil {
		f = r.start()
	}
	f.waiters++
	t.mu.Unlock()
	if wait(ctx, f.done) {
		return f.desc, f.err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if f.waiters--; f.waiters == 0 {
		f.cancel()
		if r.flight == f {
			r.flight = nil // whoever comes now wants a new one
		}
	}
	return nil, &errs.Error{Op: "open segment", Segment: string(r.name), Reason: errs.Of(ctx.Err()), Err: context.Cause(ctx)}
}

// start begins a fetch. It ends with its last waiter or the table, not with the
// context of whoever was first. Callers hold table.mu.
func (r *Remote) start() *flight {
	ctx, cancel := context.WithCancel(r.table.life)
	f := &flight{cancel: cancel, done: make(chan struct{})}
	r.flight = f
	r.table.wg.Go(func() {
		defer cancel()
		desc, err := r.fetch(ctx)
		r.land(f, desc, err)
	})
	return f
}

// land ends a flight and takes its descriptor over if it is news. What a flight
// brings that everybody has left may be older than what is known now.
func (r *Remote) land(f *flight, desc *segment.Desc, err error) {
	r.table.mu.Lock()
	defer r.table.mu.Unlock()
	defer close(f.done)
	if err == nil && desc == nil {
		err = errs.New(errs.Internal, "open segment", "%s: no descriptor and no error", r.name)
	}
	f.err = err
	if r.flight != f {
		return
	}
	r.flight = nil
	if err != nil {
		return
	}
	if old := r.desc.Load(); old == nil || news(old, desc) {
		r.desc.Store(desc)
	}
	f.desc = r.desc.Load()
}

// news reports whether d should replace old: it is another life of the peer or
// a later version. What a store or a slow answer brings late is not news.
// Mooncake peers have no versions, so theirs always are.
func news(old, d *segment.Desc) bool {
	return d.Incarnation == 0 || d.Incarnation != old.Incarnation || d.Version > old.Version
}

// Close gives one reference back. With the last one the descriptor is
// forgotten.
func (r *Remote) Close() {
	t := r.table
	t.mu.Lock()
	defer t.mu.Unlock()
	if r.refs--; r.refs == 0 && t.mu.byName[r.name] == r {
		delete(t.mu.byName, r.name)
	}
}

// All returns the open segments whose descriptor is known, in no order.
func (t *Remotes) All() []*Remote {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]*Remote, 0, len(t.mu.byName))
	for _, r := range t.mu.byName {
		if r.desc.Load() != nil {
			all = append(all, r)
		}
	}
	return all
}

// Close refuses what is new, stops the fetches in flight and waits for them.
// Descriptors that were handed out stay readable.
func (t *Remotes) Close() {
	t.mu.Lock()
	t.mu.closed = true
	t.mu.Unlock()
	t.end()
	t.wg.Wait()
}
