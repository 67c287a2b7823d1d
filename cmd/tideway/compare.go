package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
)

// compare tells whether one measurement is faster than another.
type compare struct {
	c       *console
	output  choiceFlag
	metrics *listFlag[string]
	worse   float64
	gate    bool
}

func newCompare(c *console) *cobra.Command {
	b := &compare{
		c: c, output: choiceFlag{"table", []string{"table", "json"}},
		metrics: newChoices("metrics", "rate,p50,p99", "rate", "p50", "p99", "p999", "cpu"),
	}
	cmd := &cobra.Command{
		Use:   "compare A.jsonl B.jsonl",
		Short: "Compare two measurements of bench -o jsonl",
		Long: "Compare B with A, row by row: medians, spread (half the distance between the quartiles, in per cent of the\n" +
			"median), their ratio B/A, and p, the probability of a difference like this if there is none (Mann-Whitney,\n" +
			"exact, two-sided). Rows belong together when all agree in which either file has several values.\n" +
			"With --worse N the exit code is 11 if any metric is worse by more than N per cent and p is under 0.05,\n" +
			"which takes --repeat 4 or more.",
		Example: "  tideway bench --repeat 5 -o jsonl > a; tideway bench --repeat 5 -o jsonl --lanes 2 > b\n  tideway bench compare a b --worse 5",
		Args:    arguments(2, 2, "two files of bench -o jsonl"),
		RunE: func(cmd *cobra.Command, args []string) error {
			b.gate = cmd.Flags().Changed("worse")
			return b.run(args[0], args[1])
		},
	}
	f := cmd.Flags()
	f.VarP(&b.output, "output", "o", "how to print the result")
	f.Var(b.metrics, "metric", "rate, p50, p99, p999 or cpu")
	f.Float64Var(&b.worse, "worse", 0, "fail when B is worse by more than so many per cent")
	return cmd
}

// significant is the p below which a difference counts.
const significant = 0.05

// errSlower is what --worse found.
var errSlower = errors.New("slower")

// comparison is one metric of one row in both files.
type comparison struct {
	Row     string  `json:"row"`
	Metric  string  `json:"metric"`
	A       sample  `json:"a"`
	B       sample  `json:"b"`
	Ratio   float64 `json:"ratio"` // B/A
	P       float64 `json:"p"`
	Verdict string  `json:"verdict"` // better, worse or same
}

// sample is what the repetitions of a row gave.
type sample struct {
	N      int     `json:"n"`
	Median float64 `json:"median"`
	Spread float64 `json:"spread"` // half the distance of the quartiles over the median
	values []float64
}

func (b *compare) run(nameA, nameB string) error {
	if b.worse < 0 {
		return usagef("--worse %v: want a percentage that is not below zero", b.worse)
	}
	rowsA, err := readRows(nameA)
	if err != nil {
		return err
	}
	rowsB, err := readRows(nameB)
	if err != nil {
		return err
	}
	found, err := b.pairs(rowsA, rowsB)
	if err != nil {
		return err
	}
	if err := b.print(found, facts(rowsA, rowsB)); err != nil {
		return err
	}
	return b.verdict(found)
}

// maxSamples bounds the repetitions of one row, as the exact test costs the
// fourth power of them.
const maxSamples = 50

// readRows reads what bench printed.
func readRows(name string) ([]*benchRow, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	const maxRows = 100_000
	var rows []*benchRow
	in := json.NewDecoder(bufio.NewReader(f))
	for len(rows) < maxRows {
		r := &benchRow{}
		err := in.Decode(r)
		if errors.Is(err, io.EOF) && len(rows) > 0 {
			return rows, nil
		}
		if err == nil && r.Op == "" {
			err = errors.New("it has no member op")
		}
		if err != nil {
			return nil, usagef("%s: object %d: %v; want what tideway bench -o jsonl prints", name, len(rows)+1, err)
		}
		rows = append(rows, r)
	}
	return nil, usagef("%s has more than %d rows", name, maxRows)
}

// trait is one of the things by which rows are told apart.
type trait struct {
	name string
	of   func(*benchRow) string
}

func traits() []trait {
	return []trait{
		{"op", func(r *benchRow) string { return r.Op }},
		{"size", func(r *benchRow) string { return strings.ReplaceAll(formatSize(r.Size), " ", "") }},
		{"batch", func(r *benchRow) string { return strconv.Itoa(r.Batch) }},
		{"threads", func(r *benchRow) string { return strconv.Itoa(r.Threads) }},
		{"span", func(r *benchRow) string { return strings.ReplaceAll(formatSize(r.Span), " ", "") }},
		{"priority", func(r *benchRow) string { return r.Priority }},
		{"priorities", func(r *benchRow) string { return r.Priorities }},
		{"lanes", func(r *benchRow) string { return strconv.Itoa(r.Lanes) }},
		{"checksum", func(r *benchRow) string { return onOff(r.Checksum) }},
		{"transport", func(r *benchRow) string { return r.Transport }},
	}
}

// values returns the different values of a trait.
func (t trait) values(rows []*benchRow) []string {
	var out []string
	for _, r := range rows {
		if v := t.of(r); !slices.Contains(out, v) {
			out = append(out, v)
		}
	}
	return out
}

// keyTraits are those that have several values in either file.
func keyTraits(a, b []*benchRow) []trait {
	return slices.DeleteFunc(traits(), func(t trait) bool { return len(t.values(a)) == 1 && len(t.values(b)) == 1 })
}

