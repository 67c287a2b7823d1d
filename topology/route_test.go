package topology

import (
	"net/netip"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

func TestDefaultRoutesOfServer(t *testing.T) {
	_, proc := hostTree(t, "server")
	got, err := DefaultRoutes(proc)
	if err != nil {
		t.Fatal(err)
	}
	want := []Route{
		{"bond0", netip.MustParseAddr("10.0.0.1"), 100},
		{"bond0.100", netip.MustParseAddr("192.168.100.1"), 400},
		{"bond0", netip.MustParseAddr("fe80::ff:fe00:1"), 1024},
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("default routes (-want +got):\n%s", diff)
	}
}

func TestDefaultRoutesNameTheBadLine(t *testing.T) {
	const good6 = "00000000000000000000000000000000 00 00000000000000000000000000000000 00 fe800000000000000000000000000001 00000400 00000002 00000000 00000003 eth0"
	if r, err := DefaultRoutes(fstest.MapFS{}); r != nil || err != nil {
		t.Errorf("a host without tables: %v, %v; want no routes", r, err)
	}
	for _, c := range []struct{ file, line, says string }{
		{"net/route", "eth0 00000000 01000000", "3 fields"},
		{"net/route", "eth0 00000000 zz 0003 0 0 0 00000000", "gateway"},
		{"net/route", "eth0 00000000 01000000 g 0 0 0 00000000", "flags"},
		{"net/route", "eth0 00000000 01000000 0003 0 0 -1 00000000", "metric"},
		{"net/ipv6_route", "eth0", "1 fields"},
		{"net/ipv6_route", strings.Replace(good6, "00000400", "4g", 1), "metric"},
		{"net/ipv6_route", strings.Replace(good6, "00000003", "x", 1), "flags"},
		{"net/ipv6_route", strings.Replace(good6, "fe80", "f", 1), "next hop"},
	} {
		_, err := DefaultRoutes(fstest.MapFS{c.file: {Data: []byte(c.line + "\n")}})
		if err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), c.file) {
			t.Errorf("%s %q: %v, want an error with the file and %q", c.file, c.line, err, c.says)
		}
	}
}

func FuzzDefaultRoutes(f *testing.F) {
	f.Add("Iface Destination\neth0 00000000 0100000A 0003 0 0 100 00000000 0 0 0\n", "")
	f.Add("", "00000000000000000000000000000000 00 00000000000000000000000000000000 00 fe800000000000000000000000000001 00000400 00000002 00000000 00000003 eth0\n")
	f.Fuzz(func(t *testing.T, v4, v6 string) {
		routes, err := DefaultRoutes(fstest.MapFS{"net/route": {Data: []byte(v4)}, "net/ipv6_route": {Data: []byte(v6)}})
		if err != nil && routes != nil {
			t.Error("routes and an error")
		}
		for i, r := range routes {
			if r.Interface == "" || strings.ContainsAny(r.Interface, " \t\n") || !r.Gateway.IsValid() {
				t.Errorf("route %+v", r)
			}
			if i > 0 && r.Gateway.Is4() && !routes[i-1].Gateway.Is4() {
				t.Error("IPv4 after IPv6")
			}
		}
	})
}
