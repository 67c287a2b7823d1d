package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// A suite runs a thousand tests, many of them real processes against a clock, on
// whatever machine CI has. One that fails is run again alone, and only when it
// then passes every time is it called flaky and the suite well. What it printed
// is shown all the same. See docs/adr/0047.
const (
	mostFlaky = 2 // more failures than this are no accident
	repeats   = 3 // passes in a row that clear a test
)

// again runs what failed once more, and reports whether it may be forgiven.
func (s suite) again(ctx context.Context, r *report) bool {
	tests := r.failedTests()
	if tests == nil || ctx.Err() != nil {
		return false
	}
	for _, pkg := range slices.Sorted(maps.Keys(tests)) {
		fmt.Fprintf(r.out, "again: %s %s, alone, %d times\n", pkg, strings.Join(tests[pkg], " "), repeats)
		if !s.alone(ctx, r, pkg, tests[pkg]) {
			return false
		}
	}
	return true
}

// alone runs the tests of one package without any other beside them.
func (s suite) alone(ctx context.Context, r *report, pkg string, tests []string) bool {
	cmd := slices.Clone(s.cmd)
	at := slices.Index(cmd, "./...")
	if at < 0 {
		return false
	}
	cmd = slices.Replace(cmd, at, at+1, fmt.Sprintf("-count=%d", repeats), "-run=^("+strings.Join(tests, "|")+")$", pkg)
	second := newReport(s.name, r.out)
	_, err := s.start(ctx, cmd, second, r.out)
	second.end()
	second.printFailures("")
	passed := 0
	for _, o := range second.outcomes {
		if o.Action == "pass" && !strings.Contains(o.Test, "/") {
			passed++
		}
	}
	return err == nil && passed == repeats*len(tests)
}

// failedTests returns the top-level tests to run again, by package, or nil where
// the failure is of a kind that no second run may excuse: a data race, a panic,
// a test that never ended, a package that failed without a test, a build.
func (r *report) failedTests() map[string][]string {
	if r.grave || len(r.output) > 0 {
		return nil
	}
	tests, n := map[string][]string{}, 0
	for _, o := range r.outcomes {
		if o.Action == "fail" && !strings.Contains(o.Test, "/") {
			tests[o.Package] = append(tests[o.Package], o.Test)
			n++
		}
	}
	for pkg := range r.failed {
		if tests[pkg] == nil {
			return nil
		}
	}
	if n > mostFlaky || n == 0 {
		return nil
	}
	return tests
}

// printFailures prints what the failed tests and packages wrote, each line after
// the prefix.
func (r *report) printFailures(prefix string) {
	for _, pkg := range slices.Sorted(maps.Keys(r.failed)) {
		for line := range strings.Lines(r.failed[pkg]) {
			fmt.Fprint(r.out, prefix, line)
		}
	}
}

// graveSigns are words in a test's output that make its failure one to look at,
// however well it does alone.
var graveSigns = []string{"DATA RACE", "panic:", "fatal error:", "SIGSEGV", "AddressSanitizer"}

func isGrave(text string) bool {
	return slices.ContainsFunc(graveSigns, func(sign string) bool { return strings.Contains(text, sign) })
}
