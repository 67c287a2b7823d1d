package engine

import (
	"context"
	"errors"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/core"
	"github.com/tideway-io/tideway/internal/core/selector"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
)

// errResolve says that the target's descriptor must be fetched before the
// transfer can be routed.
var errResolve = errors.New("descriptor must be fetched")

// route finds the target's buffer, checks what was published about it, and
// chooses the paths that the transfer may take. It does not block.
func (t *transfer) route(e *Engine) (core.Transfer, error) {
	if err := t.locate(); err != nil {
		return core.Transfer{}, err
	}
	if err := t.permitted(); err != nil {
		return core.Transfer{}, err
	}
	spec := t.spec()
	var few [core.Rungs]int
	ladder := selector.Select(t.pair(), e.candidates, few[:0])
	if len(ladder) == 0 {
		return core.Transfer{}, t.wrong(selector.None(t.pair(), e.candidates))
	}
	for _, i := range ladder[:min(len(ladder), core.Rungs)] {
		q, err := t.view.peer.path(e.transports.find(e.candidates[i].Name))
		if err != nil {
			return core.Transfer{}, t.wrong(err)
		}
		spec.Ladder[spec.Rungs] = q.id
		spec.Rungs++
	}
	return spec, nil
}

// spec is what the scheduler must know of a transfer, without its paths.
func (t *transfer) spec() core.Transfer {
	return core.Transfer{Group: t.batch.group, Op: t.op, Class: t.class, Length: t.length, Offset: t.offset, Deadline: t.deadline}
}

// follow takes the way of o, which is routed, if t joins the same buffers the same
// way, and reports whether it does. By address, t must lie in o's target; by name
// it may leave it, which permitted says.
func (t *transfer) follow(o *transfer) bool {
	r, from := &t.remote, &o.remote
	if t.op != o.op || r.Found != from.Found || r.Segment != from.Segment || !same(t.forced, o.forced) ||
		t.held != o.held && t.localKind() != o.localKind() {
		return false
	}
	offset := r.Offset
	if r.Found == nil {
		if offset -= o.target.Addr; !t.within(o.target, offset) {
			return false
		}
	}
	t.view, t.target, t.offset = o.view, o.target, offset
	return true
}

// within reports whether t, from offset on, lies in b.
func (t *transfer) within(b *segment.Buffer, offset uint64) bool {
	return offset <= b.Length && t.length <= b.Length-offset
}

// runBytes is how long the requests may be that are scheduled as a run.
const runBytes = 64 << 10

// alike is follow for a transfer that can be scheduled as one run with o.
func (t *transfer) alike(o *transfer) bool {
	return t.joins(o) && t.class == o.class && t.deadline == o.deadline && t.length-1 < runBytes && t.follow(o) && t.within(t.target, t.offset)
}

// joins reports whether the ends of t and o can be told together: of one batch and
// tenant, in one direction, with one local buffer held.
func (t *transfer) joins(o *transfer) bool {
	return t.batch == o.batch && t.op == o.op && t.held == o.held && same(t.tenant, o.tenant)
}

// locate sets the view, the target's buffer and the offset in it.
func (t *transfer) locate() error {
	if f := t.remote.Found; f != nil {
		t.view, t.target, t.offset = f.view, f.Desc, t.remote.Offset
		if why := t.restarted(); why != nil {
			return t.wrong(why)
		}
		return nil
	}
	t.view = t.remote.Segment.now()
	b := t.view.desc.ByAddr(t.remote.Offset, t.length)
	if b != nil && (t.resolved || !t.remote.Segment.stale.Load()) {
		t.target, t.offset = b, t.remote.Offset-b.Addr
		return nil
	}
	if t.view.peer.own || t.resolved {
		return t.wrong(errs.New(errs.NotRegistered, t.op.String(), "no buffer holds the %d bytes at address %#x", t.length, t.remote.Offset))
	}
	return errResolve
}

// permitted checks what the owner published; the owner checks again.
func (t *transfer) permitted() error {
	b := t.target
	if !t.within(b, t.offset) {
		return t.wrong(errs.New(errs.OutOfRange, t.op.String(), "%d bytes at %d leave the buffer of %d bytes", t.length, t.offset, b.Length))
	}
	need := segment.RemoteRead
	if t.op == transport.Write {
		need = segment.RemoteWrite
	}
	if b.Access&need == 0 {
		return t.wrong(errs.New(errs.Denied, t.op.String(), "the buffer's access is %s, which does not allow a %s; its owner chooses it at registration", b.Access, t.op))
	}
	return nil
}

// wrong puts the target into an error of a transfer that was not scheduled.
func (t *transfer) wrong(err error) error {
	e := &errs.Error{Op: t.op.String(), Segment: t.targetName(), Stage: "select", Reason: errs.Of(err)}
	var inner *errs.Error
	if errors.As(err, &inner) {
		e.Detail, e.Err, e.Peer, e.Retryable = inner.Detail, inner.Err, inner.Peer, inner.Retryable
	} else {
		e.Err = err
	}
	return e
}

// pair is what the transfer asks of a transport.
func (t *transfer) pair() selector.Pair {
	return selector.Pair{
		Local: t.localKind(), Remote: t.target.Location.Kind(), Own: t.view.peer.own, Only: t.forced,
		SameHost: t.view.peer.e.mayShareHost(t.view.desc), Peer: t.transports(),
	}
}

// transports are those that the target's owner has open, as its own segment
// says: the peer may have been described by others as well.
func (t *transfer) transports() []string {
	if p := t.view.peer; p.own {
		return p.desc.Load().Transports
	}
	return t.view.desc.Transports
}

// Explanation is the decision for one request.
type Explanation struct {
	Segment    string      // what it is for
	Peer       string      // where its owner listens
	Chosen     []string    // the transports it would take, best first
	Candidates []Candidate // every transport of this engine
	Err        error       // why it would be refused, or nil
}

// Candidate is one transport and what speaks for or against it.
type Candidate struct {
	Transport string
	Chosen    bool
	Reason    string
}

// Explain says how a request would travel, without moving a byte.
func (e *Engine) Explain(ctx context.Context, r Request) (Explanation, error) {
	if err := errors.Join(e.usable("explain"), e.check(0, &r)); err != nil {
		return Explanation{}, err
	}
	t := &transfer{}
	t.fill(e, &r)
	if t.locate() == errResolve {
		if err := r.Remote.Segment.Refresh(ctx); err != nil {
			return Explanation{}, err
		}
		t.resolved = true
	}
	x := Explanation{Segment: t.targetName(), Err: t.locate()}
	if x.Err != nil {
		return x, nil
	}
	x.Peer, x.Err = t.view.peer.addr(), t.permitted()
	for _, v := range selector.Explain(t.pair(), e.candidates) {
		if v.Rung >= 0 {
			x.Chosen = append(x.Chosen, v.Name)
			if why := t.view.peer.trouble(e.transports.find(v.Name)); why != nil {
				v.Reason += "; it has failed: " + why.Error()
			}
		}
		x.Candidates = append(x.Candidates, Candidate{v.Name, v.Rung >= 0, v.Reason})
	}
	return x, nil
}
