//go:build linux && cgo

package main

import (
	"debug/elf"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/testenv"
)

// TestLibrary builds the library as users do, and C programs against it.
func TestLibrary(t *testing.T) {
	gcc := testenv.NeedTool(t, "gcc")
	dir := t.TempDir()
	run(t, nil, "../scripts/lib", dir)
	t.Run("symbols", func(t *testing.T) { symbols(t, dir) })
	for _, source := range []string{"classic.c", "tent.c"} {
		t.Run(source, func(t *testing.T) { run(t, nil, compile(t, gcc, dir, source)) })
		t.Run(source+" with address sanitizer", func(t *testing.T) {
			run(t, nil, compile(t, gcc, dir, source, "-fsanitize=address"))
		})
		t.Run(source+" in valgrind", func(t *testing.T) { valgrind(t, compile(t, gcc, dir, source)) })
	}
	t.Run("storm", func(t *testing.T) { run(t, nil, compile(t, gcc, dir, "storm.c", "-fsanitize=address"), "2") })
	t.Run("between processes", func(t *testing.T) { between(t, gcc, dir) })
	t.Run("cycles", func(t *testing.T) {
		// A collector that runs often leaves less to guess about.
		t.Log(run(t, []string{"GOGC=20"}, compile(t, gcc, dir, "cycles.c"), "1000"))
	})
	t.Run("example", func(t *testing.T) { example(t, gcc, dir) })
}

