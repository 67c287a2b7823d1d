package transporttest

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
)

// checkCancel: "Context ends the wait, deadline ends the transfer, Cancel
// withdraws it."
//
// For a transport: Cancel in any stage ends a slice promptly, also when the peer
// says nothing, with errs.Canceled or as it would have ended anyway; it costs
// the slices around it nothing; and a silent peer ends slices by itself after
// the stall limit.
func checkCancel(t testing.TB, cfg *Config) {
	if !hasCanceler(t, cfg) {
		t.Skipf("the endpoint is no Canceler: slices cannot be withdrawn")
	}
	cancelSome(t, cfg)
	probe(t, cfg)
	eachOrdeal(t, cfg, func(o *ordeal) {
		o.run(nil)
		for i, c := range o.done {
			if o.cancel && c.Code != errs.OK && c.Code != errs.Canceled && !errors.Is(c.Code.Kind(), errs.ErrUnreachable) {
				o.Errorf("%s: slice %d ended with %v (%v), want ok or canceled", o.name, i, c.Code, c.Err)
			}
			if o.stall != 0 && c.Code != errs.OK && !errors.Is(c.Code.Kind(), errs.ErrUnreachable) {
				o.Errorf("%s: slice %d ended with %v (%v), want a code of the kind unreachable", o.name, i, c.Code, c.Err)
			}
		}
		o.verify()
		o.recover()
	})
}

func hasCanceler(t testing.TB, cfg *Config) bool {
	t.Helper()
	w := newWorld(t, cfg, nil)
	from, to := w.pair()
	_, ok := transport.As[transport.Canceler](from.connect(to).ep)
	return ok
}

// verify checks what success means for each slice of an ordeal.
func (o *ordeal) verify() {
	o.Helper()
	for i, s := range o.slices {
		if o.done[i].Code != errs.OK {
			continue // and perhaps in doubt, that is still being written
		}
		if at := wrong(s, o.target, o.data); at >= 0 {
			o.Errorf("%s: %v %d completed, but byte %d is wrong", o.name, s.Op, i, at)
		}
	}
}

// recover checks that the pair can be used again once the wire is whole.
func (o *ordeal) recover() {
	o.Helper()
	o.from.wire.thaw()
	o.f.close()
	g := o.from.reconnect(o.to)
	spare := uint64(ordealSlices * ordealCell)
	g.do([]transport.Slice{slice(transport.Write, o.cell(o.local, 0), o.target.published(), spare)}, nil)
	g.close()
}

// probe checks that an endpoint which measures round trips ends with its context
// when nobody answers.
func probe(t testing.TB, cfg *Config) {
	t.Helper()
	w := newWorld(t, cfg, nil)
	from, to := w.pair()
	prober, able := transport.As[transport.Prober](from.connect(to).ep)
	if !able {
		return
	}
	if took, err := prober.Probe(t.Context()); err != nil || took < 0 || took > cfg.Patience {
		t.Errorf("probe: %v, %v", took, err)
	}
	if from.wire.dialled() == 0 {
		return
	}
	silence(from.wire)
	from.wire.allow(up, 0)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	from.within("Probe of a silent peer", func() {
		if took, err := prober.Probe(ctx); err == nil {
			t.Errorf("a probe of a silent peer took %v", took)
		}
	})
}

// cancelSome cancels some of many slices while the peer serves them all: those
// that were not cancelled must not notice. It also cancels what has ended and
// what never was.
func cancelSome(t testing.TB, cfg *Config) {
	t.Helper()
	const n, size = 64, 16 << 10
	w := newWorld(t, cfg, nil)
	from, to := w.pair()
	f := from.connect(to)
	canceler, _ := transport.As[transport.Canceler](f.ep)
	count := rounds(12)
	local := from.memory(n*size, segment.LocalOnly)
	target := to.memory(count*n*size, segment.ReadWrite) // a fresh part each round: a cancelled WRITE may be in doubt
	rng := rand.New(rand.NewPCG(w.seed, 2))
	for round := range count {
		data := key(mix(w.seed + uint64(round)))
		base := uint64(round * n * size)
		data.fill(local.mem, base)
		s := make([]transport.Slice, n)
		for i := range s {
			s[i] = slice(transport.Write, local.mem[i*size:(i+1)*size], target.published(), base+uint64(i*size))
		}
		tags := from.tag(s)
		f.postAll(s, nil, nil)
		var victims []transport.Tag
		for _, tag := range tags {
			if rng.IntN(2) == 0 {
				victims = append(victims, tag)
			}
		}
		canceler.Cancel(victims)
		canceler.Cancel(victims) // twice is once
		done := f.awaitFor(tags, cfg.Patience, "with half of them cancelled")
		checkSurvivors(f, s, done, victims, target, data)
		canceler.Cancel(tags) // all have ended
		canceler.Cancel([]transport.Tag{1 << 60, 0})
		canceler.Cancel(nil)
	}
}

