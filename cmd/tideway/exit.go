package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"

	"github.com/tideway-io/tideway/errs"
	"golang.org/x/sys/unix"
)

// The exit codes. docs/operations.md has the same table; a test compares them.
const (
	exitOK          = 0
	exitError       = 1
	exitUsage       = 2
	exitNotFound    = 3
	exitUnreachable = 4
	exitDenied      = 5
	exitIntegrity   = 6
	exitStale       = 7
	exitBusy        = 8
	exitUnsupported = 9
	exitPortInUse   = 10
	exitSlower      = 11
)

// exitMeaning is one row of the table of exit codes.
type exitMeaning struct {
	code  int
	kinds []error // sentinels that lead to it
	text  string
}

// exitTable is the one table from failures to exit codes, first match first.
func exitTable() []exitMeaning {
	return []exitMeaning{
		{exitOK, nil, "done"},
		{exitError, nil, "any other error; the message says which"},
		{exitUsage, []error{errs.ErrInvalid}, "the command line or a range in it is wrong"},
		{exitNotFound, []error{errs.ErrNotFound, fs.ErrNotExist}, "no such segment, buffer or file"},
		{exitUnreachable, []error{errs.ErrUnreachable, context.DeadlineExceeded}, "the other side refused, died or went silent"},
		{exitDenied, []error{errs.ErrDenied, fs.ErrPermission, unix.EROFS}, "access does not allow it"},
		{exitIntegrity, []error{errs.ErrChecksum}, "bytes arrived changed"},
		{exitStale, []error{errs.ErrStale}, "the source or target changed or restarted meanwhile"},
		{exitBusy, []error{errs.ErrOverloaded, errs.ErrBusy}, "busy or overloaded; try again later"},
		{exitUnsupported, []error{errs.ErrUnsupported}, "no transport or feature for it"},
		{exitPortInUse, []error{errs.ErrPortInUse}, "the listen address is taken"},
		{exitSlower, []error{errSlower}, "bench compare found what --worse is about"},
		{128 + 2, nil, "interrupted (SIGINT)"},
		{128 + 15, nil, "terminated (SIGTERM); serve exits with 0"},
	}
}

// exitHelp prints the table for the help text.
func exitHelp() string {
	var b strings.Builder
	for _, m := range exitTable() {
		fmt.Fprintf(&b, "  %3d  %s\n", m.code, m.text)
	}
	return b.String()
}

// usageError is a wrong command line.
type usageError struct {
	text string
}

func (e *usageError) Error() string { return e.text }

func usagef(format string, args ...any) error { return &usageError{fmt.Sprintf(format, args...)} }

// exitCode returns the process's exit code for err. A signal counts only when
// it made the command fail.
func exitCode(ctx context.Context, err error) int {
	if err == nil {
		return exitOK
	}
	var sig *signalError
	if errors.As(context.Cause(ctx), &sig) {
		return 128 + int(sig.sig)
	}
	var usage *usageError
	if errors.As(err, &usage) {
		return exitUsage
	}
	if errs.Of(err) == errs.Draining { // as good as gone
		return exitUnreachable
	}
	for _, m := range exitTable() {
		for _, k := range m.kinds {
			if errors.Is(err, k) {
				return m.code
			}
		}
	}
	return exitError
}

// complain prints err and what to do about it.
func complain(w io.Writer, path string, err error) {
	fmt.Fprintf(w, "%s: %s\n", path, withoutVerb(path, summary(err)))
	var usage *usageError
	if errors.As(err, &usage) {
		fmt.Fprintf(w, "  see %s --help\n", path)
		return
	}
	if h := hint(err); h != "" {
		fmt.Fprintf(w, "  %s\n", h)
	}
}

// withoutVerb leaves out the command's own name, which path ends in, where text
// begins with it: "tideway get: get kv: ...".
func withoutVerb(path, text string) string {
	verb := path[strings.LastIndexByte(path, ' ')+1:]
	if rest, ok := strings.CutPrefix(text, verb); ok {
		for _, sep := range []string{": ", " "} {
			if rest, ok := strings.CutPrefix(rest, sep); ok {
				return rest
			}
		}
	}
	return text
}

// maxLines is how many different failures of one command are printed.
const maxLines = 3

// summary prints an error of many requests without saying the same twice. Where a
// signal ended them, it is all there is to say.
func summary(err error) string {
	var sig *signalError
	if errors.As(err, &sig) {
		return sig.Error()
	}
	var lines []string
	more := 0
	for line := range strings.SplitSeq(err.Error(), "\n") {
		switch {
		case slices.Contains(lines, line):
		case len(lines) < maxLines:
			lines = append(lines, line)
		default:
			more++
		}
	}
	if more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(lines, "\n  ")
}

// hinted is an error that knows what to do next better than its kind does.
type hinted struct {
	error
	next string
}

func (h *hinted) Unwrap() error { return h.error }

// hint says what to do next about err, or nothing where the message says it all.
func hint(err error) string {
	var h *hinted
	if errors.As(err, &h) {
		return h.next
	}
	var there *errs.Error
	if remote := errors.As(err, &there) && there.Segment+there.Peer != ""; !remote && isAny(err, errs.ErrDenied, errs.ErrOverloaded, errs.ErrBusy) {
		return "" // about this host, and the message says what to do
	}
	switch c := errs.Of(err); c {
	case errs.Refused:
		return "nobody listens there: check the address, or start tideway serve"
	case errs.NameLookup:
		return "check the host name, or give the address as HOST:PORT or [IPV6]:PORT"
	case errs.NoCommonTransport, errs.Unsupported:
		return "tideway stat ADDR shows the transports of the other side"
	case errs.PortInUse:
		return "choose another --listen, or add --port-fallback"
	case errs.Draining:
		return "the other side is shutting down; try again when it is back"
	default:
		return kindHint(c.Kind())
	}
}

func isAny(err error, targets ...error) bool {
	return slices.ContainsFunc(targets, func(t error) bool { return errors.Is(err, t) })
}

func kindHint(kind error) string {
	switch kind {
	case errs.ErrUnreachable, context.DeadlineExceeded:
		return "the other side died or does not answer; run the command again when it is back"
	case errs.ErrStale:
		return "the other side restarted or changed the buffer; run the command again"
	case errs.ErrDenied:
		return "tideway ls ADDR shows the access; serve it with --access rw to allow writes"
	case errs.ErrChecksum:
		return "the link or the memory corrupts data: check the network card, cables and memory"
	case errs.ErrOverloaded, errs.ErrBusy:
		return "try again in a moment"
	}
	return ""
}