// facts says in which traits the files as a whole differ.
func facts(a, b []*benchRow) string {
	var out []string
	for _, t := range traits() {
		if va, vb := t.values(a), t.values(b); len(va) == 1 && len(vb) == 1 && va[0] != vb[0] {
			out = append(out, fmt.Sprintf("%s: A %s, B %s", t.name, orDash(va[0]), orDash(vb[0])))
		}
	}
	return strings.Join(out, "; ")
}

// group gathers rows under their key, in the order in which keys appear.
func group(rows []*benchRow, by []trait) (keys []string, out map[string][]*benchRow) {
	out = map[string][]*benchRow{}
	for _, r := range rows {
		var parts []string
		for _, t := range by {
			parts = append(parts, t.name+"="+t.of(r))
		}
		key := strings.Join(parts, " ")
		if out[key] == nil {
			keys = append(keys, key)
		}
		out[key] = append(out[key], r)
	}
	return keys, out
}

// pairs compares every row that both files have. Rows of only one are an error.
func (b *compare) pairs(rowsA, rowsB []*benchRow) ([]comparison, error) {
	by := keyTraits(rowsA, rowsB)
	keys, as := group(rowsA, by)
	keysB, bs := group(rowsB, by)
	for _, key := range append(slices.Clone(keys), keysB...) {
		if as[key] == nil || bs[key] == nil {
			return nil, usagef("only one of the files has a row %s", orDash(key))
		}
		if n := max(len(as[key]), len(bs[key])); n > maxSamples {
			return nil, usagef("row %s was measured %d times; at most %d can be compared", orDash(key), n, maxSamples)
		}
	}
	var out []comparison
	for _, key := range keys {
		for _, metric := range b.metrics.values {
			c := comparison{Row: key, Metric: metric, A: sampleOf(as[key], metric), B: sampleOf(bs[key], metric)}
			if b.gate && !canTell(c.A.N, c.B.N) {
				return nil, usagef("row %s: --worse needs more repetitions than %d and %d", orDash(key), c.A.N, c.B.N)
			}
			c.judge()
			out = append(out, c)
		}
	}
	return out, nil
}

// metricOf returns a row's value of a metric.
func metricOf(r *benchRow, metric string) float64 {
	switch metric {
	case "rate":
		return r.Bytes
	case "p50":
		return r.Latency.P50
	case "p99":
		return r.Latency.P99
	case "p999":
		return r.Latency.P999
	}
	if r.CPU.Target == nil {
		return r.CPU.Own
	}
	return r.CPU.Own + *r.CPU.Target
}

func sampleOf(rows []*benchRow, metric string) sample {
	s := sample{N: len(rows)}
	for _, r := range rows {
		s.values = append(s.values, metricOf(r, metric))
	}
	slices.Sort(s.values)
	s.Median = quantile(s.values, 0.5)
	if s.Median > 0 {
		s.Spread = (quantile(s.values, 0.75) - quantile(s.values, 0.25)) / 2 / s.Median
	}
	return s
}

// judge fills in the ratio and what it means.
func (c *comparison) judge() {
	c.P = mannWhitney(c.A.values, c.B.values)
	if c.A.Median > 0 {
		c.Ratio = c.B.Median / c.A.Median
	}
	c.Verdict = "same"
	if c.P < significant && c.Ratio != 1 {
		c.Verdict = "worse"
		if (c.Ratio > 1) == (c.Metric == "rate") {
			c.Verdict = "better"
		}
	}
}

// loss is by how many per cent B is worse: a rate that is lower, a time or cost
// that is higher.
func (c *comparison) loss() float64 {
	if c.Metric == "rate" {
		return 100 * (1 - c.Ratio)
	}
	return 100 * (c.Ratio - 1)
}

func (b *compare) verdict(found []comparison) error {
	if !b.gate {
		return nil
	}
	var bad []string
	for i := range found {
		if c := &found[i]; c.Verdict == "worse" && c.loss() > b.worse {
			bad = append(bad, fmt.Sprintf("%s: %s is worse by %.1f %%", orDash(c.Row), c.Metric, c.loss()))
		}
	}
	if bad == nil {
		return nil
	}
	return fmt.Errorf("%w by more than %v %%:\n%s", errSlower, b.worse, strings.Join(bad, "\n"))
}

func (b *compare) print(found []comparison, facts string) error {
	if b.output.value == "json" {
		return printJSON(b.c.out, found)
	}
	if facts != "" {
		fmt.Fprintf(b.c.out, "%s\n\n", facts)
	}
	rows := [][]string{{"ROW", "METRIC", "A", "B", "B/A", "P", "N", "VERDICT"}}
	for i := range found {
		c := &found[i]
		rows = append(rows, []string{
			orDash(c.Row), c.Metric, c.A.text(c.Metric), c.B.text(c.Metric), strconv.FormatFloat(c.Ratio, 'f', 3, 64),
			strconv.FormatFloat(c.P, 'f', 3, 64), fmt.Sprintf("%d+%d", c.A.N, c.B.N), c.Verdict,
		})
	}
	return printTable(b.c.out, rows)
}

// text prints the median and the spread.
func (s *sample) text(metric string) string {
	v := formatMicros(s.Median)
	switch metric {
	case "rate":
		v = formatRate(s.Median)
	case "cpu":
		v = fmt.Sprintf("%.3f s/GiB", s.Median)
	}
	return fmt.Sprintf("%s ±%.0f%%", v, 100*s.Spread)
}
