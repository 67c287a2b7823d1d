package transporttest

import (
	"testing"
	"time"

	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
)

// ending is one way in which slices under way come to their end: how the wire
// is held while they are posted, and what ends them.
type ending struct {
	name   string
	stall  time.Duration   // stall limit; 0: far beyond the check's patience
	cancel bool            // needs a Canceler
	wire   bool            // needs a transport that dials
	hold   func(w *wire)   // before the post
	fence  bool            // only a connection is lost, the peer is well: a fence can be had
	end    func(o *ordeal) // after it; all slices must then end
	prompt bool            // at once, though the peer may be silent
}

// sizes of an ordeal.
const (
	ordealSlices = 16
	ordealCell   = 128 << 10
	halfWay      = ordealCell + ordealCell/2
)

func holdUp(n int64) func(*wire)   { return func(w *wire) { w.allow(up, n) } }
func holdDown(n int64) func(*wire) { return func(w *wire) { w.allow(down, n) } }

// silence holds back everything, on new connections too.
func silence(w *wire) {
	w.setDeaf()
	w.allow(up, halfWay)
	w.allow(down, halfWay)
}

func cancelAll(o *ordeal) { o.canceler.Cancel(o.tags) }
func cutAll(o *ordeal)    { o.from.wire.cut() }
func hangUp(o *ordeal)    { o.from.wire.hangUp() }
func closeIt(o *ordeal)   { o.f.close() }

// vanish is what a host that is switched off looks like, once it is known.
func vanish(o *ordeal) {
	o.from.wire.setRefuse()
	o.from.wire.cut()
}

// endings are the ways that are tried for every promise about how slices end.
func endings() []*ending {
	return []*ending{
		{name: "done"},
		{name: "cancelled at once", cancel: true, end: cancelAll, prompt: true},
		{name: "cancelled while queued", cancel: true, wire: true, hold: holdUp(0), end: cancelAll, prompt: true},
		{name: "cancelled half-way out", cancel: true, wire: true, hold: holdUp(halfWay), end: cancelAll, prompt: true},
		{name: "cancelled half-way back", cancel: true, wire: true, hold: holdDown(halfWay), end: cancelAll, prompt: true},
		{name: "cancelled with a silent peer", cancel: true, wire: true, hold: silence, end: cancelAll, prompt: true},
		{name: "reset half-way", wire: true, hold: holdUp(halfWay), end: cutAll, fence: true},
		{name: "reset, and nobody listens", wire: true, hold: holdUp(halfWay), end: vanish},
		{name: "hung up half-way out", wire: true, hold: holdUp(halfWay), end: hangUp, fence: true},
		{name: "hung up half-way back", wire: true, hold: holdDown(halfWay), end: hangUp, fence: true},
		{name: "silent until the stall limit", stall: time.Second, wire: true, hold: silence},
		{name: "closed at once", end: closeIt, prompt: true},
		{name: "closed half-way", wire: true, hold: holdUp(halfWay), end: closeIt, prompt: true},
		{name: "closed with a silent peer", wire: true, hold: silence, end: closeIt, prompt: true},
	}
}

// ordeal is one set of slices, READs and WRITEs in turn, on their way to an
// ending. Each has a cell of its own on both sides; one more is spare.
type ordeal struct {
	*world
	*ending
	from, to      *host
	f             *flow
	canceler      transport.Canceler
	local, target *buffer
	slices        []transport.Slice
	tags          []transport.Tag
	done          []transport.Completion
	old, data     key // the destination's bytes before; the source's bytes
}

