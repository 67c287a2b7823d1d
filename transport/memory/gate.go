package memory

import (
	"context"
	"sync/atomic"

	"github.com/tideway-io/tideway/errs"
)

// gate counts who is inside and can be shut, for good, against who comes.
type gate struct {
	state atomic.Uint64
	empty chan struct{} // holds a token once the gate was shut and nobody inside
}

// The bits of gate.state above the count.
const (
	closed   = 1 << 63 // refuse who comes, stop who is inside
	draining = 1 << 62 // refuse who comes
	shutBits = closed | draining
)

func (g *gate) init() { g.empty = make(chan struct{}, 1) }

// enter counts the caller in, or says why not.
func (g *gate) enter() errs.Code {
	s := g.state.Add(1)
	if s&shutBits == 0 {
		return errs.OK
	}
	g.leave()
	if s&closed != 0 {
		return errs.Refused
	}
	return errs.Draining
}

func (g *gate) leave() {
	if s := g.state.Add(^uint64(0)); s&shutBits != 0 && s&^shutBits == 0 {
		g.signal()
	}
}

func (g *gate) signal() {
	select {
	case g.empty <- struct{}{}:
	default: // it is there already
	}
}

// isClosed tells those inside to stop.
func (g *gate) isClosed() bool { return g.state.Load()&closed != 0 }

// shut sets bit and waits until nobody is inside; false: ctx ended first. Who
// tries the shut gate counts for a moment but is never inside, so one sight of
// an empty gate is proof for good.
func (g *gate) shut(ctx context.Context, bit uint64) bool {
	if g.state.Or(bit); g.state.Load()&^shutBits == 0 {
		return true
	}
	select {
	case <-g.empty:
		g.signal() // for whoever else waits
		return true
	case <-ctx.Done():
		return false
	}
}
