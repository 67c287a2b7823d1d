package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/tideway-io/tideway/errs"
)

func TestExitCodes(t *testing.T) {
	ctx := context.Background()
	cut, cancel := context.WithCancelCause(ctx)
	cancel(&signalError{syscall.SIGINT})
	for _, c := range []struct {
		ctx  context.Context
		err  error
		want int
	}{
		{ctx, nil, 0},
		{cut, nil, 0},
		{ctx, errors.New("some"), 1},
		{ctx, usagef("wrong"), 2},
		{ctx, errs.New(errs.OutOfRange, "x", "y"), 2},
		{ctx, fmt.Errorf("open: %w", errs.New(errs.NotRegistered, "x", "y")), 3},
		{ctx, &fs.PathError{Op: "open", Path: "x", Err: syscall.ENOENT}, 3},
		{ctx, errs.New(errs.Refused, "x", "y"), 4},
		{ctx, errs.New(errs.LaneLost, "x", "y"), 4},
		{ctx, context.DeadlineExceeded, 4},
		{ctx, errs.New(errs.Draining, "x", "y"), 4},
		{ctx, errs.New(errs.Denied, "x", "y"), 5},
		{ctx, syscall.EACCES, 5},
		{ctx, &hinted{errs.New(errs.Checksum, "x", "y"), "do this"}, 6},
		{ctx, errs.New(errs.Restarted, "x", "y"), 7},
		{ctx, errs.New(errs.NoCredit, "x", "y"), 8},
		{ctx, errs.New(errs.Busy, "x", "y"), 8},
		{ctx, errs.New(errs.NoCommonTransport, "x", "y"), 9},
		{ctx, errs.New(errs.PortInUse, "x", "y"), 10},
		{ctx, errs.New(errs.Internal, "x", "y"), 1},
		{ctx, errs.New(errs.Closed, "x", "y"), 1},
		{cut, context.Canceled, 130},
	} {
		if got := exitCode(c.ctx, c.err); got != c.want {
			t.Errorf("exitCode(%v) = %d; want %d", c.err, got, c.want)
		}
	}
}

func TestSummary(t *testing.T) {
	var many []error
	for i := range 16 {
		many = append(many, fmt.Errorf("failure %d", i%2))
	}
	if got, want := summary(errors.Join(many...)), "failure 0\n  failure 1"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	for i := range 5 {
		many = append(many, fmt.Errorf("other %d", i))
	}
	if got, want := summary(errors.Join(many...)), "failure 0\n  failure 1\n  other 0\n  and 4 more"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestWithoutVerb(t *testing.T) {
	for text, want := range map[string]string{
		"get: busy: x": "busy: x", "get kv: x": "kv: x", "getting kv": "getting kv", "open x": "open x", "get": "get", "": "",
	} {
		if got := withoutVerb("tideway get", text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestSummaryOfSignal(t *testing.T) {
	for sig, want := range map[syscall.Signal]string{syscall.SIGINT: "interrupted by SIGINT", syscall.SIGTERM: "terminated by SIGTERM"} {
		wait := &errs.Error{Op: "wait", Reason: errs.Canceled, Err: &signalError{sig}}
		if got := summary(errors.Join(wait, errs.New(errs.Canceled, "read", "withdrawn"))); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// Every kind of failure that a user can do something about says what.
func TestHints(t *testing.T) {
	for _, c := range errs.Codes() {
		err := errs.New(c, "get", "why")
		err.Peer = "127.0.0.1:7000"
		code := exitCode(context.Background(), err)
		if code >= exitUnreachable && code != exitUnsupported && hint(err) == "" {
			t.Errorf("%v (exit %d) has no hint", err, code)
		}
	}
	if got := hint(errs.New(errs.Denied, "listen", "port 80 needs a privilege; choose one above 1023")); got != "" {
		t.Errorf("what this host forbids is not for the other side to allow: %q", got)
	}
	if got := hint(fmt.Errorf("outer: %w", &hinted{errors.New("x"), "do this"})); got != "do this" {
		t.Errorf("hint %q", got)
	}
}

// The documentation has the table that the command has.
func TestExitCodesAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[int]string{}
	for _, m := range regexp.MustCompile(`(?m)^\| (\d+) \| (.*) \|$`).FindAllStringSubmatch(string(text), -1) {
		n, _ := strconv.Atoi(m[1])
		rows[n] = m[2]
	}
	for _, m := range exitTable() {
		if rows[m.code] != m.text {
			t.Errorf("docs/operations.md says %q for %d; the command says %q", rows[m.code], m.code, m.text)
		}
		delete(rows, m.code)
		if !strings.Contains(exitHelp(), m.text) {
			t.Errorf("the help does not say %q", m.text)
		}
	}
	if len(rows) > 0 {
		t.Errorf("docs/operations.md has more: %v", rows)
	}
}
