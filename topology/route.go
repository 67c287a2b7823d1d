package topology

import (
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Route is one default route of this host.
type Route struct {
	Interface string
	Gateway   netip.Addr // 0.0.0.0 or :: when the route has none (point to point)
	Metric    uint32     // the lowest wins
}

// The flags of a route that matter here, from the kernel's route.h.
const (
	routeUp     = 0x1
	routeReject = 0x200
)

// DefaultRoutes lists the default routes, IPv4 before IPv6 and the lowest
// metric first within each. proc is the tree of /proc (os.DirFS("/proc")); a
// table that is not there has no routes, a malformed line is an error.
func DefaultRoutes(proc fs.FS) ([]Route, error) {
	v4, err := readRoutes(proc, "net/route", parseRoute4)
	if err != nil {
		return nil, err
	}
	v6, err := readRoutes(proc, "net/ipv6_route", parseRoute6)
	if err != nil {
		return nil, err
	}
	return append(v4, v6...), nil
}

func readRoutes(proc fs.FS, name string, parse func(fields []string) (Route, bool, error)) ([]Route, error) {
	b, err := fs.ReadFile(proc, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read routes: %w", err)
	}
	var routes []Route
	for line := range strings.Lines(string(b)) {
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] == "Iface" {
			continue
		}
		r, ok, err := parse(fields)
		if err != nil {
			return nil, fmt.Errorf("%s: line %q: %w", name, strings.TrimSpace(line), err)
		}
		if ok {
			routes = append(routes, r)
		}
	}
	slices.SortStableFunc(routes, func(a, b Route) int { return cmp.Compare(a.Metric, b.Metric) })
	return routes, nil
}

// parseRoute4 reads a line of /proc/net/route: interface, destination, gateway,
// flags, two counters, metric, mask, ... with addresses as the hexadecimal of a
// 32-bit word whose bytes in memory are the address.
func parseRoute4(f []string) (Route, bool, error) {
	if len(f) < 8 {
		return Route{}, false, fmt.Errorf("%d fields, want at least 8", len(f))
	}
	flags, err := strconv.ParseUint(f[3], 16, 32)
	if err != nil {
		return Route{}, false, fmt.Errorf("flags: %w", err)
	}
	gateway, err := strconv.ParseUint(f[2], 16, 32)
	if err != nil {
		return Route{}, false, fmt.Errorf("gateway: %w", err)
	}
	metric, err := strconv.ParseUint(f[6], 10, 32)
	if err != nil {
		return Route{}, false, fmt.Errorf("metric: %w", err)
	}
	var hop [4]byte
	binary.NativeEndian.PutUint32(hop[:], uint32(gateway))
	r := Route{Interface: f[0], Gateway: netip.AddrFrom4(hop), Metric: uint32(metric)}
	usable := flags&routeUp != 0 && flags&routeReject == 0
	return r, usable && f[1] == "00000000" && f[7] == "00000000", nil
}

// parseRoute6 reads a line of /proc/net/ipv6_route: destination, its prefix
// length, source, its prefix length, next hop, metric, two counters, flags,
// interface; all hexadecimal, addresses in network order.
func parseRoute6(f []string) (Route, bool, error) {
	if len(f) < 10 {
		return Route{}, false, fmt.Errorf("%d fields, want at least 10", len(f))
	}
	metric, err := strconv.ParseUint(f[5], 16, 32)
	if err != nil {
		return Route{}, false, fmt.Errorf("metric: %w", err)
	}
	flags, err := strconv.ParseUint(f[8], 16, 32)
	if err != nil {
		return Route{}, false, fmt.Errorf("flags: %w", err)
	}
	hop, err := hex.DecodeString(f[4])
	if err != nil || len(hop) != 16 {
		return Route{}, false, fmt.Errorf("next hop %q: want 32 hexadecimal digits", f[4])
	}
	r := Route{Interface: f[9], Gateway: netip.AddrFrom16([16]byte(hop)), Metric: uint32(metric)}
	usable := flags&routeUp != 0 && flags&routeReject == 0
	return r, usable && f[0] == strings.Repeat("0", 32) && f[1] == "00" && f[9] != "lo", nil
}
