// Command bench measures the standard set of docs/performance.md: each row of it
// in turns with its limit, the fastest that a plain program gets out of the same
// machine, five times, and writes the medians between the markers of that page.
// It is what `make bench` calls.
//
//	bench [-rows REGEXP] [-times N] [-write]
//
// Results are kept in bin/bench, a file for each row, so that rows can be
// measured one by one; -write makes the tables of all that are there.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"time"
)

const (
	results = "bin/bench"
	command = "bin/tideway"
	page    = "docs/performance.md"
)

func main() {
	if len(os.Args) == 3 && os.Args[1] == helperFlag {
		if err := help(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	names := flag.String("rows", "", "measure only rows whose name matches this")
	times := flag.Int("times", 5, "measure each row and its limit so often")
	write := flag.Bool("write", false, "write the tables into "+page+" when done")
	flag.Parse()
	match, err := regexp.Compile(*names)
	if err != nil {
		return err
	}
	if *times < 1 || *times > 100 {
		return fmt.Errorf("-times %d: want 1 to 100", *times)
	}
	if err := os.MkdirAll(results, 0o755); err != nil {
		return err
	}
	var failed error
	for _, r := range rows() {
		if !match.MatchString(r.name) || ctx.Err() != nil {
			continue
		}
		m, err := measure(ctx, r, *times)
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", r.name, err))
			continue
		}
		fmt.Println(m.summary(r))
		if err := save(m); err != nil {
			return err
		}
	}
	if *write {
		failed = errors.Join(failed, writePage())
	}
	return errors.Join(failed, ctx.Err())
}

// measured is what a row gave: medians of ours and of its limit.
type measured struct {
	Name  string
	Rate  float64 // bytes a second
	Reqs  float64 // requests a second
	P50   float64 // microseconds
	P99   float64
	CPU   float64 // seconds a GiB, both ends
	Limit float64 // in the unit of the row; 0 without one
	Low   float64 // least and most of the ratios of the turns
	High  float64
	When  time.Time
}

// sample is one turn of tideway bench.
type sample struct {
	Rate    float64 `json:"bytes_per_second"`
	Reqs    float64 `json:"requests_per_second"`
	Latency struct {
		P50 float64 `json:"p50"`
		P99 float64 `json:"p99"`
	} `json:"latency_us"`
	CPU struct {
		Own    float64 `json:"own"`
		Target float64 `json:"target"`
	} `json:"cpu_seconds_per_gib"`
}

// measure takes turns: the limit, ours, the limit, ours.
func measure(ctx context.Context, r row, times int) (*measured, error) {
	limit, end, err := r.limit.start(ctx, r)
	if err != nil {
		return nil, err
	}
	defer end()
	args, endOurs, err := r.arguments(ctx)
	if err != nil {
		return nil, err
	}
	defer endOurs()
	var samples []sample
	var limits, ratios []float64
	for range times {
		l, err := limit()
		if err != nil {
			return nil, fmt.Errorf("limit %s: %w", r.limit.name, err)
		}
		s, err := tideway(ctx, args)
		if err != nil {
			return nil, err
		}
		samples, limits = append(samples, s), append(limits, l)
		ratios = append(ratios, r.ratio(r.value(s), l))
	}
	of := func(f func(sample) float64) float64 {
		var v []float64
		for _, s := range samples {
			v = append(v, f(s))
		}
		return median(v)
	}
	return &measured{
		Name: r.name, Limit: median(limits), Low: slices.Min(ratios), High: slices.Max(ratios), When: time.Now().UTC(),
		Rate: of(func(s sample) float64 { return s.Rate }), Reqs: of(func(s sample) float64 { return s.Reqs }),
		P50: of(func(s sample) float64 { return s.Latency.P50 }), P99: of(func(s sample) float64 { return s.Latency.P99 }),
		CPU: of(func(s sample) float64 { return s.CPU.Own + s.CPU.Target }),
	}, nil
}

// median returns the middle of the values.
func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}

func save(m *measured) error {
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(results, m.Name+".json"), text, 0o644)
}

// load returns the result of a row, nil if it was not measured.
func load(name string) (*measured, error) {
	text, err := os.ReadFile(filepath.Join(results, name+".json"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	m := &measured{}
	if err == nil {
		err = json.Unmarshal(text, m)
	}
	return m, err
}
