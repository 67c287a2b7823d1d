package topology

import (
	"fmt"
	"net/netip"
	"testing"
)

// nics are interfaces "NAME ADDR/LEN", up and physical.
func nics(list ...[2]string) (out []NIC) {
	for i, f := range list {
		out = append(out, NIC{Name: f[0], Index: i + 1, Up: true, Carrier: true, Kind: NICPhysical, Addrs: []netip.Prefix{netip.MustParsePrefix(f[1])}})
	}
	return out
}

func TestPairs(t *testing.T) {
	slow := nics([2]string{"eth0", "10.0.0.1/24"}, [2]string{"eth1", "10.1.0.1/24"})
	slow[0].SpeedMbps, slow[1].SpeedMbps = 1000, 100000
	dead := nics([2]string{"eth0", "10.0.0.1/24"}, [2]string{"eth1", "10.1.0.1/24"})
	dead[1].Carrier = false
	two := nics([2]string{"eth0", "10.0.0.1/24"}, [2]string{"eth1", "10.1.0.1/24"})
	for _, c := range []struct {
		name    string
		nics    []NIC
		remotes []string
		most    int
		want    string
	}{
		{"two networks", two, []string{"10.0.0.2", "10.1.0.2"}, 4, "[eth0>10.0.0.2 eth1>10.1.0.2]"},
		{"the advertised address is first", two, []string{"10.1.0.2", "10.0.0.2"}, 4, "[eth1>10.1.0.2 eth0>10.0.0.2]"},
		{"one network, two interfaces each", nics([2]string{"a", "10.0.0.1/24"}, [2]string{"b", "10.0.0.2/24"}), []string{"10.0.0.8", "10.0.0.9"}, 4, "[a>10.0.0.8 b>10.0.0.9]"},
		{"two interfaces to one", nics([2]string{"a", "10.0.0.1/24"}, [2]string{"b", "10.0.0.2/24"}), []string{"10.0.0.8"}, 4, "[a>10.0.0.8 b>10.0.0.8]"},
		{"one interface to two", nics([2]string{"a", "10.0.0.1/24"}), []string{"10.0.0.8", "10.0.0.9"}, 4, "[a>10.0.0.8 a>10.0.0.9]"},
		{"no more than asked for", nics([2]string{"a", "10.0.0.1/24"}), []string{"10.0.0.7", "10.0.0.8", "10.0.0.9"}, 2, "[a>10.0.0.7 a>10.0.0.8]"},
		{"behind a router", two, []string{"10.8.0.2", "10.9.0.2"}, 4, "[>10.8.0.2 >10.9.0.2]"},
		{"one way", nics([2]string{"eth0", "10.0.0.1/24"}), []string{"10.0.0.2"}, 4, "[]"},
		{"this host", two, []string{"10.0.0.1", "10.1.0.1"}, 4, "[]"},
		{"no carrier", dead, []string{"10.0.0.2", "10.1.0.2"}, 4, "[eth0>10.0.0.2 >10.1.0.2]"},
		{"a slow one is no help", slow, []string{"10.1.0.2"}, 4, "[]"},
		{"link-local", nics([2]string{"eth0", "fe80::1/64"}, [2]string{"eth1", "fd00::1/64"}), []string{"fd00::2"}, 4, "[]"},
		{"nothing", nil, []string{"10.0.0.2"}, 4, "[]"},
	} {
		var remotes []netip.Addr
		for _, r := range c.remotes {
			remotes = append(remotes, netip.MustParseAddr(r))
		}
		got := []string{}
		for _, p := range Pairs(c.nics, remotes, c.most) {
			got = append(got, fmt.Sprintf("%s>%s", p.Interface, p.Remote))
		}
		if fmt.Sprint(got) != c.want {
			t.Errorf("%s: %v, want %s", c.name, got, c.want)
		}
	}
}

func TestOthers(t *testing.T) {
	list := nics([2]string{"eth0", "10.0.0.1/24"}, [2]string{"eth1", "10.1.0.1/24"}, [2]string{"docker0", "172.17.0.1/16"}, [2]string{"eth2", "10.2.0.1/24"},
		[2]string{"eth3", "fe80::1/64"}, [2]string{"eth4", "10.4.0.1/24"})
	list[3].Carrier = false
	list[0].SpeedMbps, list[5].SpeedMbps = 25000, 1000
	list[1].Addrs = append(list[1].Addrs, netip.MustParsePrefix("10.1.0.7/24"))
	routes := []Route{{Interface: "eth0", Gateway: netip.MustParseAddr("10.0.0.254")}}
	best, _, err := Advertise(list, routes, Choice{})
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(Others(list, routes, Choice{}, best, 7)); got != "[10.1.0.1 10.2.0.1]" {
		t.Errorf("besides %s: %s, want one of eth1's and eth2's: the others are a container network, link-local or slow", best, got)
	}
	if got := Others(list, routes, Choice{Interface: "eth0"}, best, 7); len(got) != 0 {
		t.Errorf("with one interface asked for: %v", got)
	}
	if got := Others(list, routes, Choice{}, best, 0); len(got) != 0 {
		t.Errorf("none asked for: %v", got)
	}
}