// newOrdeal prepares one, or returns nil where the transport lacks what the
// ending needs.
func newOrdeal(t testing.TB, cfg *Config, e *ending) *ordeal {
	t.Helper()
	w := newWorld(t, cfg, func(l *transport.Limits) {
		if e.stall != 0 {
			l.StallTimeout = e.stall
		}
	})
	o := &ordeal{world: w, ending: e, old: key(mix(w.seed)), data: key(mix(w.seed + 1))}
	o.from, o.to = w.pair()
	o.f = o.from.connect(o.to)
	o.local = o.from.memory((ordealSlices+1)*ordealCell, segment.LocalOnly)
	o.target = o.to.memory((ordealSlices+1)*ordealCell, segment.ReadWrite)
	o.f.do([]transport.Slice{slice(transport.Write, o.local.mem[:100], o.target.published(), 0)}, nil)
	canceler, able := transport.As[transport.Canceler](o.f.ep)
	if e.cancel && !able || e.wire && o.from.wire.dialled() == 0 {
		return nil
	}
	o.canceler = canceler
	for i := range ordealSlices {
		off := uint64(i * ordealCell)
		s := slice(transport.Write, o.cell(o.local, i), o.target.published(), off)
		o.data.fill(o.cell(o.local, i), off)
		o.target.fillRange(o.old, off, ordealCell)
		if i%2 == 1 {
			s.Op = transport.Read
			o.old.fill(o.cell(o.local, i), off)
			o.target.fillRange(o.data, off, ordealCell)
		}
		o.slices = append(o.slices, s)
	}
	return o
}

// cell returns the i-th cell of b.
func (o *ordeal) cell(b *buffer, i int) []byte { return b.mem[i*ordealCell : (i+1)*ordealCell] }

// run posts, ends and waits. hook runs in each completion. It returns how many
// slices the endpoint took.
func (o *ordeal) run(hook func(i int, c transport.Completion)) int {
	o.Helper()
	if o.hold != nil {
		o.hold(o.from.wire)
	}
	o.tags = o.tag(o.slices)
	n, err := o.f.post(o.slices, func(p *op) {
		if hook != nil {
			hook(int(p.slice.Tag-o.tags[0]), p.done)
		}
	})
	if n == 0 {
		o.Fatalf("%s: Post refused the first slice: %v", o.name, err)
	}
	if o.hold != nil && !eventually(o.cfg.Patience, o.from.wire.holding) {
		o.Fatalf("%s: nothing reached the wire", o.name)
	}
	start := time.Now()
	if o.end != nil {
		o.end(o)
	}
	limit := o.cfg.Patience
	if o.prompt {
		limit = o.cfg.Prompt
	}
	o.done = o.f.awaitFor(o.tags[:n], limit, o.name)
	o.slices, o.tags = o.slices[:n], o.tags[:n] // not earlier: hooks read them
	if took := time.Since(start); took > limit {
		o.Errorf("%s: the slices ended after %v, want at most %v", o.name, took, limit)
	}
	return n
}

// settle lets everything that is under way arrive wherever it still can, then
// ends both hosts, so that what memory holds now it holds for ever.
func (o *ordeal) settle() {
	o.Helper()
	o.from.wire.thaw()
	last := []transport.Slice{slice(transport.Read, o.cell(o.local, ordealSlices)[:1], o.target.published(), ordealSlices*ordealCell)}
	tags := o.tag(last)
	if n, _ := o.f.post(last, nil); n == 1 { // what the lane still carries arrives before this ends
		o.from.sink.wait(tags, o.cfg.Prompt)
	}
	o.f.close()
	o.from.wire.idle(o.cfg.Prompt) // connections that outlive the endpoint end below
	o.to.close()
	o.from.close()
}

// eachOrdeal runs check for every ending that the transport can be put through.
func eachOrdeal(t testing.TB, cfg *Config, check func(o *ordeal)) {
	t.Helper()
	for _, e := range endings() {
		start := time.Now()
		if o := newOrdeal(t, cfg, e); o != nil {
			check(o)
			o.settle()
			t.Logf("%s: %v", o.name, time.Since(start).Round(time.Millisecond))
		}
		if t.Failed() {
			break // the others would only repeat it
		}
	}
}