// checkSurvivors checks the slices that nobody cancelled, and that cancelled
// ones say so.
func checkSurvivors(f *flow, s []transport.Slice, done []transport.Completion, victims []transport.Tag, target *buffer, data key) {
	f.from.Helper()
	cancelled := map[transport.Tag]bool{}
	for _, tag := range victims {
		cancelled[tag] = true
	}
	for i, c := range done {
		switch {
		case c.Code == errs.OK:
			if at := wrong(s[i], target, data); at >= 0 {
				f.from.Errorf("slice %d completed, but byte %d is not at the target", i, at)
			}
		case !cancelled[c.Tag]:
			f.from.Errorf("slice %d was not cancelled, but ended with %v (%v)", i, c.Code, c.Err)
		case c.Code != errs.Canceled:
			f.from.Errorf("cancelled slice %d ended with %v (%v), want ok or canceled", i, c.Code, c.Err)
		}
	}
}

// checkQuiet: "Memory is yours again at the end state, not before, and always
// then."
//
// For a transport: from the completion on, however the slice ended, nothing is
// read from or written to Local; and a target that takes its buffer back waits
// for no peer. Every Local is overwritten inside its completion; no such byte
// may reach the target, and none may change, while everything that is still
// under way arrives.
func checkQuiet(t testing.TB, cfg *Config) {
	eachOrdeal(t, cfg, func(o *ordeal) {
		scribble := key(mix(o.seed + 7))
		o.run(func(i int, c transport.Completion) {
			if c.Code == errs.OK {
				if at := wrong(o.slices[i], o.target, o.data); at >= 0 {
					o.Errorf("%s: %v %d completed, but byte %d is wrong", o.name, o.slices[i].Op, i, at)
				}
			}
			scribble.fill(o.cell(o.local, i), uint64(i*ordealCell))
		})
		o.settle()
		for i := range o.slices {
			off := uint64(i * ordealCell)
			if at := scribble.differs(o.cell(o.local, i), off); at >= 0 {
				o.Errorf("%s: byte %d of the local range of %v %d changed after the completion (%v)", o.name, at, o.slices[i].Op, i, o.done[i].Code)
			}
			if at := neither(o.cell(o.target, i), off, o.old, o.data); at >= 0 {
				o.Errorf("%s: byte %d of target range %d is neither old nor new: it left the local range of %v after the completion (%v)",
					o.name, at, i, o.slices[i].Op, o.done[i].Code)
			}
		}
	})
	if !t.Failed() {
		closeTarget(t, cfg)
		closeBusy(t, cfg)
	}
}

// closeBusy takes the target's buffer back while slices come and go. It must not
// take longer than one of them, and no byte may change afterwards.
func closeBusy(t testing.TB, cfg *Config) {
	t.Helper()
	const n, size = 32, 64 << 10
	w := newWorld(t, cfg, nil)
	from, to := w.pair()
	f := from.connect(to)
	for range rounds(8) {
		local, target := from.memory(n*size, segment.LocalOnly), to.memory(n*size, segment.ReadWrite)
		s := make([]transport.Slice, n)
		for i := range s {
			s[i] = slice(transport.Op(1+i%2), local.mem[i*size:(i+1)*size], target.published(), uint64(i*size))
		}
		tags := from.tag(s)
		var posting sync.WaitGroup
		posting.Go(func() { f.postAll(s, nil, nil) })
		start, _ := from.sink.count()
		eventually(cfg.Prompt/50, func() bool { now, _ := from.sink.count(); return now > start })
		if err := target.close(cfg.Prompt); err != nil {
			t.Errorf("take the buffer back while slices come and go: %v", err)
		}
		after := key(mix(w.seed + 13))
		after.fill(target.mem, 0)
		posting.Wait()
		for i, c := range f.await(tags) {
			if c.Code != errs.OK && !errors.Is(c.Code.Kind(), errs.ErrStale) {
				t.Errorf("slice %d to a buffer that was taken back ended with %v (%v), want ok or a code of the kind stale", i, c.Code, c.Err)
			}
		}
		if at := after.differs(target.mem, 0); at >= 0 {
			t.Errorf("byte %d of a buffer that its owner had taken back was written", at)
		}
	}
}

