package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"
)

// bench measures how fast requests move.
type bench struct {
	client
	grid
	span     sizeFlag
	repeat   int
	duration time.Duration
	warmup   time.Duration
	verify   bool
	target   place
}

func newBench(c *console) *cobra.Command {
	b := &bench{client: client{c: c}}
	cmd := &cobra.Command{
		Use:   "bench [ADDR[/NAME]]",
		Short: "Measure how fast requests move, here or to another process",
		Long: "Measure reads, writes or a mix of both. Without ADDR the target is a second process, started for this and\n" +
			"ended with it. With ADDR it is the buffer NAME, or the largest that may be read and written: its content\n" +
			"is overwritten. Flags that take lists are swept; each combination is a row.\n\n" +
			"Each thread keeps one batch in flight on ranges of its own. Latency is that of a batch, from its submission\n" +
			"to the end of its last request. --verify moves a fresh pattern in each of several rounds onto poisoned\n" +
			"ranges and reads the result through another engine, outside the timed part. Priorities joined by + run at\n" +
			"the same time, on threads in turn, and have a row each.",
		Example: "  tideway bench --op read,write --size 4KiB,1MiB --threads 1,2 -o jsonl\n" +
			"  tideway bench --repeat 5 -o jsonl > new; tideway bench compare old new --worse 5\n" +
			"  tideway bench 127.0.0.1:7000 --verify",
		Args: arguments(0, 1, "at most ADDR or ADDR/NAME"),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if len(args) == 1 {
				if b.target, err = b.names.segmentPlace(args[0]); err != nil {
					return err
				}
			}
			return b.run(cmd.Context())
		},
	}
	b.client.flags(cmd, "table", "json", "jsonl")
	f := cmd.Flags()
	b.grid.flags(f)
	f.Var(&b.span, "span", "bytes that a thread walks over (default one batch)")
	f.IntVar(&b.repeat, "repeat", 1, "measure the whole sweep so often")
	f.DurationVar(&b.duration, "duration", 3*time.Second, "timed part of a row")
	f.DurationVar(&b.warmup, "warmup", 100*time.Millisecond, "run so long before the timed part")
	f.BoolVar(&b.verify, "verify", false, "check every byte at the end of each round")
	cmd.AddCommand(newCompare(c))
	return cmd
}

// maxRepeat bounds the repetitions of a sweep.
const maxRepeat = 1000

func (b *bench) check() error {
	if b.duration <= 0 || b.warmup < 0 {
		return usagef("--duration must be above zero, and --warmup not below it")
	}
	if b.repeat < 1 || b.repeat > maxRepeat {
		return usagef("--repeat %d is not from 1 to %d", b.repeat, maxRepeat)
	}
	for _, p := range b.points() {
		if p.size == 0 || p.size > 1<<46 {
			return usagef("--size %s: want 1 B to 64 TiB", formatSize(p.size))
		}
		if n := len(p.classes()); n > p.threads {
			return usagef("--priority %s needs --threads %d or more", p.priority, n)
		}
		if uint64(b.span) > 1<<46 || uint64(b.span)/p.size > 1<<20 {
			return usagef("--span %s: want at most 64 TiB, and at most 2^20 requests of %s", &b.span, formatSize(p.size))
		}
	}
	return nil
}

// points are the combinations to measure with one tuning.
func (b *bench) points() []point {
	points := b.grid.points()
	for i := range points {
		points[i].span = uint64(b.span)
	}
	return points
}

// need returns the memory that the largest point needs at each end, refusing
// what this host does not have.
func (b *bench) need() (uint64, error) {
	var need uint64
	for _, p := range b.points() {
		need = max(need, p.bytes())
	}
	ends := uint64(2)
	if b.target.addr != "" {
		ends = 1
	}
	if free, err := memoryAvailable(); err == nil && need > free/ends {
		return 0, usagef("size × batch × threads, or span × threads, is %s at each end, and %s of memory are available", formatSize(need), formatSize(free))
	}
	return need, nil
}

func (b *bench) run(ctx context.Context) error {
	if err := b.check(); err != nil {
		return err
	}
	need, err := b.need()
	if err != nil {
		return err
	}
	out := newBenchPrinter(b)
	for i := range b.repeat {
		for _, t := range b.tunings() {
			if err := b.tuned(ctx, t, need, func(r *benchRow) error { r.Repeat = i + 1; return out.row(r) }); err != nil {
				return errors.Join(err, out.end())
			}
		}
	}
	return out.end()
}

// tuned measures every point with one tuning.
func (b *bench) tuned(ctx context.Context, t tuning, need uint64, emit func(*benchRow) error) error {
	r, err := openRig(ctx, &b.client, b.target, need, t)
	if err != nil {
		return err
	}
	defer r.Close()
	for _, p := range b.points() {
		rows, err := b.measure(ctx, r, p)
		for _, row := range rows {
			row.Lanes, row.Checksum = t.lanes, !t.plain
			err = errors.Join(err, emit(row))
		}
		if err != nil {
			return r.blame(err)
		}
	}
	return nil
}

// verifyRounds is how many rounds share the duration of a verified row.
const verifyRounds = 3

// measure returns the rows of one point, one for each class, also with an error
// where some of it was measured.
func (b *bench) measure(ctx context.Context, r *rig, p point) ([]*benchRow, error) {
	c, err := newCrew(r, p, b.transport)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if err := c.warm(ctx, b.warmup); err != nil {
		return nil, err
	}
	rounds := 1
	if b.verify {
		rounds = verifyRounds
	}
	var total []tally
	var cpu cpuTime
	for range rounds {
		if err = c.prepare(ctx); err != nil {
			break
		}
		t, used, terr := c.timed(ctx, b.verify, func(w *worker) bool { return time.Since(w.began) < b.duration/time.Duration(rounds) })
		if total == nil {
			total = make([]tally, len(t))
		}
		for i := range t {
			total[i].add(&t[i])
		}
		cpu = cpu.add(used)
		if err = terr; err == nil && b.verify {
			err = c.verify(ctx)
		}
		if err != nil {
			break
		}
	}
	return rowsOf(c, total, cpu, b.verify && err == nil), err
}

// latencyOf returns the quantiles of a histogram.
func latencyOf(h *histogram) latency {
	us := func(q float64) float64 { return micros(h.quantile(q)) }
	return latency{us(0.5), us(0.9), us(0.99), us(0.999), micros(time.Duration(h.most))}
}

// micros returns microseconds, to the nanosecond.
func micros(d time.Duration) float64 { return float64(d) / 1000 }

// numbers returns a parser of numbers from least to most.
func numbers(least, most int) func(string) (int, error) {
	return func(s string) (int, error) {
		n, err := strconv.Atoi(s)
		if err == nil && (n < least || n > most) {
			err = fmt.Errorf("%d is not from %d to %d", n, least, most)
		}
		return n, err
	}
}
