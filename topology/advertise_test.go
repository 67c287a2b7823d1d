package topology

import (
	"net/netip"
	"strings"
	"testing"
)

func nic(name string, kind NICKind, addrs ...string) NIC {
	n := NIC{Name: name, Up: true, Carrier: true, Kind: kind, Loopback: kind == NICLoopback}
	for _, a := range addrs {
		n.Addrs = append(n.Addrs, netip.MustParsePrefix(a))
	}
	return n
}

func off(n NIC) NIC { n.Carrier = false; return n }

func down(n NIC) NIC { n.Up = false; return n }

func via(iface, gateway string, metric uint32) Route {
	return Route{iface, netip.MustParseAddr(gateway), metric}
}

func TestAdvertise(t *testing.T) {
	lo := nic("lo", NICLoopback, "127.0.0.1/8", "::1/128")
	docker := nic("docker0", NICBridge, "172.17.0.1/16")
	flannel := nic("flannel.1", NICVXLAN, "10.244.0.0/32")
	eth0 := nic("eth0", NICPhysical, "10.0.0.5/24", "fd00::5/64", "fe80::5/64")
	eth1 := nic("eth1", NICPhysical, "10.1.0.5/24")
	dead := off(nic("eth2", NICPhysical, "10.2.0.5/24"))
	toEth0 := []Route{via("eth0", "10.0.0.1", 0), via("eth0", "fe80::1", 1024)}
	for _, c := range []struct {
		name   string
		nics   []NIC
		routes []Route
		choice Choice
		want   string // empty: an error
		reason string
	}{
		{"default route wins over all others", []NIC{lo, docker, flannel, dead, eth1, eth0}, toEth0, Choice{}, "10.0.0.5", "it has the default route"},
		{"the lower metric wins", []NIC{lo, eth0, eth1}, []Route{via("eth1", "10.1.0.1", 50), via("eth0", "10.0.0.1", 100)}, Choice{}, "10.1.0.5", "default route"},
		{"a faster one without it does not", []NIC{lo, eth1, eth0}, toEth0, Choice{}, "10.0.0.5", "passed over 10.1.0.5 of eth1 (no default route)"},
		{"no default route: a device before a bridge", []NIC{lo, docker, flannel, eth1}, nil, Choice{}, "10.1.0.5", "container network"},
		{"default route without carrier", []NIC{lo, off(eth0), eth1}, toEth0, Choice{}, "10.1.0.5", "10.0.0.5 of eth0 (no carrier)"},
		{"a container's veth has the default route", []NIC{lo, nic("eth0", NICVeth, "10.244.1.7/24")}, []Route{via("eth0", "10.244.1.1", 0)}, Choice{}, "10.244.1.7", "default route"},
		{"a hypervisor's bridge has it", []NIC{lo, nic("br0", NICBridge, "10.9.0.2/24"), docker}, []Route{via("br0", "10.9.0.1", 0)}, Choice{}, "10.9.0.2", "default route"},
		{"veth before docker", []NIC{lo, docker, nic("a0", NICVeth, "10.7.0.1/24")}, nil, Choice{}, "10.7.0.1", "virtual"},
		{"docker when nothing else", []NIC{lo, docker}, nil, Choice{}, "172.17.0.1", "container network"},
		{"no carrier before loopback", []NIC{lo, dead}, nil, Choice{}, "10.2.0.5", "no carrier"},
		{"loopback when nothing else", []NIC{lo, down(eth0)}, toEth0, Choice{}, "127.0.0.1", "only from this host"},
		{"the gateway's subnet", []NIC{nic("eth0", NICPhysical, "192.168.9.9/24", "10.0.0.5/24")}, toEth0, Choice{}, "10.0.0.5", ""},
		{"IPv6 only", []NIC{lo, eth0}, toEth0, Choice{No4: true}, "fd00::5", ""},
		{"link-local after any global", []NIC{nic("eth0", NICPhysical, "fe80::5/64"), docker}, toEth0, Choice{}, "172.17.0.1", ""},
		{"link-local has a zone", []NIC{lo, nic("eth0", NICPhysical, "fe80::5/64")}, toEth0, Choice{}, "fe80::5%eth0", "link-local"},
		{"IPv4 link-local too", []NIC{nic("eth0", NICPhysical, "169.254.1.1/16", "fd00::5/64")}, toEth0, Choice{}, "fd00::5", ""},
		{"interface asked for", []NIC{lo, eth0, eth1}, toEth0, Choice{Interface: "eth1"}, "10.1.0.5", "only this interface"},
		{"even docker", []NIC{lo, eth0, docker}, toEth0, Choice{Interface: "docker0"}, "172.17.0.1", "only this interface"},
		{"even loopback", []NIC{lo, eth0}, toEth0, Choice{Interface: "lo", No4: true}, "::1", ""},
		{"unknown interface", []NIC{lo, eth0}, toEth0, Choice{Interface: "eth9"}, "", `no interface "eth9" (there are: eth0, lo)`},
		{"interface without the family", []NIC{lo, eth1}, nil, Choice{Interface: "eth1", No4: true}, "", "no address of the family"},
		{"nothing at all", []NIC{down(eth0)}, nil, Choice{}, "", "no interface has an address"},
	} {
		t.Run(c.name, func(t *testing.T) {
			addr, reason, err := Advertise(c.nics, c.routes, c.choice)
			if err != nil {
				if c.want != "" || !strings.Contains(err.Error(), c.reason) {
					t.Fatal(err)
				}
				return
			}
			if addr.String() != c.want || !strings.Contains(reason, c.reason) {
				t.Errorf("%s because %q, want %s because %q", addr, reason, c.want, c.reason)
			}
		})
	}
}

func TestAdvertiseReasonIsBounded(t *testing.T) {
	var nics []NIC
	for i := range 100 {
		nics = append(nics, nic("eth"+string(rune('A'+i)), NICPhysical, "10.0.0.5/24"))
	}
	if _, reason, err := Advertise(nics, nil, Choice{}); err != nil || len(reason) > 1000 || !strings.Contains(reason, "and others") {
		t.Errorf("%q, %v", reason, err)
	}
}