// closeTarget takes the target's buffer back while slices are half-way. That
// must not wait for the initiator, and no byte may change afterwards.
func closeTarget(t testing.TB, cfg *Config) {
	t.Helper()
	for _, e := range endings() {
		if e.hold == nil || !e.cancel { // each way to hold once
			continue
		}
		e.end, e.cancel = nil, false
		o := newOrdeal(t, cfg, e)
		if o == nil {
			continue
		}
		o.hold(o.from.wire)
		o.tags = o.tag(o.slices)
		n, _ := o.f.post(o.slices, nil)
		if !eventually(cfg.Patience, o.from.wire.holding) {
			o.Fatalf("nothing reached the wire")
		}
		if err := o.target.close(cfg.Prompt); err != nil {
			o.Errorf("take the buffer back while the initiator is held (%s): %v", o.name, err)
		}
		after := key(mix(o.seed + 9))
		after.fill(o.target.mem, 0)
		o.from.wire.thaw()
		o.f.await(o.tags[:n])
		o.settle()
		if at := after.differs(o.target.mem, 0); at >= 0 {
			o.Errorf("byte %d of a buffer that its owner had taken back was written (%s)", at, o.name)
		}
	}
}

// checkGhosts: "A slice is retried elsewhere only when its first attempt can no
// longer touch memory."
//
// For a transport: a WRITE that failed and is not in doubt never changes the
// target any more. Inside each such completion the check puts its own bytes into
// the target range, as a retry would; they must still be there when everything
// that was under way has arrived. A transport that fences must also prove it
// where only a connection was lost.
func checkGhosts(t testing.TB, cfg *Config) {
	var failed, doubtful atomic.Int64
	eachOrdeal(t, cfg, func(o *ordeal) {
		retry := key(mix(o.seed + 11))
		replaced := make([]bool, len(o.slices))
		o.run(func(i int, c transport.Completion) {
			if o.slices[i].Op != transport.Write || c.Code == errs.OK {
				return
			}
			failed.Add(1)
			if c.InDoubt {
				doubtful.Add(1)
				return
			}
			replaced[i] = true
			o.target.fillRange(retry, uint64(i*ordealCell), ordealCell)
		})
		o.settle()
		for i := range o.slices {
			off := uint64(i * ordealCell)
			if at := retry.differs(o.cell(o.target, i), off); replaced[i] && at >= 0 {
				o.Errorf("%s: WRITE %d failed with %v and was not in doubt, but wrote byte %d afterwards", o.name, i, o.done[i].Code, at)
			}
			if o.fence && o.done[i].InDoubt && o.from.tr.Caps().Fences {
				o.Errorf("%s: WRITE %d is in doubt although the transport fences and the peer is well", o.name, i)
			}
			if o.slices[i].Op == transport.Read && o.done[i].InDoubt {
				o.Errorf("%s: READ %d is in doubt: it cannot change the target", o.name, i)
			}
		}
	})
	t.Logf("%d WRITEs failed, %d of them in doubt", failed.Load(), doubtful.Load())
}

// checkOnce: "Every accepted slice completes exactly once, also after Close, also
// when its device dies."
//
// Thousands of slices from several posters, while connections are reset and
// hung up at random moments, the endpoint is closed in the middle, and the target
// goes away.
func checkOnce(t testing.TB, cfg *Config) {
	fromInside(t, cfg)
	for round := range rounds(8) {
		if !t.Failed() {
			onceRound(t, cfg, round)
		}
	}
	closedAtReturn(t, cfg)
}

// fromInside posts and cancels from inside the sink: whoever completes holds no
// lock that these take.
func fromInside(t testing.TB, cfg *Config) {
	t.Helper()
	const links = 64
	w := newWorld(t, cfg, nil)
	from, to := w.pair()
	f := from.connect(to)
	canceler, able := transport.As[transport.Canceler](f.ep)
	local, target := from.memory(links*onceCell, segment.LocalOnly), to.memory(links*onceCell, segment.ReadWrite)
	chain := make([]transport.Slice, links)
	for i := range chain {
		chain[i] = slice(transport.Op(1+i%2), local.mem[i*onceCell:(i+1)*onceCell], target.published(), uint64(i*onceCell))
	}
	tags := from.tag(chain)
	var link func(o *op)
	link = func(o *op) {
		i := int(o.done.Tag - tags[0])
		if able {
			canceler.Cancel(tags[:i+1])
		}
		if i+1 < links {
			if n, err := f.post(chain[i+1:i+2], link); n != 1 {
				t.Errorf("Post from inside the sink, with nothing else under way: %v", err)
			}
		}
	}
	from.within("a Post whose completion posts the next slice", func() { f.postAll(chain[:1], link, nil) })
	f.awaitFor(tags, cfg.Patience, "each posted from the completion of the one before")
}

