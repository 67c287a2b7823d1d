package listen

import (
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/tideway-io/tideway/errs"
)

// ParseAddr splits an address as people write it: "host", "host:port", ":port",
// "10.0.0.1", "::1", "[::1]", "[::1]:port", "fe80::1%eth0". A missing port is
// otherwise. The host may be empty; a literal is returned in its shortest form,
// never in brackets.
func ParseAddr(s string, otherwise uint16) (host string, port uint16, err error) {
	host, text := split(s)
	port = otherwise
	if text != "" {
		n, err := strconv.ParseUint(text, 10, 16)
		if err != nil {
			return "", 0, errs.New(errs.Invalid, "parse address", "%q: port %q, want 0 to 65535", s, text)
		}
		port = uint16(n)
	}
	a, err := netip.ParseAddr(host)
	if err == nil && !strings.ContainsAny(a.Zone(), odd) {
		return a.String(), port, nil
	}
	if err == nil || strings.ContainsAny(host, odd) || len(host) > 253 {
		return "", 0, errs.New(errs.Invalid, "parse address", "%q: want host, host:port, an IPv4 address, or an IPv6 address, in brackets where a port follows", s)
	}
	return host, port, nil
}

// odd are the characters that neither a host's nor a zone's name has.
const odd = ":[]/@% \t\r\n"

// split cuts off the port. What is an address as it stands has none, so that
// "fd00::1" is not host "fd00:" with port 1.
func split(s string) (host, port string) {
	if _, err := netip.ParseAddr(s); err == nil {
		return s, ""
	}
	if inner, rest, ok := strings.Cut(strings.TrimPrefix(s, "["), "]"); ok && strings.HasPrefix(s, "[") && (rest == "" || rest[0] == ':') {
		if _, err := netip.ParseAddr(inner); err != nil {
			return s, "" // brackets are for addresses; ParseAddr says so
		}
		return inner, strings.TrimPrefix(rest, ":")
	}
	if i := strings.LastIndexByte(s, ':'); i >= 0 {
		return s[:i], s[i+1:]
	}
	return s, ""
}

// JoinAddr is the inverse: an IPv6 literal gets brackets.
func JoinAddr(host string, port uint16) string {
	return net.JoinHostPort(host, strconv.Itoa(int(port)))
}
