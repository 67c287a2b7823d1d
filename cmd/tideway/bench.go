package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// bench measures how fast requests move.
type bench struct {
	client
	ops      *listFlag[string]
	sizes    *listFlag[uint64]
	batches  *listFlag[int]
	threads  *listFlag[int]
	duration time.Duration
	verify   bool
	checksum choiceFlag
	target   place
}

func newBench(c *console) *cobra.Command {
	positive := func(s string) (int, error) {
		n, err := strconv.Atoi(s)
		if err == nil && (n < 1 || n > 1<<16) {
			err = fmt.Errorf("%d is not from 1 to 65536", n)
		}
		return n, err
	}
	b := &bench{
		client:   client{c: c},
		ops:      newChoices("ops", "read", "read", "write", "mix"),
		sizes:    newList("sizes", "1MiB", parseSize),
		batches:  newList("numbers", "16", positive),
		threads:  newList("numbers", "1", positive),
		checksum: choiceFlag{"on", []string{"on", "off"}},
	}
	cmd := &cobra.Command{
		Use:   "bench [ADDR[/NAME]]",
		Short: "Measure how fast requests move, here or to another process",
		Long: "Measure reads, writes or a mix of both. Without ADDR the target is a second process, started for this and\n" +
			"ended with it. With ADDR it is the buffer NAME, or the largest that may be read and written: its content\n" +
			"is overwritten. --op, --size, --batch and --threads take comma lists; each combination is a row.\n\n" +
			"Each thread keeps one batch in flight on ranges of its own. Latency is that of a batch, from its submission\n" +
			"to the end of its last request. CPU time is this process's, and the target's if it was started for this.\n" +
			"--verify moves a fresh pattern in each of several rounds onto poisoned ranges and reads the result through\n" +
			"another engine, outside the timed part.",
		Example: "  tideway bench --op read,write --size 4KiB,1MiB --threads 1,2 -o jsonl\n  tideway bench 127.0.0.1:7000 --verify",
		Args:    arguments(0, 1, "at most ADDR or ADDR/NAME"),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if len(args) == 1 {
				if b.target, err = b.names.segmentPlace(args[0]); err != nil {
					return err
				}
			}
			return b.run(cmd.Context())
		},
	}
	b.flags(cmd, "table", "json", "jsonl")
	f := cmd.Flags()
	f.Var(b.ops, "op", "read, write or mix")
	f.Var(b.sizes, "size", "bytes of a request")
	f.Var(b.batches, "batch", "requests in a batch")
	f.Var(b.threads, "threads", "goroutines that submit")
	f.DurationVar(&b.duration, "duration", 3*time.Second, "timed part of a row")
	f.BoolVar(&b.verify, "verify", false, "check every byte at the end of each round")
	f.Var(&b.checksum, "checksum", "payload checksums on the wire")
	return cmd
}

// point is one combination to measure.
type point struct {
	op      string
	size    uint64
	batch   int
	threads int
}

// bytes is the memory that a point needs at each end.
func (p point) bytes() uint64 { return p.size * uint64(p.batch) * uint64(p.threads) }

// points returns every combination, in the order of the flags.
func (b *bench) points() []point {
	var out []point
	for _, op := range b.ops.values {
		for _, size := range b.sizes.values {
			for _, batch := range b.batches.values {
				for _, threads := range b.threads.values {
					out = append(out, point{op, size, batch, threads})
				}
			}
		}
	}
	return out
}

// benchRow is one measured point. Names and units are fixed: scripts read them.
type benchRow struct {
	Op        string  `json:"op"`
	Size      uint64  `json:"size"`
	Batch     int     `json:"batch"`
	Threads   int     `json:"threads"`
	Transport string  `json:"transport"`
	Bytes     float64 `json:"bytes_per_second"`
	Requests  float64 `json:"requests_per_second"`
	Latency   latency `json:"latency_us"`
	CPU       float64 `json:"cpu_seconds_per_gib"`
	Verified  bool    `json:"verified"`
	Errors    uint64  `json:"errors"`
}

