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
// the i-th stretch of the remote buffer, in which request j of its batch owns
// the j-th piece.
type crew struct {
	rig     *rig
	point   point
	workers []*worker
	via     string
	round   uint64
	key     pattern
}

// worker submits one batch after the other.
type worker struct {
	local *tideway.Buffer
	base  uint64 // of its stretch in the remote buffer
	batch *tideway.Batch
	reqs  []tideway.Request
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
	cpu      time.Duration
	hist     histogram
}

// add counts what o measured after t.
func (t *tally) add(o *tally) {
	t.batches += o.batches
	t.bytes += o.bytes
	t.requests += o.requests
	t.failed += o.failed
	t.elapsed += o.elapsed
	t.cpu += o.cpu
	t.hist.merge(&o.hist)
}

func (t *tally) row(p point, c *crew) *benchRow {
	row := &benchRow{Op: p.op, Size: p.size, Batch: p.batch, Threads: p.threads, Transport: c.used(), Latency: latencyOf(&t.hist), Errors: t.failed}
	row.Bytes, row.Requests = rate(t.bytes, t.elapsed), rate(t.requests, t.elapsed)
	if t.bytes > 0 {
		row.CPU = t.cpu.Seconds() / (float64(t.bytes) / (1 << 30))
	}
	return row
}

// newCrew makes the workers of a point.
func newCrew(r *rig, p point, via string) (*crew, error) {
	if p.bytes() > r.remote.Len() {
		return nil, fits(r.remote, 0, p.bytes())
	}
	c := &crew{rig: r, point: p, via: via}
	for i := range p.threads {
		w, err := c.worker(uint64(i) * p.size * uint64(p.batch))
		if err != nil {
			c.Close()
			return nil, err
		}
		c.workers = append(c.workers, w)
	}
	return c, nil
}

func (c *crew) worker(base uint64) (*worker, error) {
	local, err := c.rig.engine.Alloc(c.point.size*uint64(c.point.batch), tideway.BufferOptions{})
	if err != nil {
		return nil, err
	}
	w := &worker{local: local, base: base, batch: c.rig.engine.NewBatch()}
	for j := range c.point.batch {
		at := uint64(j) * c.point.size
		w.reqs = append(w.reqs, tideway.Request{
			Op: c.op(j), Local: local.Range(at, c.point.size), Remote: c.rig.remote.At(base + at), Transport: c.via,
		})
	}
	return w, nil
}

// op is what request j of a batch does: in a mix, every other one writes.
func (c *crew) op(j int) tideway.Op {
	if c.point.op == "write" || c.point.op == "mix" && j%2 == 1 {
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
	return c.eachPiece(func(w *worker, j int, local []byte, at uint64) error {
		far := c.rig.scratch(len(local))
		if c.op(j) == tideway.Write {
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
	return c.eachPiece(func(w *worker, j int, local []byte, at uint64) error {
		got := local
		if c.op(j) == tideway.Write {
			got = c.rig.scratch(len(local))
			if _, err := c.rig.second.ReadAt(ctx, got, at); err != nil && !errors.Is(err, io.EOF) {
				return err
			}
		}
		if i := c.key.mismatch(got, at); i >= 0 {
			return errs.New(errs.Checksum, "verify "+c.op(j).String(), "round %d: byte %d of the buffer is %#02x, which is wrong", c.round, at+uint64(i), got[i])
		}
		return nil
	})
}

// eachPiece calls f for every stretch of memory, at most a slot long, that the
// requests cover, with its place in the remote buffer.
func (c *crew) eachPiece(f func(w *worker, j int, local []byte, at uint64) error) error {
	size := c.point.size
	for _, w := range c.workers {
		for j := range c.point.batch {
			start := uint64(j) * size
			for off := uint64(0); off < size; off += slotSize {
				n := min(slotSize, size-off)
				if err := f(w, j, w.local.Bytes()[start+off:start+off+n], w.base+start+off); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// timed runs every worker until more says no, after one batch each to warm up.
func (c *crew) timed(ctx context.Context, more func(*worker) bool) (*tally, error) {
	for _, w := range c.workers {
		w.tally = tally{}
		if err := w.once(ctx); err != nil {
			return &w.tally, err
		}
		if err := w.path(c.via); err != nil {
			return &w.tally, err
		}
		w.tally = tally{}
	}
	cpu, err := c.rig.cpu()
	if err != nil {
		return &tally{}, err
	}
	failed := make([]error, len(c.workers))
	began := time.Now()
	var all sync.WaitGroup
	for i, w := range c.workers {
		w.began = began
		all.Go(func() { failed[i] = w.loop(ctx, more) })
	}
	all.Wait()
	total := &tally{elapsed: time.Since(began)}
	for i, w := range c.workers {
		total.add(&w.tally)
		if failed[i] == nil {
			failed[i] = w.path(c.via)
		}
	}
	after, err := c.rig.cpu()
	total.cpu = after - cpu
	return total, errors.Join(append(failed, err)...)
}

// loop runs batches until more says no or one fails. It allocates nothing.
func (w *worker) loop(ctx context.Context, more func(*worker) bool) error {
	for {
		if err := w.once(ctx); err != nil {
			return err
		}
		if !more(w) {
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
	start := time.Now()
	err := context.Cause(ctx) // a batch that never waits would not see it
	if err == nil {
		err = w.batch.Add(ctx, w.reqs...)
	}
	if err == nil {
		err = w.batch.Wait(ctx)
	}
	if err != nil {
		return w.abandon(err)
	}
	w.hist.add(time.Since(start))
	w.batches++
	w.requests += uint64(len(w.reqs))
	w.bytes += uint64(len(w.reqs)) * w.reqs[0].Local.Len()
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