const (
	onceSlices = 2400
	onceCell   = 4 << 10
)

// onceRound runs one storm; the round says how it ends.
func onceRound(t testing.TB, cfg *Config, round int) {
	t.Helper()
	const posters = 4
	w := newWorld(t, cfg, func(l *transport.Limits) { l.Lanes = 1 + round%2 })
	from, to := w.pair()
	f := from.connect(to)
	local, target := from.memory(onceSlices*onceCell, segment.LocalOnly), to.memory(onceSlices*onceCell, segment.ReadWrite)
	data, all := key(mix(w.seed)), onceStorm(w, local, target)
	tags := w.tag(all)
	var active sync.WaitGroup
	var ended atomic.Int32
	for mine := range slices.Chunk(all, onceSlices/posters) {
		active.Go(func() {
			defer ended.Add(1)
			for s := range slices.Chunk(mine, 8) {
				if n, _ := f.post(s, nil); n == 0 {
					pause()
				}
			}
		})
	}
	onceDisturb(f, rand.New(rand.NewPCG(w.seed, 99)), func() bool { return ended.Load() == posters })
	switch {
	case round%3 == 0:
		f.close()
	case round%3 == 1 && from != to:
		to.close()
	}
	active.Wait()
	f.close()
	if open := from.sink.accepted(); len(open) > 0 {
		w.Errorf("%d slices had not completed when Endpoint.Close returned", len(open))
	}
	for i, c := range f.await(tags) { // a refused one has ended with the zero completion
		if c.Tag == 0 || c.Code != errs.OK {
			continue
		}
		if at := wrong(all[i], target, data); at >= 0 {
			w.Errorf("%v %d completed, but byte %d is wrong", all[i].Op, i, at)
		}
	}
}

// onceStorm prepares READs and WRITEs in turn, each with a cell of its own.
func onceStorm(w *world, local, target *buffer) []transport.Slice {
	data, rng := key(mix(w.seed)), rand.New(rand.NewPCG(w.seed, 5))
	all := make([]transport.Slice, onceSlices)
	for i := range all {
		off := uint64(i * onceCell)
		all[i] = slice(transport.Op(1+i%2), local.mem[off:][:1+rng.IntN(onceCell)], target.published(), off)
		if all[i].Op == transport.Read {
			target.fillRange(data, off, onceCell)
		} else {
			data.fill(local.mem[off:][:onceCell], off)
		}
	}
	return all
}

// onceDisturb breaks connections while slices complete, a few dozen at a time.
func onceDisturb(f *flow, rng *rand.Rand, stopped func() bool) {
	f.from.Helper()
	for range 12 {
		start, _ := f.from.sink.count()
		want := start + 20 + rng.IntN(100)
		eventually(f.from.cfg.Prompt/20, func() bool {
			n, _ := f.from.sink.count()
			return n >= want || stopped()
		})
		if stopped() {
			return
		}
		if rng.IntN(2) == 0 {
			f.from.wire.cut()
		} else {
			f.from.wire.hangUp()
		}
	}
}

// closedAtReturn checks, with every slice held, that Close has completed all
// of them when it returns, and that the endpoint takes nothing afterwards.
func closedAtReturn(t testing.TB, cfg *Config) {
	t.Helper()
	for _, e := range endings() {
		if e.cancel || e.stall != 0 {
			continue
		}
		o := newOrdeal(t, cfg, e)
		if o == nil {
			continue
		}
		if o.hold != nil {
			o.hold(o.from.wire)
		}
		tags := o.tag(o.slices)
		n, _ := o.f.post(o.slices, nil)
		o.f.close()
		if open, _ := o.from.sink.pending(tags[:n]); len(open) > 0 {
			o.Errorf("%d slices had not completed when Endpoint.Close returned (%s)", len(open), o.name)
		}
		late := o.slices[:1]
		o.tag(late)
		if n, err := o.f.post(late, nil); n != 0 || !errors.Is(err, errs.ErrClosed) {
			o.Errorf("Post after Close: %d slices, error %v; want none and %v", n, err, errs.ErrClosed)
		}
		o.settle()
	}
}
