package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/tideway-io/tideway/internal/testenv/mustrun"
)

// report turns go test -json into what a reader wants: go test's own closing
// lines, the output of what failed, and the skips by reason.
type report struct {
	suite    string
	out      io.Writer
	partial  []byte                      // an unfinished line
	output   map[string]*strings.Builder // of tests that have not ended, by package and test
	seeds    map[string]string           // by package
	skips    map[string][]string         // reason to tests
	slow     []slowTest                  // tests without their subtests
	outcomes []mustrun.Outcome
	failed   map[string]string // what failed tests and their packages wrote, by package
	grave    bool              // a failure that a second run cannot excuse
}

// slowTest is a test and what it took.
type slowTest struct {
	name    string
	seconds float64
}

// slowest is how many of the slow tests are printed, and slowFloor what is not
// slow.
const (
	slowest   = 8
	slowFloor = 2.0 // seconds
)

// event is one line of go test -json.
type event struct {
	Action  string
	Package string
	Test    string
	Output  string
	Elapsed float64
}

func newReport(suite string, out io.Writer) *report {
	return &report{suite: suite, out: out, output: map[string]*strings.Builder{}, seeds: map[string]string{}, skips: map[string][]string{}, failed: map[string]string{}}
}

// Write takes any part of the stream. It never fails, so that a reader's
// trouble does not end the test run.
func (r *report) Write(p []byte) (int, error) {
	r.partial = append(r.partial, p...)
	for {
		line, rest, ok := bytes.Cut(r.partial, []byte("\n"))
		if !ok {
			return len(p), nil
		}
		var e event
		if json.Unmarshal(line, &e) == nil {
			r.take(e)
		} else {
			fmt.Fprintf(r.out, "%s\n", line)
		}
		r.partial = append(r.partial[:0], rest...)
	}
}

func (r *report) take(e event) {
	if e.Test == "" {
		r.takePackage(e)
		return
	}
	key := e.Package + " " + e.Test
	switch e.Action {
	case "output":
		if r.output[key] == nil {
			r.output[key] = new(strings.Builder)
		}
		r.output[key].WriteString(e.Output)
	case "pass", "fail", "skip":
		r.ended(e, key)
		delete(r.output, key)
	}
}

// takePackage prints what go test says about a package as a whole, without what
// is the same for all of them. What a failed one says is kept for printFailures.
func (r *report) takePackage(e event) {
	switch {
	case e.Action == "output" && strings.HasPrefix(e.Output, "-test.shuffle"):
		r.seeds[e.Package] = e.Output
	case e.Action == "output" && (e.Output == "PASS\n" || strings.HasSuffix(e.Output, "[no test files]\n")):
	case e.Action == "output" && strings.HasPrefix(e.Output, "FAIL"):
		r.failed[e.Package] += e.Output
	case e.Action == "output", e.Action == "build-output":
		r.grave = r.grave || isGrave(e.Output) || e.Action == "build-output"
		io.WriteString(r.out, e.Output)
	case e.Action == "fail":
		if r.seeds[e.Package] != "" {
			r.failed[e.Package] += e.Package + ": " + r.seeds[e.Package]
		}
	}
}

func (r *report) ended(e event, key string) {
	text := ""
	if b := r.output[key]; b != nil {
		text = b.String()
	}
	o := mustrun.Outcome{Suite: r.suite, Package: e.Package, Test: e.Test, Action: e.Action}
	switch e.Action {
	case "fail":
		r.failed[e.Package] += text
		r.grave = r.grave || isGrave(text)
	case "skip":
		o.Why = skipReason(text)
		r.skips[o.Why] = append(r.skips[o.Why], shortName(e))
	}
	r.outcomes = append(r.outcomes, o)
	if e.Elapsed > slowFloor && !strings.Contains(e.Test, "/") {
		r.slow = append(r.slow, slowTest{shortName(e), e.Elapsed})
	}
}

// shortName is a test's package and name, without the module.
func shortName(e event) string {
	return strings.TrimPrefix(strings.TrimPrefix(e.Package, mustrun.Module), "/") + " " + e.Test
}

// skipReason finds the text given to t.Skip: the last line that go test did not
// write itself, without file and line.
func skipReason(text string) string {
	reason := "no reason given"
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "---") || strings.HasPrefix(line, "===") {
			continue
		}
		reason = line
		if at, rest, ok := strings.Cut(line, ": "); ok && strings.Contains(at, ".go:") {
			reason = rest
		}
	}
	return reason
}

// end prints what tests wrote that never ended (a panic, a timeout), the skips,
// and where the time went.
func (r *report) end() {
	for _, key := range slices.Sorted(maps.Keys(r.output)) {
		fmt.Fprintf(r.out, "did not end: %s\n%s", key, r.output[key])
	}
	for _, reason := range slices.Sorted(maps.Keys(r.skips)) {
		fmt.Fprintf(r.out, "skipped: %s: %s\n", reason, strings.Join(r.skips[reason], ", "))
	}
	slices.SortFunc(r.slow, func(a, b slowTest) int { return cmp.Compare(b.seconds, a.seconds) })
	for _, t := range r.slow[:min(slowest, len(r.slow))] {
		fmt.Fprintf(r.out, "slow: %6.1f s  %s\n", t.seconds, t.name)
	}
}
