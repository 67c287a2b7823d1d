// Package errs is the vocabulary of failure: a dozen sentinel errors, a finer
// Reason for each, and the Error that carries what, where, why and what to do.
//
// Every layer speaks it: the facade re-exports it, the native wire carries a
// Code, and the C library maps a Code to its status numbers. The package has no
// dependencies and no behaviour beyond naming, matching and printing.
package errs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
)

// The sentinels. Match them with errors.Is; they are never compared with ==.
var (
	ErrClosed      error = &sentinel{"closed", net.ErrClosed}
	ErrInvalid     error = &sentinel{"invalid", fs.ErrInvalid}
	ErrNotFound    error = &sentinel{"not found", fs.ErrNotExist}
	ErrUnsupported error = &sentinel{"unsupported", errors.ErrUnsupported}
	ErrOverloaded  error = &sentinel{"overloaded", nil}
	ErrBusy        error = &sentinel{"busy", nil}
	ErrUnreachable error = &sentinel{"unreachable", nil}
	ErrStale       error = &sentinel{"stale", nil}
	ErrDenied      error = &sentinel{"denied", fs.ErrPermission}
	ErrChecksum    error = &sentinel{"checksum mismatch", nil}
	ErrPortInUse   error = &sentinel{"port in use", nil}
	ErrInternal    error = &sentinel{"internal", nil}
)

// sentinel is a kind of failure that also matches the standard library's error
// of the same meaning.
type sentinel struct {
	text string
	also error
}

func (s *sentinel) Error() string        { return s.text }
func (s *sentinel) Is(target error) bool { return s.also != nil && target == s.also }

// Code is one kind and reason of failure as a number: the form that crosses the
// native wire and that the scheduler keeps. The numbers are fixed for ever; new
// ones are added at the end of their kind's range of 16.
type Code uint16

// The codes, sixteen to a kind. OK is the zero value and is not a failure.
const (
	OK Code = 0

	Closed   Code = 0x10
	Draining Code = 0x11 // the engine or the peer is shutting down

	Invalid    Code = 0x20
	OutOfRange Code = 0x21 // offset and length leave the buffer
	SelfDial   Code = 0x22 // another name turned out to be oneself
	Overflow   Code = 0x23 // offset + length exceeds 64 bits
	Overlap    Code = 0x24 // a registration overlaps another one

	NotFound      Code = 0x30
	NotRegistered Code = 0x31 // no buffer with this name, address or key

	Unsupported       Code = 0x40
	NoCommonTransport Code = 0x41

	Overloaded Code = 0x50
	NoCredit   Code = 0x51 // the receiver's allowance is spent

	Busy Code = 0x60

	Unreachable  Code = 0x70
	Refused      Code = 0x71 // connection refused: nobody listens there
	Unresponsive Code = 0x72 // connected, silent for StallTimeout
	LaneLost     Code = 0x73 // the connection ended with slices on it
	NameLookup   Code = 0x74 // the host name did not resolve

	Stale     Code = 0x80
	Restarted Code = 0x81 // the peer is another incarnation
	Revoked   Code = 0x82 // the buffer was closed at its owner

	Denied Code = 0x90 // access does not allow the operation

	Checksum Code = 0xa0

	PortInUse Code = 0xb0

	Internal Code = 0xc0

	Canceled Code = 0xd0
	Deadline Code = 0xe0
)

// kinds is the one table from a code's range to its sentinel.
var kinds = [16]error{
	0x1: ErrClosed, 0x2: ErrInvalid, 0x3: ErrNotFound, 0x4: ErrUnsupported, 0x5: ErrOverloaded, 0x6: ErrBusy,
	0x7: ErrUnreachable, 0x8: ErrStale, 0x9: ErrDenied, 0xa: ErrChecksum, 0xb: ErrPortInUse, 0xc: ErrInternal,
	0xd: context.Canceled, 0xe: context.DeadlineExceeded,
}

// reasons names each code for people, metrics and logs.
var reasons = map[Code]string{
	OK: "ok", Closed: "closed", Draining: "draining", Invalid: "invalid", OutOfRange: "out_of_range",
	SelfDial: "self_dial", Overflow: "overflow", Overlap: "overlap", NotFound: "not_found", NotRegistered: "not_registered",
	Unsupported: "unsupported", NoCommonTransport: "no_common_transport", Overloaded: "overloaded", NoCredit: "no_credit",
	Busy: "busy", Unreachable: "unreachable", Refused: "refused", Unresponsive: "unresponsive", LaneLost: "lane_lost",
	NameLookup: "name_lookup", Stale: "stale", Restarted: "restarted", Revoked: "revoked", Denied: "denied",
	Checksum: "checksum", PortInUse: "port_in_use", Internal: "internal", Canceled: "canceled", Deadline: "deadline",
}

// Kind returns the sentinel that c belongs to: nil for OK, ErrInternal for a
// code that this version does not know.
func (c Code) Kind() error {
	if c == OK {
		return nil
	}
	if c < 0x100 {
		if k := kinds[c>>4]; k != nil {
			return k
		}
	}
	return ErrInternal
}

// String returns the reason's name, as used in metrics and logs.
func (c Code) String() string {
	if s, ok := reasons[c]; ok {
		return s
	}
	return fmt.Sprintf("code_%#x", uint16(c))
}

// Codes returns every code of this version in no particular order.
func Codes() []Code {
	out := make([]Code, 0, len(reasons))
	for c := range reasons {
		out = append(out, c)
	}
	return out
}

// Of returns the code of err: that of the outermost *Error in its chain that has
// a reason, else that of the sentinel that it matches, else Internal. Of(nil) is
// OK.
func Of(err error) Code {
	if err == nil {
		return OK
	}
	var e *Error
	for cause := err; errors.As(cause, &e); cause = e.Err {
		if e.Reason != OK {
			return e.Reason
		}
	}
	for i, k := range kinds {
		if k != nil && errors.Is(err, k) {
			return Code(i << 4)
		}
	}
	return Internal
}

// Error says what failed, where, why and what to do. Fields that do not apply
// are empty.
type Error struct {
	Op        string // what was attempted, as a verb: "write", "open segment"
	Segment   string // the segment, and buffer when known, as "segment/buffer"
	Peer      string // host:port of the other side
	Transport string // the transport that reported it
	Rail      string // the rail that reported it
	Stage     string // admit, select, connect, post, wire, apply
	Detail    string // the value, the limit and the fix
	Reason    Code   // the finer reason; Kind of it is what errors.Is matches
	Retryable bool   // the same request may succeed if submitted again
	InDoubt   bool   // a WRITE whose remote range may still change (it ended unacknowledged)
	Attempts  []Attempt
	Err       error // the cause, may be nil
}

// Attempt is one failed try of a transfer, oldest first in Error.Attempts.
type Attempt struct {
	Transport string
	Rail      string
	Reason    Code
	Err       error
}

// New returns an Error of the given reason with a formatted detail.
func New(reason Code, op, format string, args ...any) *Error {
	return &Error{Op: op, Reason: reason, Detail: fmt.Sprintf(format, args...)}
}

// Is matches the sentinel of the reason and what that sentinel matches.
func (e *Error) Is(target error) bool {
	k := e.Reason.Kind()
	return k != nil && errors.Is(k, target)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }
