package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"strconv"
)

// row is one line of the standard set.
type row struct {
	name    string
	via     string // transport
	op      string
	size    int
	batch   int
	threads int
	latency bool // compared by its median latency, otherwise by its rate
	file    bool // the target is a file
	limit   limit
}

// The duration of one turn of either side.
const turn = "500ms"

// span is the memory that a thread walks over where the table is about memory
// that is not in a cache.
const span = 64 << 20

// rows returns the standard set.
func rows() []row {
	var out []row
	for _, op := range []string{"write", "read"} {
		for _, via := range []string{"tcp", "shm"} {
			stream, trip := iperf(), pingpong()
			if via == "shm" {
				stream, trip = copying(), noLimit()
			}
			out = append(out,
				row{via: via, op: op, size: 4 << 10, batch: 1, threads: 1, latency: true, limit: trip},
				row{via: via, op: op, size: 4 << 10, batch: 128, threads: 1, limit: stream},
				row{via: via, op: op, size: 64 << 10, batch: 1, threads: 1, limit: noLimit()},
				row{via: via, op: op, size: 64 << 10, batch: 16, threads: 1, limit: stream},
				row{via: via, op: op, size: 1 << 20, batch: 1, threads: 1, limit: noLimit()},
				row{via: via, op: op, size: 1 << 20, batch: 8, threads: 1, limit: stream},
				row{via: via, op: op, size: 16 << 20, batch: 1, threads: 1, limit: stream},
			)
		}
		for _, size := range []int{4 << 10, 64 << 10, 1 << 20, 16 << 20} {
			out = append(out, row{via: "tcp", op: op, size: size, batch: 1, threads: 8, limit: noLimit()})
		}
		out = append(out,
			row{via: "memory", op: op, size: 1 << 20, batch: 8, threads: 1, limit: copying()},
			row{via: "tcp", op: op, size: 1 << 20, batch: 8, threads: 1, file: true, limit: fio()},
		)
	}
	out = append(out, row{via: "shm", op: "read", size: 1 << 20, batch: 4, threads: 1, limit: attach()})
	for i := range out {
		out[i].name = out[i].title()
	}
	return out
}

// title names a row: via-op-size-batch-threads.
func (r row) title() string {
	via := r.via
	if r.file {
		via += "-file"
	}
	return fmt.Sprintf("%s-%s-%s-b%d-t%d", via, r.op, sizeName(r.size), r.batch, r.threads)
}

func sizeName(n int) string {
	if n >= 1<<20 {
		return strconv.Itoa(n>>20) + "m"
	}
	return strconv.Itoa(n>>10) + "k"
}

// arguments returns those of tideway bench, with a target started first where it
// is not the bench's own.
func (r row) arguments(ctx context.Context) ([]string, func(), error) {
	args := []string{"bench", "--transport", r.via, "--op", r.op, "--size", strconv.Itoa(r.size), "--batch", strconv.Itoa(r.batch),
		"--threads", strconv.Itoa(r.threads), "--span", strconv.Itoa(r.walk()), "--duration", turn, "-o", "jsonl"}
	if !r.file {
		return args, func() {}, nil
	}
	addr, end, err := serveFile(ctx)
	return append(args, addr+"/bench"), end, err
}

// walk is what each thread walks over: the span in all, less with requests so
// small that filling it would take longer than measuring.
func (r row) walk() int {
	if r.size < 64<<10 {
		return span / 16 / r.threads
	}
	return span / r.threads
}

// tideway runs the command once and returns the one row that it prints.
func tideway(ctx context.Context, args []string) (sample, error) {
	var s sample
	cmd := exec.CommandContext(ctx, command, args...)
	out, err := cmd.Output()
	if err != nil {
		return s, fmt.Errorf("%v: %w", cmd.Args, withOutput(err))
	}
	return s, json.Unmarshal(out, &s)
}

// value is what is compared with the limit.
func (r row) value(s sample) float64 {
	if r.latency {
		return s.Latency.P50
	}
	return s.Rate
}

// ratio is how much of the limit was reached: below 1 is slower.
func (r row) ratio(ours, limit float64) float64 {
	if r.latency {
		ours, limit = limit, ours
	}
	if limit == 0 {
		return 0
	}
	return ours / limit
}
