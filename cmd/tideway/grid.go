package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	"github.com/tideway-io/tideway"
)

// grid are the flags that take lists: the values to combine.
type grid struct {
	ops        *listFlag[string]
	sizes      *listFlag[uint64]
	batches    *listFlag[int]
	threads    *listFlag[int]
	priorities *listFlag[string]
	lanes      *listFlag[int]
	checksums  *listFlag[string]
}

func (s *grid) flags(f *pflag.FlagSet) {
	s.ops = newList("ops", "read", parseMix)
	s.ops.of = []string{"read", "write", "mix", "mix:90"}
	s.sizes = newList("sizes", "1MiB", parseSize)
	s.batches = newList("numbers", "16", numbers(1, 1<<16))
	s.threads = newList("numbers", "1", numbers(1, 1<<16))
	s.priorities = newList("priorities", "normal", parsePriorities)
	s.priorities.of = priorityNames()
	s.lanes = newList("numbers", "0", numbers(0, 16))
	s.checksums = newChoices("on|off", "on", "on", "off")
	f.Var(s.ops, "op", "read, write, mix (half of each) or mix:READS, with the percentage of reads")
	f.Var(s.sizes, "size", "bytes of a request")
	f.Var(s.batches, "batch", "requests in a batch")
	f.Var(s.threads, "threads", "goroutines that submit")
	f.Var(s.priorities, "priority", "urgent, normal or bulk, or several at once as in urgent+bulk")
	f.Var(s.lanes, "lanes", "bulk connections to the target, 0 for the engine's own choice")
	f.Var(s.checksums, "checksum", "payload checksums on the wire")
}

// tuning is how an engine is set up; zero is its defaults.
type tuning struct {
	lanes int
	plain bool // no checksums
}

// tunings returns the combinations that need engines of their own.
func (s *grid) tunings() []tuning {
	var out []tuning
	for _, lanes := range s.lanes.values {
		for _, sum := range s.checksums.values {
			out = append(out, tuning{lanes, sum == "off"})
		}
	}
	return out
}

// points returns every combination for one engine, in the order of the flags.
func (s *grid) points() []point {
	var out []point
	for _, op := range s.ops.values {
		for _, size := range s.sizes.values {
			for _, batch := range s.batches.values {
				for _, threads := range s.threads.values {
					for _, priority := range s.priorities.values {
						out = append(out, point{op: op, size: size, batch: batch, threads: threads, priority: priority})
					}
				}
			}
		}
	}
	return out
}

// point is one combination to measure.
type point struct {
	op       string
	size     uint64
	batch    int
	threads  int
	priority string // of the threads in turn, joined by +
	span     uint64 // bytes that a thread walks over, at least
}

// reads returns the percentage of requests that read.
func (p point) reads() int {
	if percent, ok := strings.CutPrefix(p.op, "mix:"); ok {
		n, _ := strconv.Atoi(percent) // parseMix has seen it
		return n
	}
	return map[string]int{"read": 100, "mix": 50}[p.op]
}

// turns is how many batches a thread has ranges for. A mix needs enough of them
// for its shares to be right to a twentieth.
func (p point) turns() int {
	batch := p.size * uint64(p.batch)
	n := max(1, int(p.span/batch))
	if reads := p.reads(); reads > 0 && reads < 100 {
		const shares = 20
		n = max(n, (shares+p.batch-1)/p.batch)
	}
	return n
}

// stretch is the memory that a thread needs at each end.
func (p point) stretch() uint64 { return p.size * uint64(p.batch) * uint64(p.turns()) }

// bytes is the memory that a point needs at each end.
func (p point) bytes() uint64 { return p.stretch() * uint64(p.threads) }

// classes are the priorities that run at the same time, at least one.
func (p point) classes() []string { return strings.Split(p.priority, "+") }

// parseMix reads read, write, mix or mix:READS.
func parseMix(s string) (string, error) {
	percent, ok := strings.CutPrefix(s, "mix:")
	if !ok {
		return choose(s, []string{"read", "write", "mix"})
	}
	_, err := numbers(1, 99)(percent)
	if err != nil {
		err = fmt.Errorf("%q: want mix:READS with a percentage: %w", s, err)
	}
	return s, err
}

// priorityNames are the words for priorities.
func priorityNames() []string { return []string{"urgent", "normal", "bulk"} }

// priorityOf returns the priority of a word; normal for none.
func priorityOf(word string) tideway.Priority {
	switch word {
	case "urgent":
		return tideway.Urgent
	case "bulk":
		return tideway.Bulk
	}
	return tideway.Normal
}

// parsePriorities reads one priority or several joined by +.
func parsePriorities(s string) (string, error) {
	words := strings.Split(s, "+")
	for i, w := range words {
		if _, err := choose(w, priorityNames()); err != nil {
			return "", err
		}
		if slices.Contains(words[:i], w) {
			return "", fmt.Errorf("%q has %s twice", s, w)
		}
	}
	return s, nil
}