// latency are quantiles of a batch's time in microseconds.
type latency struct {
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p999"`
	Max  float64 `json:"max"`
}

func latencyOf(h *histogram) latency {
	us := func(q float64) float64 { return float64(h.quantile(q)) / 1000 }
	return latency{us(0.5), us(0.9), us(0.99), us(0.999), float64(h.most) / 1000}
}

func (b *bench) check() error {
	if b.duration <= 0 {
		return usagef("--duration must be above zero")
	}
	for _, p := range b.points() {
		if p.size == 0 || p.size > 1<<46 {
			return usagef("--size %s: want 1 B to 64 TiB", formatSize(p.size))
		}
	}
	return nil
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
		return 0, usagef("size × batch × threads is %s at each end, and %s of memory are available", formatSize(need), formatSize(free))
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
	r, err := openRig(ctx, &b.client, b.target, need, b.checksum.value == "on")
	if err != nil {
		return err
	}
	defer r.Close()
	out := &benchPrinter{c: b.c, format: b.output.value}
	for _, p := range b.points() {
		row, err := b.measure(ctx, r, p)
		if row != nil {
			err = errors.Join(err, out.row(row))
		}
		if err != nil {
			return errors.Join(err, out.end())
		}
	}
	return out.end()
}

// verifyRounds is how many rounds share the duration of a verified row.
const verifyRounds = 3

// measure returns the row of one point, also with an error where some of it was
// measured.
func (b *bench) measure(ctx context.Context, r *rig, p point) (*benchRow, error) {
	c, err := newCrew(r, p, b.transport)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	rounds := 1
	if b.verify {
		rounds = verifyRounds
	}
	var total tally
	for range rounds {
		if err = c.prepare(ctx); err != nil {
			break
		}
		t, terr := c.timed(ctx, func(w *worker) bool { return time.Since(w.began) < b.duration/time.Duration(rounds) })
		total.add(t)
		if err = terr; err == nil && b.verify {
			err = c.verify(ctx)
		}
		if err != nil {
			break
		}
	}
	if total.requests+total.failed == 0 {
		return nil, err
	}
	row := total.row(p, c)
	row.Verified = b.verify && err == nil
	return row, err
}

// benchPrinter prints rows as they come; json is one array, ended by end.
type benchPrinter struct {
	c      *console
	format string
	rows   []*benchRow
}

func (p *benchPrinter) row(r *benchRow) error {
	p.rows = append(p.rows, r)
	switch p.format {
	case "json":
		return nil
	case "jsonl":
		return json.NewEncoder(p.c.out).Encode(r)
	}
	const form = "%-6s %9s %6s %8s %-10s %12s %12s %10s %10s %10s %9s %9s %7s\n"
	if len(p.rows) == 1 {
		fmt.Fprintf(p.c.out, form, "OP", "SIZE", "BATCH", "THREADS", "TRANSPORT", "RATE", "REQ/S", "P50", "P99", "MAX", "CPU-S/GIB", "VERIFIED", "ERRORS")
	}
	_, err := fmt.Fprintf(p.c.out, form, r.Op, strings.ReplaceAll(formatSize(r.Size), " ", ""), strconv.Itoa(r.Batch), strconv.Itoa(r.Threads),
		orDash(r.Transport), formatRate(r.Bytes), strconv.FormatFloat(r.Requests, 'f', 0, 64), formatMicros(r.Latency.P50),
		formatMicros(r.Latency.P99), formatMicros(r.Latency.Max), strconv.FormatFloat(r.CPU, 'f', 3, 64),
		strconv.FormatBool(r.Verified), strconv.FormatUint(r.Errors, 10))
	return err
}

func (p *benchPrinter) end() error {
	if p.format != "json" {
		return nil
	}
	if p.rows == nil {
		p.rows = []*benchRow{}
	}
	return printJSON(p.c.out, p.rows)
}
