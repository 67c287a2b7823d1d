package main

import (
	"errors"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/tideway-io/tideway/segment"
)

// place is a parsed ADDR/NAME[@OFFSET[:LENGTH]].
type place struct {
	addr      string // host:port as given
	name      string // buffer, may be empty where a command allows it
	offset    uint64
	length    uint64
	hasOffset bool
	hasLength bool
}

// parsePlace reads ADDR/NAME with an optional range.
func parsePlace(s string) (place, error) {
	if err := noScheme(s); err != nil {
		return place{}, err
	}
	addr, rest, ok := segment.SplitTarget(s)
	if !ok || rest == "" {
		return place{}, usagef("%q has no buffer name: want ADDR/NAME, such as 127.0.0.1:7000/data", s)
	}
	p := place{}
	var err error
	if p.addr, err = parseAddr(addr); err != nil {
		return place{}, err
	}
	return parseBuffer(p, s, rest)
}

// parseBuffer reads NAME with an optional range into p; whole is for messages.
func parseBuffer(p place, whole, rest string) (place, error) {
	name, span, ranged := cutLast(rest, '@')
	p.name = name
	if err := checkName(name); err != nil {
		return place{}, usagef("%q: %v", whole, err)
	}
	if ranged {
		if err := p.parseRange(span); err != nil {
			return place{}, usagef("%q: %v", whole, err)
		}
	}
	return p, nil
}

// swapped is err, unless the other argument is the place that was looked for.
func swapped(err error, other, order string) error {
	if _, e := parsePlace(other); e == nil {
		return usagef("the arguments are swapped: %s", order)
	}
	return err
}

// parseRange reads OFFSET[:LENGTH].
func (p *place) parseRange(s string) error {
	off, length, hasLength := strings.Cut(s, ":")
	var err error
	if p.offset, err = parseSize(off); err != nil {
		return err
	}
	p.hasOffset, p.hasLength = true, hasLength
	if !hasLength {
		return nil
	}
	if p.length, err = parseSize(length); err != nil {
		return err
	}
	if p.offset+p.length < p.offset {
		return errors.New("offset and length exceed 64 bits")
	}
	return nil
}

func cutLast(s string, sep byte) (before, after string, found bool) {
	i := strings.LastIndexByte(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+1:], true
}

// checkName says what is wrong with the name of a buffer, if anything is.
func checkName(name string) error {
	switch {
	case name == "":
		return errors.New("the buffer name is empty")
	case len(name) > 255:
		return errors.New("the buffer name is longer than 255 bytes")
	case strings.ContainsAny(name, "@= \t\r\n"):
		return errors.New("a buffer name may not contain @, = or white space")
	}
	return nil
}

// parseAddr checks a host:port. The host may be a name, an IPv4 address or a
// bracketed IPv6 address with or without a zone.
func parseAddr(s string) (string, error) {
	if err := noScheme(s); err != nil {
		return "", err
	}
	if a, err := netip.ParseAddr(s); err == nil {
		return "", usagef("address %q has no port: want %s%s", s, net.JoinHostPort(a.String(), "PORT"), bracketHint(s))
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return "", usagef("address %q: want HOST:PORT or [IPV6]:PORT%s", s, bracketHint(s))
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "", usagef("address %q: port %q is not a number from 1 to 65535", s, port)
	}
	if host == "" {
		return "", usagef("address %q has no host; did you mean 127.0.0.1:%s?", s, port)
	}
	return s, nil
}

// noScheme refuses addresses that look like URLs.
func noScheme(s string) error {
	if i := strings.Index(s, "://"); i >= 0 {
		return usagef("address %q: leave out %s", s, s[:i+3])
	}
	return nil
}

// bracketHint guesses what an IPv6 address without brackets was meant to be.
func bracketHint(s string) string {
	host, port, ok := cutLast(s, ':')
	if a, err := netip.ParseAddr(host); ok && err == nil && a.Is6() {
		return "; did you mean " + net.JoinHostPort(host, port) + "?"
	}
	return ""
}

// parseSegmentPlace reads ADDR or ADDR/NAME.
func parseSegmentPlace(s string) (place, error) {
	if err := noScheme(s); err != nil {
		return place{}, err
	}
	if addr, rest, ok := segment.SplitTarget(s); !ok || rest == "" {
		a, err := parseAddr(addr)
		return place{addr: a}, err
	}
	return parsePlace(s)
}
