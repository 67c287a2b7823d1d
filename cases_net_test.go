package tideway_test

import (
	"net"
	"strings"
	"testing"

	"github.com/tideway-io/tideway/internal/testenv"
	"github.com/tideway-io/tideway/segment"
)

// host18 has what makes engines advertise the wrong address: container networks
// before the rest, an interface without a carrier, a slow one with the default
// route and a fast one without.
func host18(t *testing.T) (a, b *testenv.Host) {
	lab := testenv.NewLab(t)
	a, b = lab.Host("a"), lab.Host("b")
	a.Dummy("docker0", "172.17.0.1/16")
	a.Dummy("flannel.1", "10.244.0.0/32")
	a.Dummy("ens9", "10.9.0.1/24").Down()
	slow := lab.Link(a, b, "10.0.0.1/24", "10.0.0.2/24")
	lab.Link(a, b, "10.1.0.1/24", "10.1.0.2/24")
	slow.Rate(100e6, 10e6)
	a.Route("default", "via", "10.0.0.2")
	return a, b
}

func TestB18AdvertisedAddress(t *testing.T) {
	testenv.NeedRoot(t)
	a, b := host18(t)
	key := testenv.KeyOf(18, 1)
	kv := []targetBuffer{{Name: "kv", Size: 1 << 16, Access: segment.RemoteRead, Key: key}}
	peer := startIn(t, b, spec{})
	for _, c := range []struct {
		name   string
		cfg    targetConfig
		want   string
		reason string
	}{
		{"wildcard", targetConfig{Listen: "0.0.0.0:0"}, "10.0.0.1", "10.0.0.1 of eth0: it has the default route; passed over 10.1.0.1 of eth1 ("},
		{"wildcard of both families", targetConfig{Listen: "[::]:0"}, "10.0.0.1", "it has the default route"},
		{"interface", targetConfig{Listen: "0.0.0.0:0", Interface: "eth1"}, "10.1.0.1", "only this interface was asked for"},
		{"advertise", targetConfig{Listen: "0.0.0.0:0", Advertise: "10.1.0.1"}, "10.1.0.1", "asked for"},
		{"bound", targetConfig{Listen: "10.1.0.1:0"}, "10.1.0.1", "the address that is bound"},
	} {
		t.Run(c.name, func(t *testing.T) {
			tg := startIn(t, a, spec{Config: c.cfg, Buffers: kv})
			host, _, err := net.SplitHostPort(tg.Addr)
			if err != nil || host != c.want {
				t.Errorf("%s is advertised, want %s: %s", tg.Addr, c.want, tg.ask("reason"))
			}
			if got := tg.ask("reason"); !strings.Contains(got, c.reason) {
				t.Errorf("reason %q, want %q in it", got, c.reason)
			}
			peer.must("pull %s kv 18 1 %d", tg.Addr, 1<<16)
		})
	}
}

func TestB18OnlyWhenAsked(t *testing.T) {
	testenv.NeedRoot(t)
	a, b := host18(t)
	tg := startIn(t, a, spec{Config: targetConfig{Listen: "0.0.0.0:0", Interface: "docker0"}})
	if host, port, _ := net.SplitHostPort(tg.Addr); host != "172.17.0.1" || port == "0" {
		t.Errorf("docker0 was asked for, %s is advertised", tg.Addr)
	}
	reason := tg.ask("reason")
	if !strings.Contains(reason, "docker0") {
		t.Errorf("reason %q", reason)
	}
	local := startIn(t, a, spec{})
	if host, _, _ := net.SplitHostPort(local.Addr); host != "127.0.0.1" {
		t.Errorf("without a listener asked for, %s is advertised", local.Addr)
	}
	// What carries nothing is better than nothing, and loopback is not.
	alone := startIn(t, b, spec{Config: targetConfig{Listen: "0.0.0.0:0"}})
	if host, _, _ := net.SplitHostPort(alone.Addr); host != "10.0.0.2" && host != "10.1.0.2" {
		t.Errorf("on a host without a default route %s is advertised", alone.Addr)
	}
}

func TestB18SelfDial(t *testing.T) {
	testenv.NeedRoot(t)
	a, _ := host18(t)
	tg := startIn(t, a, spec{Config: targetConfig{Listen: "0.0.0.0:0"}})
	_, port, _ := net.SplitHostPort(tg.Addr)
	tg.must("open %s", tg.Addr) // its own name is its own segment
	for _, host := range []string{"127.0.0.1", "10.1.0.1", "172.17.0.1", "0.0.0.0"} {
		if got := tg.ask("open %s:%s", host, port); !strings.Contains(got, "self_dial") && !strings.Contains(got, "is this one") {
			t.Errorf("oneself at %s: %s", host, got)
		}
	}
}