// run runs a program that must succeed.
func run(t *testing.T, env []string, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Env = append(append(os.Environ(), "MC_LOG_LEVEL=ERROR"), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// compile builds a program of testdata against the library in dir.
func compile(t *testing.T, gcc, dir, source string, flags ...string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "program")
	args := []string{"-g", "-O1", "-Wall", "-Wextra", "-Werror", "-I", filepath.Join(dir, "include"), "-o", program,
		filepath.Join("testdata", source), "-L", dir, "-ltransfer_engine", "-lpthread", "-Wl,-rpath," + dir}
	run(t, nil, gcc, append(args, flags...)...)
	return program
}

// valgrind runs a program and looks for leaks of C's memory and for wrong uses of
// it. Go's memory, which valgrind calls an anonymous segment, is left out: it
// cannot follow how Go changes stacks in there.
func valgrind(t *testing.T, program string) {
	log := filepath.Join(t.TempDir(), "log")
	// Go's way to interrupt goroutines by signals confuses valgrind's stacks.
	run(t, []string{"GODEBUG=asyncpreemptoff=1"}, testenv.NeedTool(t, "valgrind"), "-q", "--fair-sched=yes", "--error-limit=no",
		"--undef-value-errors=no", "--leak-check=full", "--show-leak-kinds=definite", "--log-file="+log, program)
	found, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	for _, report := range regexp.MustCompile(`(?m)^==\d+== \n`).Split(string(found), -1) {
		wrong := regexp.MustCompile(`definitely lost|Invalid|Mismatched|Source and destination|points to`).MatchString(report)
		if wrong && !strings.Contains(report, "is in a rw- anonymous segment") {
			t.Errorf("valgrind:\n%s", report)
		}
	}
}

// symbols compares what the library exports with its headers.
func symbols(t *testing.T, dir string) {
	declared := regexp.MustCompile(`(?m)^[a-z][a-zA-Z_0-9 ]*[ *]([a-zA-Z_]+)\(`)
	var want []string
	for _, header := range []string{"transfer_engine_c.h", "tent/transfer_engine.h", "tideway.h"} {
		text, err := os.ReadFile(filepath.Join(dir, "include", header))
		if err != nil {
			t.Fatal(err)
		}
		before := len(want)
		for _, m := range declared.FindAllStringSubmatch(string(text), -1) {
			want = append(want, m[1])
		}
		if n := len(want) - before; header == "transfer_engine_c.h" && n != 27 || header == "tent/transfer_engine.h" && n != 33 {
			t.Errorf("%s declares %d functions: %q", header, n, want[before:])
		}
	}
	f, err := elf.Open(filepath.Join(dir, "libtideway.so"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	all, err := f.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range all {
		if s.Section != elf.SHN_UNDEF {
			got = append(got, s.Name)
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("the library exports\n%q, the headers declare\n%q", got, want)
	}
}

// between has two processes move data through TENT's functions, and one of them
// through the classic ones.
func between(t *testing.T, gcc, dir string) {
	tent := compile(t, gcc, dir, "tent.c")
	for _, user := range []string{"tent.c", "between.c"} {
		server := testenv.Start(t, tent, "serve")
		line := server.Expect(10*time.Second, `(\S+) (\d+)\n`)
		if got := run(t, nil, compile(t, gcc, dir, user), "use", line[1], line[2]); got != "moved\n" {
			t.Errorf("%s says %q", user, got)
		}
		server.Expect(10*time.Second, `use: written, first byte 42\n`)
		if code := server.Wait(10 * time.Second); code != 0 {
			t.Errorf("the server of %s ended with %d", user, code)
		}
	}
}

// example runs the two halves of the example in two processes.
func example(t *testing.T, gcc, dir string) {
	cmd := exec.CommandContext(t.Context(), testenv.NeedTool(t, "pkg-config"), "--cflags", "--libs", "tideway")
	cmd.Env = append(os.Environ(), "PKG_CONFIG_PATH="+filepath.Join(dir, "pkgconfig"))
	flags, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "copy")
	run(t, nil, gcc, append([]string{"-Wall", "-Wextra", "-Werror", "example/copy.c", "-o", program, "-Wl,-rpath," + dir}, strings.Fields(string(flags))...)...)
	server := testenv.Start(t, program, "serve")
	line := server.Expect(10*time.Second, `(\S+) (\d+)\n`)
	if got := run(t, nil, program, "read", line[1], line[2]); got != "tides wait for no one\n" {
		t.Errorf("the reader got %q", got)
	}
	server.Expect(10*time.Second, "copy: read\n")
}

// Every reason has its numbers, and numbers mean one thing.
func TestStatusNumbers(t *testing.T) {
	for _, c := range errs.Codes() {
		err := error(nil)
		if c != errs.OK {
			err = errs.New(c, "try", "it")
		}
		status, result := statusOf(err), resultOf(err)
		if (status == 0) != (c == errs.OK) || status < 0 || result > 0 || (result == 0) != (status == 0) {
			t.Errorf("%v: status %d, result %d", c, status, result)
		}
		if status != 8 && result != -status {
			t.Errorf("%v: status %d, but result %d", c, status, result)
		}
		if stateOf(err) == stateOf(nil) != (c == errs.OK) {
			t.Errorf("%v: a task that ends with it is in state %d", c, stateOf(err))
		}
	}
	if got := resultOf(errs.New(errs.Overlap, "register", "")); got != -7 {
		t.Errorf("an overlap is %d, want -7", got)
	}
}

func TestSplit(t *testing.T) {
	for name, want := range map[string]string{
		"node1": "node1 12001", "node1:12345": "node1 12345", "10.0.0.1:1": "10.0.0.1 1", "[::1]:7": "::1 7", "[::1]": "::1 12001",
		"::1": "::1 12001", "fe80::1%eth0": "fe80::1%eth0 12001", "[fe80::1%eth0]:9": "fe80::1%eth0 9", "": " 12001", "a:b": "a 12001", "a:0": "a 12001",
	} {
		if host, port := split(name, 12001); fmt.Sprint(host, " ", port) != want {
			t.Errorf("split(%q) = %q %d, want %s", name, host, port, want)
		}
	}
}

func TestEnvironment(t *testing.T) {
	read := func(vars map[string]string) (environment, []string, error) {
		return readEnvironment(func(name string) (string, bool) { v, ok := vars[name]; return v, ok })
	}
	e, notes, err := read(map[string]string{"MC_USE_IPV6": "0", "MC_SLICE_TIMEOUT": "7", "MC_LOG_LEVEL": "ERROR", "MC_HANDSHAKE_PORT": "99"})
	if err != nil || notes != nil || !e.ipv6 || e.sliceTimeout != 7*time.Second || e.logLevel != slog.LevelError || e.defaultPort != 99 {
		t.Errorf("%+v, %q, %v", e, notes, err)
	}
	e, notes, err = read(map[string]string{"MC_SLICE_TIMEOUT": "-1", "MC_LOG_LEVEL": "loud", "MC_HANDSHAKE_PORT": "70000"})
	if err != nil || len(notes) != 3 || e.sliceTimeout != 0 || e.logLevel != slog.LevelInfo || e.defaultPort != 12001 {
		t.Errorf("bad values: %+v, %q, %v", e, notes, err)
	}
	if _, _, err = read(map[string]string{"MC_FORCE_HCA": ""}); errs.Of(err) != errs.Unsupported || !strings.Contains(err.Error(), "MC_FORCE_HCA") {
		t.Errorf("what cannot be given: %v", err)
	}
}

// A batch that was freed, and one of another engine, are not found, and their
// rows are used again.
func TestTableReuse(t *testing.T) {
	var table table
	e, other := &engine{handle: 16}, &engine{handle: 32}
	first := &batch{e: e, capacity: 5}
	if err := table.add(first); err != nil {
		t.Fatal(err)
	}
	if _, err := table.find(other, first.id); errs.Of(err) != errs.Invalid {
		t.Errorf("a batch of another engine: %v", err)
	}
	table.remove(first)
	if _, err := table.find(e, first.id); errs.Of(err) != errs.Invalid {
		t.Errorf("a batch that was freed: %v", err)
	}
	second := &batch{e: e, capacity: 8}
	if err := table.add(second); err != nil {
		t.Fatal(err)
	}
	if second.id == first.id || &second.tasks[0] != &first.tasks[0] {
		t.Errorf("ids %#x and %#x, rows %p and %p: want another id for the same row", first.id, second.id, &first.tasks[0], &second.tasks[0])
	}
	if err := table.add(&batch{e: e, capacity: maxTasks + 1}); errs.Of(err) != errs.Invalid {
		t.Errorf("a batch above the limit: %v", err)
	}
	table.remove(second)
	if got := fmt.Sprint(table.of(e)); got != "[]" {
		t.Errorf("batches left: %s", got)
	}
}
