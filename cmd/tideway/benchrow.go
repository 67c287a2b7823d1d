package main

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// benchRow is what one measured point gave one class of requests. Names and
// units are fixed: scripts read them.
type benchRow struct {
	Op         string      `json:"op"`
	Size       uint64      `json:"size"`
	Batch      int         `json:"batch"`
	Threads    int         `json:"threads"`
	Span       uint64      `json:"span"`
	Priority   string      `json:"priority"`
	Priorities string      `json:"priorities"`
	Lanes      int         `json:"lanes"`
	Checksum   bool        `json:"checksum"`
	Repeat     int         `json:"repeat"`
	Transport  string      `json:"transport"`
	Bytes      float64     `json:"bytes_per_second"`
	Requests   float64     `json:"requests_per_second"`
	Latency    latency     `json:"latency_us"`
	CPU        cpuPerGiB   `json:"cpu_seconds_per_gib"`
	Verified   bool        `json:"verified"`
	Errors     uint64      `json:"errors"`
	Histogram  [][2]uint64 `json:"histogram_ns"`
}

// latency are quantiles of a batch's time in microseconds.
type latency struct {
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p999"`
	Max  float64 `json:"max"`
}

// cpuPerGiB is the CPU time of each end for a GiB moved by all classes together.
type cpuPerGiB struct {
	Own    float64  `json:"own"`
	Target *float64 `json:"target"` // null: this host cannot see it
}

// rowsOf returns a row for each class that did anything.
func rowsOf(c *crew, total []tally, cpu cpuTime, verified bool) []*benchRow {
	var all uint64
	for i := range total {
		all += total[i].bytes
	}
	p := c.point
	var rows []*benchRow
	for i, class := range p.classes() {
		if i >= len(total) || total[i].requests+total[i].failed == 0 {
			continue
		}
		t := &total[i]
		rows = append(rows, &benchRow{
			Op: p.op, Size: p.size, Batch: p.batch, Threads: p.threads, Span: p.stretch(), Priority: class, Priorities: p.priority,
			Transport: c.used(), Bytes: rate(t.bytes, t.elapsed), Requests: rate(t.requests, t.elapsed), Latency: latencyOf(&t.hist),
			CPU: cpu.per(all), Verified: verified, Errors: t.failed, Histogram: t.hist.coarse(),
		})
	}
	return rows
}

// column is one of the table's.
type column struct {
	head  string
	width int
	text  func(*benchRow) string
}

// columns returns those that say something about this sweep.
func columns(b *bench) []column {
	var out []column
	add := func(shown bool, head string, width int, text func(*benchRow) string) {
		if shown {
			out = append(out, column{head, width, text})
		}
	}
	add(true, "OP", -6, func(r *benchRow) string { return r.Op })
	add(true, "SIZE", 8, func(r *benchRow) string { return strings.ReplaceAll(formatSize(r.Size), " ", "") })
	add(true, "BATCH", 5, func(r *benchRow) string { return strconv.Itoa(r.Batch) })
	add(true, "THREADS", 7, func(r *benchRow) string { return strconv.Itoa(r.Threads) })
	add(b.priorities.text != "normal", "PRIORITY", -8, func(r *benchRow) string { return r.Priority })
	add(b.lanes.text != "0", "LANES", 5, func(r *benchRow) string { return strconv.Itoa(r.Lanes) })
	add(b.checksums.text != "on", "CHECKSUM", -8, func(r *benchRow) string { return onOff(r.Checksum) })
	add(true, "PATH", -6, func(r *benchRow) string { return orDash(r.Transport) })
	add(true, "RATE", 10, func(r *benchRow) string { return formatRate(r.Bytes) })
	add(true, "REQ/S", 9, func(r *benchRow) string { return strconv.FormatFloat(r.Requests, 'f', 0, 64) })
	add(true, "P50", 8, func(r *benchRow) string { return formatMicros(r.Latency.P50) })
	add(true, "P99", 8, func(r *benchRow) string { return formatMicros(r.Latency.P99) })
	add(true, "MAX", 8, func(r *benchRow) string { return formatMicros(r.Latency.Max) })
	add(true, "CPU-S/GIB", 12, func(r *benchRow) string { return r.CPU.String() })
	add(b.verify, "VERIFIED", 8, func(r *benchRow) string { return strconv.FormatBool(r.Verified) })
	add(true, "ERRORS", 6, func(r *benchRow) string { return strconv.FormatUint(r.Errors, 10) })
	return out
}

// String prints own and target.
func (c cpuPerGiB) String() string {
	if c.Target == nil {
		return fmt.Sprintf("%.2f + ?", c.Own)
	}
	return fmt.Sprintf("%.2f + %.2f", c.Own, *c.Target)
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// benchPrinter prints rows as they come; json is one array, ended by end.
type benchPrinter struct {
	c       *console
	format  string
	columns []column
	rows    []*benchRow
	n       int
}

func newBenchPrinter(b *bench) *benchPrinter {
	return &benchPrinter{c: b.c, format: b.output.value, columns: columns(b)}
}

func (p *benchPrinter) row(r *benchRow) error {
	p.n++
	switch p.format {
	case "json":
		p.rows = append(p.rows, r)
		return nil
	case "jsonl":
		return json.NewEncoder(p.c.out).Encode(r)
	}
	if p.n == 1 {
		if err := p.line(func(c *column) string { return c.head }); err != nil {
			return err
		}
	}
	return p.line(func(c *column) string { return c.text(r) })
}

func (p *benchPrinter) line(cell func(*column) string) error {
	var b strings.Builder
	for i := range p.columns {
		c := &p.columns[i]
		fmt.Fprintf(&b, "%*s  ", c.width, cell(c))
	}
	_, err := fmt.Fprintln(p.c.out, strings.TrimRight(b.String(), " "))
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
