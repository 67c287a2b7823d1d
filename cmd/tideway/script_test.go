package main

import (
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/tideway-io/tideway/internal/e2e"
	"github.com/tideway-io/tideway/metadata/redis"
)

// TestMain lets scripts and tests start this test binary as the command: its
// directory is in PATH while tests run.
func TestMain(m *testing.M) {
	redis.Silence()
	testscript.Main(m, map[string]func(){"tideway": main, "engines": engines})
}

// TestScript runs the scripts in testdata/script with real processes. Beside the
// commands of e2e they have
//
//	exits CODE program args...   run a program that exits with the code
//	bytes FILE SIZE ROUND        make a file of pattern bytes
//	holds DIR [NAME...]          check that a directory holds just that
//	same FILE FILE               compare without printing the bytes
func TestScript(t *testing.T) {
	testscript.Run(t, e2e.Params(testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("TMPDIR", e.WorkDir+"/tmp")
			return os.Mkdir(e.WorkDir+"/tmp", 0o755)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": scriptExits, "bytes": scriptBytes, "holds": scriptHolds, "same": scriptSame},
	}))
}

func scriptExits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE program [args...]")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			ts.Fatalf("%v", err)
		}
		got = exit.ExitCode()
	}
	if got != want {
		ts.Fatalf("%s exits with %d, want %d", strings.Join(args[1:], " "), got, want)
	}
}

func scriptBytes(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: bytes file size round")
	}
	n, err := parseSize(args[1])
	ts.Check(err)
	round, err := strconv.ParseUint(args[2], 10, 64)
	ts.Check(err)
	p := make([]byte, n)
	newPattern(1, round).fill(p, 0)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), p, 0o644))
}

func scriptHolds(ts *testscript.TestScript, neg bool, args []string) {
	list, err := os.ReadDir(ts.MkAbs(args[0]))
	ts.Check(err)
	var got []string
	for _, f := range list {
		got = append(got, f.Name())
	}
	if want := strings.Join(args[1:], " "); strings.Join(got, " ") != want {
		ts.Fatalf("%s holds %v, want %s", args[0], got, want)
	}
}

func scriptSame(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: same file file")
	}
	if a, b := ts.ReadFile(args[0]), ts.ReadFile(args[1]); a != b {
		ts.Fatalf("%s (%d bytes) and %s (%d bytes) differ", args[0], len(a), args[1], len(b))
	}
}
