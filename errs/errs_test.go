package errs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"strings"
	"testing"
)

// table is every code: what it is called, what it is, what it also matches.
// A number here is on the wire for ever.
var table = []struct {
	code Code
	n    uint16
	name string
	kind error
	also error
}{
	{OK, 0, "ok", nil, nil},
	{Closed, 0x10, "closed", ErrClosed, net.ErrClosed},
	{Draining, 0x11, "draining", ErrClosed, net.ErrClosed},
	{Invalid, 0x20, "invalid", ErrInvalid, fs.ErrInvalid},
	{OutOfRange, 0x21, "out_of_range", ErrInvalid, fs.ErrInvalid},
	{SelfDial, 0x22, "self_dial", ErrInvalid, fs.ErrInvalid},
	{Overflow, 0x23, "overflow", ErrInvalid, fs.ErrInvalid},
	{Overlap, 0x24, "overlap", ErrInvalid, fs.ErrInvalid},
	{NotFound, 0x30, "not_found", ErrNotFound, fs.ErrNotExist},
	{NotRegistered, 0x31, "not_registered", ErrNotFound, os.ErrNotExist},
	{Unsupported, 0x40, "unsupported", ErrUnsupported, errors.ErrUnsupported},
	{NoCommonTransport, 0x41, "no_common_transport", ErrUnsupported, errors.ErrUnsupported},
	{Overloaded, 0x50, "overloaded", ErrOverloaded, nil},
	{NoCredit, 0x51, "no_credit", ErrOverloaded, nil},
	{Busy, 0x60, "busy", ErrBusy, nil},
	{Unreachable, 0x70, "unreachable", ErrUnreachable, nil},
	{Refused, 0x71, "refused", ErrUnreachable, nil},
	{Unresponsive, 0x72, "unresponsive", ErrUnreachable, nil},
	{LaneLost, 0x73, "lane_lost", ErrUnreachable, nil},
	{NameLookup, 0x74, "name_lookup", ErrUnreachable, nil},
	{Stale, 0x80, "stale", ErrStale, nil},
	{Restarted, 0x81, "restarted", ErrStale, nil},
	{Revoked, 0x82, "revoked", ErrStale, nil},
	{Denied, 0x90, "denied", ErrDenied, fs.ErrPermission},
	{Checksum, 0xa0, "checksum", ErrChecksum, nil},
	{PortInUse, 0xb0, "port_in_use", ErrPortInUse, nil},
	{Internal, 0xc0, "internal", ErrInternal, nil},
	{Canceled, 0xd0, "canceled", context.Canceled, nil},
	{Deadline, 0xe0, "deadline", context.DeadlineExceeded, os.ErrDeadlineExceeded},
}

func sentinels() []error {
	return []error{
		ErrClosed, ErrInvalid, ErrNotFound, ErrUnsupported, ErrOverloaded, ErrBusy, ErrUnreachable, ErrStale, ErrDenied, ErrChecksum,
		ErrPortInUse, ErrInternal, context.Canceled, context.DeadlineExceeded,
	}
}

func TestEveryCode(t *testing.T) {
	known := make(map[Code]bool)
	for _, c := range Codes() {
		known[c] = true
	}
	if len(known) != len(table) || len(Codes()) != len(table) {
		t.Errorf("%d codes, %d in the table of this test", len(known), len(table))
	}
	names := make(map[string]bool)
	for _, c := range table {
		if uint16(c.code) != c.n || !known[c.code] || c.code.String() != c.name || c.code.Kind() != c.kind || names[c.name] {
			t.Errorf("%#x %q %v, want %#x %q %v, once", uint16(c.code), c.code, c.code.Kind(), c.n, c.name, c.kind)
		}
		names[c.name] = true
		if c.code == OK {
			continue
		}
		err := error(New(c.code, "op", "detail"))
		for _, s := range sentinels() {
			if errors.Is(err, s) != (s == c.kind) {
				t.Errorf("%s: errors.Is(%v) is %v", c.name, s, s != c.kind)
			}
		}
		if c.also != nil && c.also != os.ErrDeadlineExceeded && !errors.Is(err, c.also) {
			t.Errorf("%s does not match %v", c.name, c.also)
		}
	}
}

// TestOf: from an error back to the code, through any wrapping.
func TestOf(t *testing.T) {
	for _, c := range table {
		if c.code == OK {
			continue
		}
		err := error(&Error{Op: "op", Reason: c.code})
		for _, e := range []error{err, fmt.Errorf("outer: %w", err), errors.Join(io.EOF, err), &Error{Op: "no reason", Err: err}} {
			if got := Of(e); got != c.code {
				t.Errorf("%s in %v: %v", c.name, e, got)
			}
		}
		if got := Of(fmt.Errorf("bare: %w", c.kind)); got.Kind() != c.kind || got&0xf != 0 {
			t.Errorf("bare %v: %v", c.kind, got)
		}
	}
	for err, want := range map[error]Code{
		nil: OK, io.EOF: Internal, net.ErrClosed: Internal, &Error{Op: "x"}: Internal,
		fmt.Errorf("a: %w", context.DeadlineExceeded): Deadline, context.Canceled: Canceled,
	} {
		if got := Of(err); got != want {
			t.Errorf("%v: %v, want %v", err, got, want)
		}
	}
}

