package mooncake

import (
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/tideway-io/tideway/segment"
)

// TransportName is the transport that joins Mooncake's protocol "tcp". It is
// what DecodeDesc gives such a peer as its transports.
const TransportName = "mooncake"

// The first and the last port that an engine of Mooncake's draws from, and that
// of a name that has none.
const (
	MinPort     = 15000
	MaxPort     = 17000
	DefaultPort = 12001
)

// ValidPorts reports whether engines of Mooncake's accept a range of ports: both
// ends outside of what is reserved or ephemeral, in order.
func ValidPorts(lo, hi int) bool {
	ok := func(p int) bool { return p >= 1024 && p <= 32767 || p >= 61000 && p <= 65535 }
	return ok(lo) && ok(hi) && lo <= hi
}

// SplitName cuts a segment's name into host and port as Mooncake does: an IPv6
// literal may have brackets or none, and else the last colon separates. A port
// that is missing or none is DefaultPort.
func SplitName(s string) (host string, port uint16) {
	if a, err := netip.ParseAddr(s); err == nil && !strings.Contains(a.Zone(), ":") {
		return s, DefaultPort
	}
	if inner, rest, ok := strings.Cut(strings.TrimPrefix(s, "["), "]"); ok && s[0] == '[' {
		if _, err := netip.ParseAddr(inner); err == nil && (rest == "" || rest[0] == ':') {
			return inner, portOr(strings.TrimPrefix(rest, ":"))
		}
	}
	i := strings.LastIndexByte(s, ':')
	if i < 0 {
		return s, DefaultPort
	}
	return s[:i], portOr(s[i+1:])
}

func portOr(s string) uint16 {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 {
		return DefaultPort
	}
	return uint16(n)
}

// DialName is the host:port of a name's handshake daemon.
func DialName(s string) string {
	host, port := SplitName(s)
	return net.JoinHostPort(host, strconv.Itoa(int(port)))
}

// SetDaemons notes where the owner of a Mooncake segment may be dialled, best
// first. It is called before the descriptor is shared.
func SetDaemons(d *segment.Desc, addrs ...string) {
	d.Attrs = map[string][]byte{TransportName: []byte(strings.Join(addrs, " "))}
}

// Daemons returns what SetDaemons noted, or else what the segment's name says.
func Daemons(d *segment.Desc) []string {
	if list := strings.Fields(string(d.Attrs[TransportName])); len(list) > 0 {
		return list
	}
	return []string{DialName(string(d.Name))}
}

// PeerAddrs are the daemon addresses of a segment that was opened peer to peer
// as asked and publishes itself as published. Real engines dial what is published.
// Where that is a loopback address and what was asked for is none, the peer means
// itself, and what was asked for comes first.
func PeerAddrs(published, asked string) []string {
	a, b := DialName(published), DialName(asked)
	switch {
	case published == "" || a == b:
		return []string{b}
	case loopback(a) && !loopback(b):
		return []string{b, a}
	}
	return []string{a, b}
}

func loopback(hostport string) bool {
	host, _ := SplitName(hostport)
	a, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && a.IsLoopback()
}
