package errs

import (
	"net"
	"slices"
	"strings"
)

// Error prints the fields that are set: "op segment at peer over transport
// (stage): reason: detail: cause". The cause leaves out what was said before it.
func (e *Error) Error() string {
	var s said
	return s.print(e)
}

// said is what the errors around one have printed.
type said struct {
	op, segment, peer, transport, rail, stage, detail string
	reason                                            Code
	inDoubt                                           bool
}

// print returns the text of e without what was said, and notes what e says.
func (s *said) print(e *Error) string {
	var parts []string
	add := func(text string) {
		if text != "" {
			parts = append(parts, text)
		}
	}
	add(s.head(e))
	if e.Reason != OK && e.Reason != s.reason {
		add(strings.ReplaceAll(e.Reason.String(), "_", " "))
		s.reason = e.Reason
	}
	if e.Detail != s.detail {
		add(e.Detail)
		s.detail = e.Detail
	}
	doubt := e.InDoubt && !s.inDoubt
	s.inDoubt = s.inDoubt || doubt
	if e.Err != nil {
		add(s.cause(e.Err))
	}
	text := strings.Join(parts, ": ")
	if doubt {
		text += " (in doubt: the remote range may still change)"
	}
	return text
}

// head says what was attempted and where.
func (s *said) head(e *Error) string {
	var where []string
	part := func(known *string, before, now, after string) {
		if now == "" || now == *known {
			return
		}
		*known = now
		where = append(where, before+now+after)
	}
	if !names(s.segment, e.Segment) {
		part(&s.segment, "", e.Segment, "")
	}
	if !names(s.segment, e.Peer) { // peer to peer, a segment's name is its address
		part(&s.peer, "at ", e.Peer, "")
	}
	part(&s.transport, "over ", e.Transport, "")
	part(&s.rail, "on ", e.Rail, "")
	part(&s.stage, "(", e.Stage, ")")
	if e.Op != "" && (e.Op != s.op || len(where) > 0) {
		where = append([]string{e.Op}, where...)
	}
	s.op = e.Op
	return strings.Join(where, " ")
}

// names reports whether segment, which may have a buffer's name behind it, names
// place.
func names(segment, place string) bool {
	rest, found := strings.CutPrefix(segment, place)
	return place != "" && found && (rest == "" || rest[0] == '/')
}

// cause returns the text of what is behind an Error, empty when that is said.
func (s *said) cause(err error) string {
	if err == s.reason.Kind() {
		return ""
	}
	switch c := err.(type) { // not errors.As: a wrapper around it has a text of its own
	case *Error:
		return s.print(c)
	case *net.OpError:
		if c.Addr != nil && (c.Addr.String() == s.peer || names(s.segment, c.Addr.String())) {
			return c.Err.Error()
		}
	case interface{ Unwrap() []error }:
		var texts []string
		for _, one := range c.Unwrap() {
			before := *s
			if text := before.cause(one); text != "" && !slices.Contains(texts, text) {
				texts = append(texts, text)
			}
		}
		return strings.Join(texts, "; ")
	}
	return err.Error()
}