// TestOutermostReasonCounts: who wraps an error may give it another reason, and
// the cause still matches.
func TestOutermostReasonCounts(t *testing.T) {
	err := &Error{Op: "write", Reason: Unreachable, Err: New(Checksum, "receive", "")}
	if Of(err) != Unreachable || !errors.Is(err, ErrUnreachable) || !errors.Is(err, ErrChecksum) || errors.Is(err, ErrStale) {
		t.Error(Of(err), err)
	}
	var e *Error
	if !errors.As(fmt.Errorf("x: %w", err), &e) || e != err {
		t.Error("errors.As finds another one")
	}
}

// TestUnknownCodes: what a later version sends is a failure, whatever it is.
func TestUnknownCodes(t *testing.T) {
	for n := range 1 << 16 {
		c := Code(n)
		if (c.Kind() == nil) != (c == OK) {
			t.Fatalf("%#x: kind %v", n, c.Kind())
		}
		if c > 0xff && c.Kind() != ErrInternal {
			t.Fatalf("%#x: kind %v", n, c.Kind())
		}
	}
	if Code(0x1f).Kind() != ErrClosed || Code(0xf0).Kind() != ErrInternal || Code(0x2f).String() != "code_0x2f" {
		t.Error(Code(0x1f).Kind(), Code(0xf0).Kind(), Code(0x2f).String())
	}
}

func TestText(t *testing.T) {
	for _, c := range []struct {
		err  *Error
		want string
	}{
		{New(OutOfRange, "write", "offset %d and length %d, limit %d", 8, 4, 10), "write: out of range: offset 8 and length 4, limit 10"},
		{&Error{Op: "read", Segment: "b/kv", Peer: "10.0.0.2:7070", Transport: "tcp", Rail: "eth0", Stage: "wire", Reason: LaneLost, Err: io.EOF},
			"read b/kv at 10.0.0.2:7070 over tcp on eth0 (wire): lane lost: EOF"},
		{&Error{Op: "write", Reason: LaneLost, InDoubt: true}, "write: lane lost (in doubt: the remote range may still change)"},
		{&Error{Op: "wait", Reason: Deadline, Err: context.DeadlineExceeded}, "wait: deadline"},
		{&Error{Reason: Busy}, "busy"},
		{&Error{Op: "open", Err: New(Refused, "dial", "")}, "open: dial: refused"},
	} {
		if got := c.err.Error(); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
	for _, s := range sentinels() {
		if s.Error() == "" || strings.ToLower(s.Error()[:1]) != s.Error()[:1] {
			t.Errorf("%q", s)
		}
	}
}

// TestTextSaysEachFactOnce: causes leave out what the errors around them said.
func TestTextSaysEachFactOnce(t *testing.T) {
	const peer = "10.0.0.2:7070"
	tcp := &net.TCPAddr{IP: net.IPv4(10, 0, 0, 2), Port: 7070}
	dialed := &net.OpError{Op: "dial", Net: "tcp", Addr: tcp, Err: errors.New("connection refused")}
	dial := &Error{Op: "dial", Peer: peer, Stage: "connect", Reason: Refused, Detail: "nobody listens", Err: errors.Join(dialed)}
	for _, c := range []struct {
		err  *Error
		want string
	}{
		{&Error{Op: "open segment", Segment: peer, Stage: "connect", Reason: Refused, Err: dial},
			"open segment 10.0.0.2:7070 (connect): refused: dial: nobody listens: connection refused"},
		{&Error{Op: "read", Segment: peer + "/kv", Peer: peer, Transport: "tcp", Stage: "connect", Reason: Refused,
			Err: &Error{Op: "connect", Peer: peer, Transport: "tcp", Stage: "connect", Reason: Refused, Err: dial}},
			"read 10.0.0.2:7070/kv over tcp (connect): refused: connect: dial: nobody listens: connection refused"},
		{&Error{Op: "write", Segment: "b/kv", Peer: peer, Reason: Draining, InDoubt: true,
			Err: &Error{Op: "post", Peer: peer, Transport: "tcp", Stage: "post", Reason: Draining, InDoubt: true, Detail: "it ends"}},
			"write b/kv at 10.0.0.2:7070: draining: post over tcp (post): it ends (in doubt: the remote range may still change)"},
		{&Error{Op: "open", Segment: "b", Reason: Deadline, Err: &Error{Op: "open", Segment: "b", Reason: Deadline, Err: context.DeadlineExceeded}},
			"open b: deadline"},
		{&Error{Op: "open", Segment: "b", Reason: Unreachable, Err: &Error{Op: "open", Segment: "b2", Reason: Refused}}, "open b: unreachable: open b2: refused"},
		{&Error{Op: "dial", Peer: peer, Reason: Refused, Err: errors.Join(dialed, dialed, io.EOF)}, "dial at 10.0.0.2:7070: refused: connection refused; EOF"},
		{&Error{Op: "dial", Peer: "elsewhere:1", Err: dialed}, "dial at elsewhere:1: dial tcp 10.0.0.2:7070: connection refused"},
		{&Error{Op: "read", Reason: Refused, Err: fmt.Errorf("around: %w", dial)}, "read: refused: around: " + dial.Error()},
	} {
		if got := c.err.Error(); got != c.want {
			t.Errorf("%q\nwant %q", got, c.want)
		}
	}
}

// TestSentinelsAreThemselves: none matches another.
func TestSentinelsAreThemselves(t *testing.T) {
	for i, a := range sentinels() {
		for j, b := range sentinels() {
			if errors.Is(a, b) != (i == j) {
				t.Errorf("errors.Is(%v, %v)", a, b)
			}
		}
	}
}
