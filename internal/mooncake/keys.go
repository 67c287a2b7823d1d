package mooncake

import (
	"math"
	"net"
	"strconv"
	"strings"

	"github.com/tideway-io/tideway/errs"
)

// prefix is what all keys of one cluster begin with, for those who share a
// metadata store without seeing each other. The empty cluster has none of its own.
func prefix(cluster string) string {
	const all = "mooncake/"
	if cluster == "" || strings.HasSuffix(cluster, "/") {
		return all + cluster
	}
	return all + cluster + "/"
}

// DescKey is where a metadata store has a segment's descriptor. A name with a
// slash is a path of its own.
func DescKey(cluster, segment string) string {
	if strings.Contains(segment, "/") {
		return prefix(cluster) + segment
	}
	return prefix(cluster) + "ram/" + segment
}

// AddrKey is where it has the address of the segment's engine.
func AddrKey(cluster, segment string) string { return prefix(cluster) + "rpc_meta/" + segment }

// EncodeAddr returns the JSON of an engine's address, a host:port, as it is kept
// under AddrKey.
func EncodeAddr(addr string) ([]byte, error) {
	host, text, err := net.SplitHostPort(addr)
	port, perr := strconv.ParseUint(text, 10, 16)
	if err != nil || perr != nil {
		return nil, errs.New(errs.Invalid, "encode address", "%q, want host:port", addr)
	}
	p := appendString([]byte(`{"ip_or_host_name":`), host)
	return append(appendUint(append(p, `,"rpc_port":`...), port), '}'), nil
}

// DecodeAddr reads what EncodeAddr writes and returns the host:port.
func DecodeAddr(p []byte) (string, error) {
	var host string
	var port uint64
	c := cursor{p: p}
	c.root(func(key string) {
		switch key {
		case "ip_or_host_name":
			host = c.text()
		case "rpc_port":
			port = c.uint(math.MaxUint16)
		default:
			c.skip()
		}
	})
	if err := c.failed("decode address"); err != nil {
		return "", err
	}
	if host == "" || port == 0 {
		return "", errs.New(errs.Invalid, "decode address", "host %q and port %d, want both", host, port)
	}
	return net.JoinHostPort(host, strconv.FormatUint(port, 10)), nil
}
