package main

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/tideway-io/tideway"
	"github.com/tideway-io/tideway/errs"
)

// crew are the workers of one measured point. Worker i owns a local buffer and
// the i-th stretch of the remote buffer, in which piece k belongs to request
// k mod batch of turn k div batch.
type crew struct {
	rig     *rig
	point   point
	workers []*worker
	via     string
	round   uint64
	key     pattern
}

// worker submits one batch after the other, each turn's in its turn.
type worker struct {
	local *tideway.Buffer
	base  uint64 // of its stretch in the remote buffer
	class int    // index of its priority in the point's classes
	batch *tideway.Batch
	turns [][]tideway.Request
	next  int
	lap   bool // go on until every turn has had its batch
	began time.Time
	tally
	used string // transport that moved the last batch
}

// tally is what was moved and how long that took.
type tally struct {
	batches  uint64
	bytes    uint64
	requests uint64
	failed   uint64
	elapsed  time.Duration
	hist     histogram
}

// add counts what o measured at the same time as t, or after it.
func (t *tally) add(o *tally) {
	t.batches += o.batches
	t.bytes += o.bytes
	t.requests += o.requests
	t.failed += o.failed
	t.elapsed += o.elapsed
	t.hist.merge(&o.hist)
}

// newCrew makes the workers of a point.
func newCrew(r *rig, p point, via string) (*crew, error) {
	if p.bytes() > r.remote.Len() {
		return nil, fits(r.remote, 0, p.bytes())
	}
	c := &crew{rig: r, point: p, via: via}
	for i := range p.threads {
		w, err := c.worker(i)
		if err != nil {
			c.Close()
			return nil, err
		}
		c.workers = append(c.workers, w)
	}
	return c, nil
}

func (c *crew) worker(i int) (*worker, error) {
	p := c.point
	local, err := c.rig.engine.Alloc(p.stretch(), tideway.BufferOptions{})
	if err != nil {
		return nil, err
	}
	classes := p.classes()
	w := &worker{local: local, base: uint64(i) * p.stretch(), class: i % len(classes), batch: c.rig.engine.NewBatch()}
	for t := range p.turns() {
		reqs := make([]tideway.Request, p.batch)
		for j := range reqs {
			k := t*p.batch + j
			at := uint64(k) * p.size
			reqs[j] = tideway.Request{
				Op: c.op(k), Local: local.Range(at, p.size), Remote: c.rig.remote.At(w.base + at),
				Priority: priorityOf(classes[w.class]), Transport: c.via,
			}
		}
		w.turns = append(w.turns, reqs)
	}
	return w, nil
}

// op is what piece k is for; the writes of a mix are spread evenly.
func (c *crew) op(k int) tideway.Op {
	writes := 100 - c.point.reads()
	if (k+1)*writes/100 > k*writes/100 {
		return tideway.Write
	}
	return tideway.Read
}

// Close frees the workers' memory.
func (c *crew) Close() {
	for _, w := range c.workers {
		_ = w.local.CloseContext(context.Background()) // its batches have ended
	}
}

// used names the transport that the workers' last batches took, "mixed" if they
// differ.
func (c *crew) used() string {
	used := ""
	for _, w := range c.workers {
		if used != "" && w.used != "" && w.used != used {
			return "mixed"
		}
		used = w.used
	}
	return used
}

// prepare begins a round: sources hold its pattern and targets hold poison. The
// far end is written through the second engine.
func (c *crew) prepare(ctx context.Context) error {
	c.round++
	c.key = newPattern(c.rig.run, c.round)
	return c.eachPiece(func(k int, local []byte, at uint64) error {
		far := c.rig.scratch(len(local))
		if c.op(k) == tideway.Write {
			c.key.fill(local, at)
			poison(far)
		} else {
			poison(local)
			c.key.fill(far, at)
		}
		_, err := c.rig.second.WriteAt(ctx, far, at)
		return err
	})
}

// verify checks a round: what was written is read back through the second
// engine, what was read lies in local memory.
func (c *crew) verify(ctx context.Context) error {
	return c.eachPiece(func(k int, local []byte, at uint64) error {
		got := local
		if c.op(k) == tideway.Write {
			got = c.rig.scratch(len(local))
			if _, err := c.rig.second.ReadAt(ctx, got, at); err != nil && !errors.Is(err, io.EOF) {
				return err
			}
		}
		if i := c.key.mismatch(got, at); i >= 0 {
			return errs.New(errs.Checksum, "verify "+c.op(k).String(), "round %d: byte %d of the buffer is %#02x, which is wrong", c.round, at+uint64(i), got[i])
		}
		return nil
	})
}

