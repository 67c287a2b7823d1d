// Command check runs the suites that have to pass, one after the other, and
// prints for each what it took and what it may take. It is what `make check`
// calls; what the suites are for is in docs/testing.md.
//
//	check [-only name,name]
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/tideway-io/tideway/internal/testenv/mustrun"
)

// limit is what all suites together may take.
const limit = 20 * time.Minute

// suite is one command that has to end with status 0.
type suite struct {
	name   string
	budget time.Duration
	env    []string // settings on top of the environment
	cmd    []string
	quiet  bool // any output is a failure
	tests  bool // prints go test -json, recorded for the must-run list
}

// suites returns what is run, cheapest first.
func suites() []suite {
	return []suite{
		{name: "format", budget: 10 * time.Second, cmd: words("gofmt -l ."), quiet: true},
		{name: "build", budget: time.Minute, env: words("CGO_ENABLED=1"), cmd: words("go build ./...")},
		{name: "build-static", budget: time.Minute, env: words("CGO_ENABLED=0"), cmd: words("go build ./...")},
		{name: "build-arm64", budget: time.Minute, env: words("GOARCH=arm64"), cmd: words("go build ./...")},
		{name: "vet", budget: 30 * time.Second, cmd: words("go vet ./...")},
		{name: "staticcheck", budget: 90 * time.Second, cmd: words("go tool staticcheck ./...")},
		{name: "static", budget: 225 * time.Second, env: words("CGO_ENABLED=0 TIDEWAY_LARGE=1"), tests: true,
			cmd: words("go test -json -count=1 -short -timeout 10m ./...")},
		{name: "race", budget: 10 * time.Minute, env: words("CGO_ENABLED=1 GORACE=atexit_sleep_ms=0"), tests: true,
			cmd: words("go test -json -count=1 -race -shuffle=on -timeout 15m ./...")},
	}
}

func words(s string) []string { return strings.Fields(s) }

// result is how one suite went.
type result struct {
	suite
	took time.Duration
	cpu  time.Duration // user and system time of it and its children: what it takes on a quiet machine
	err  error
}

func main() {
	only := flag.String("only", "", "comma-separated suites to run, default all")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if !check(ctx, os.Stdout, pick(suites(), *only), os.Getenv("CI") == "true") {
		os.Exit(1)
	}
}

func pick(all []suite, only string) []suite {
	if only == "" {
		return all
	}
	names := strings.Split(only, ",")
	return slices.DeleteFunc(all, func(s suite) bool { return !slices.Contains(names, s.name) })
}

// check runs the suites, all of them even when one fails, and reports whether
// everything is well.
func check(ctx context.Context, w io.Writer, run []suite, ci bool) bool {
	out := &lines{w: w}
	var results []result
	var ran []mustrun.Outcome
	for _, s := range run {
		if ctx.Err() != nil {
			break
		}
		fmt.Fprintf(out, "== %s: %s %s\n", s.name, strings.Join(s.env, " "), strings.Join(s.cmd, " "))
		start := time.Now()
		outcomes, cpu, err := s.run(ctx, out)
		results = append(results, result{s, time.Since(start), cpu, err})
		ran = append(ran, outcomes...)
	}
	ok := budgets(out, results)
	ok = mustRun(out, run, ran, ci) && ok
	if ctx.Err() != nil || len(run) == 0 {
		fmt.Fprintln(out, "check: interrupted, or no such suite")
		return false
	}
	return ok
}

// lines is a writer that a suite's stdout and stderr can share.
type lines struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

// run runs one suite, and again what failed in it, for three times its budget at
// the most.
func (s suite) run(ctx context.Context, out io.Writer) (outcomes []mustrun.Outcome, cpu time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, 3*s.budget)
	defer cancel()
	var printed bytes.Buffer
	if !s.tests {
		cpu, err = s.start(ctx, s.cmd, io.MultiWriter(out, &printed), out)
		if err == nil && s.quiet && printed.Len() > 0 {
			err = errors.New("it may not print anything")
		}
		return nil, cpu, err
	}
	report := newReport(s.name, out)
	cpu, err = s.start(ctx, s.cmd, report, out)
	report.end()
	prefix := ""
	if err != nil && s.again(ctx, report) {
		prefix, err = "flaky | ", nil
	}
	report.printFailures(prefix)
	return report.outcomes, cpu, err
}

// start runs a command in a process group of its own, so that no test binary
// outlives it.
func (s suite) start(ctx context.Context, words []string, stdout, stderr io.Writer) (cpu time.Duration, err error) {
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.Env = append(append(os.Environ(), "GOFLAGS="+os.Getenv("GOFLAGS")+" -buildvcs=false"), s.env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	cmd.Stdout, cmd.Stderr = stdout, stderr
	err = cmd.Run()
	if cmd.ProcessState != nil {
		cpu = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	}
	return cpu, err
}

// budgets prints a line for each suite. Over a suite's budget is said, over the
// limit for all of them is a failure.
func budgets(out io.Writer, results []result) bool {
	ok, total, cpu := true, time.Duration(0), time.Duration(0)
	fmt.Fprintf(out, "\n%-14s %8s %8s %8s\n", "suite", "seconds", "budget", "cpu")
	for _, r := range results {
		total, cpu = total+r.took, cpu+r.cpu
		note := "ok"
		if r.took > r.budget {
			note = "ok, over budget"
		}
		if r.err != nil {
			ok, note = false, "FAILED: "+r.err.Error()
		}
		fmt.Fprintf(out, "%-14s %8.1f %8.0f %8.1f  %s\n", r.name, r.took.Seconds(), r.budget.Seconds(), r.cpu.Seconds(), note)
	}
	fmt.Fprintf(out, "%-14s %8.1f %8.0f %8.1f\n", "all", total.Seconds(), limit.Seconds(), cpu.Seconds())
	if total > limit {
		fmt.Fprintln(out, "check: over the limit for all suites; make them faster or move long runs to `make soak`")
		ok = false
	}
	return ok
}

// mustRun compares what ran with the must-run list; what is missing fails in CI.
func mustRun(out io.Writer, run []suite, ran []mustrun.Outcome, ci bool) bool {
	entries, err := mustrun.List()
	if err != nil {
		fmt.Fprintln(out, "must-run:", err)
		return false
	}
	var names []string
	for _, s := range run {
		names = append(names, s.name)
	}
	missing := mustrun.Verify(entries, names, ran)
	if len(run) == len(suites()) {
		missing = append(missing, mustrun.NowhereRun(ran)...)
	}
	for _, line := range missing {
		fmt.Fprintln(out, "must-run:", line)
	}
	fmt.Fprintf(out, "must-run: %d listed, %d missing\n", len(entries), len(missing))
	return len(missing) == 0 || !ci
}