// eachPiece calls f for every stretch of memory, at most a slot long, that the
// requests cover, with its place in the remote buffer.
func (c *crew) eachPiece(f func(k int, local []byte, at uint64) error) error {
	size := c.point.size
	for _, w := range c.workers {
		for k := range c.point.turns() * c.point.batch {
			start := uint64(k) * size
			for off := uint64(0); off < size; off += slotSize {
				n := min(slotSize, size-off)
				if err := f(k, w.local.Bytes()[start+off:start+off+n], w.base+start+off); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// warm runs every worker for that long, and through each of its turns.
func (c *crew) warm(ctx context.Context, d time.Duration) error {
	_, _, err := c.timed(ctx, true, func(w *worker) bool { return time.Since(w.began) < d })
	return err
}

// timed runs every worker until more says no, and with lap through each of its
// turns. It returns what was moved for each class, and the CPU time used.
func (c *crew) timed(ctx context.Context, lap bool, more func(*worker) bool) ([]tally, cpuTime, error) {
	total := make([]tally, len(c.point.classes()))
	before := c.rig.cpu()
	failed := make([]error, len(c.workers))
	began := time.Now()
	var all sync.WaitGroup
	for i, w := range c.workers {
		w.tally, w.lap, w.began = tally{}, lap, began
		all.Go(func() { failed[i] = w.loop(ctx, more) })
	}
	all.Wait()
	elapsed := time.Since(began)
	for i, w := range c.workers {
		total[w.class].add(&w.tally)
		if failed[i] == nil {
			failed[i] = w.path(c.via)
		}
	}
	for i := range total {
		total[i].elapsed = elapsed
	}
	return total, c.rig.cpu().since(before), errors.Join(failed...)
}

// loop runs batches until more says no or one fails. It allocates nothing.
func (w *worker) loop(ctx context.Context, more func(*worker) bool) error {
	for {
		if err := w.once(ctx); err != nil {
			return err
		}
		if !more(w) && (!w.lap || w.batches >= uint64(len(w.turns))) {
			return nil
		}
	}
}

// once runs one batch and counts it.
func (w *worker) once(ctx context.Context) error {
	if w.batch.Len() > 0 {
		if err := w.batch.Reset(); err != nil {
			return err
		}
	}
	reqs := w.turns[w.next]
	w.next = (w.next + 1) % len(w.turns)
	start := time.Now()
	err := context.Cause(ctx) // a batch that never waits would not see it
	if err == nil {
		err = w.batch.Add(ctx, reqs...)
	}
	if err == nil {
		err = w.batch.Wait(ctx)
	}
	if err != nil {
		return w.abandon(err)
	}
	w.hist.add(time.Since(start))
	w.batches++
	w.requests += uint64(len(reqs))
	w.bytes += uint64(len(reqs)) * reqs[0].Local.Len()
	return nil
}

// abandon withdraws a batch that failed or was interrupted, waits until it is
// quiet and counts what failed; what was withdrawn did not fail.
func (w *worker) abandon(err error) error {
	w.batch.Seal()
	w.batch.Cancel()
	<-w.batch.Done()
	for _, r := range w.batch.Results() {
		if r.Err != nil && !errors.Is(r.Err, context.Canceled) {
			w.failed++
		}
	}
	return err
}

// path notes the transport of the last batch, which must be via if that is set.
func (w *worker) path(via string) error {
	for i, r := range w.batch.Results() {
		if via != "" && r.Transport != via {
			return errs.New(errs.Unsupported, "bench", "request %d went over %s and not over %s", i, orDash(r.Transport), via)
		}
		w.used = r.Transport
	}
	return nil
}

// single runs one batch of each worker, in turn, and returns the time taken.
func (c *crew) single(ctx context.Context) (time.Duration, error) {
	began := time.Now()
	for _, w := range c.workers {
		if err := errors.Join(w.once(ctx), w.path(c.via)); err != nil {
			return 0, err
		}
	}
	return time.Since(began), nil
}
