package mooncake

import (
	"slices"
	"testing"

	"github.com/tideway-io/tideway/segment"
)

func TestSplitName(t *testing.T) {
	for in, want := range map[string]struct {
		host string
		port uint16
	}{
		"10.0.0.1:15001": {"10.0.0.1", 15001}, "host": {"host", 12001}, "host:": {"host", 12001}, "host:x": {"host", 12001},
		"host:70000": {"host", 12001}, "host:0": {"host", 12001}, "a:b:99": {"a:b", 99},
		"[::1]:99": {"::1", 99}, "[::1]": {"::1", 12001}, "::1": {"::1", 12001}, "fe80::1%eth0": {"fe80::1%eth0", 12001},
		"[fe80::1%eth0]:15012": {"fe80::1%eth0", 15012}, "fe80::1%eth0:15012": {"fe80::1%eth0", 15012},
		"[name]:7": {"[name]", 7}, "": {"", 12001}, "[": {"[", 12001}, "[::1]x:5": {"[::1]x", 5},
	} {
		if host, port := SplitName(in); host != want.host || port != want.port {
			t.Errorf("%q: %q %d, want %+v", in, host, port, want)
		}
	}
	if got := DialName("::1"); got != "[::1]:12001" {
		t.Error(got)
	}
}

func TestValidPorts(t *testing.T) {
	for _, c := range []struct {
		lo, hi int
		ok     bool
	}{{15000, 17000, true}, {1024, 1024, true}, {32767, 61000, true}, {61000, 65535, true}, {1023, 2000, false},
		{20000, 32768, false}, {60999, 61001, false}, {40000, 40010, false}, {2000, 1999, false}, {-1, 5, false}, {65535, 65536, false}} {
		if got := ValidPorts(c.lo, c.hi); got != c.ok {
			t.Errorf("%d to %d: %v", c.lo, c.hi, got)
		}
	}
}

// TestPeerAddrs: what a peer publishes is dialled, unless it can only mean itself.
func TestPeerAddrs(t *testing.T) {
	for _, c := range []struct {
		published, asked string
		want             []string
	}{
		{"10.0.0.1:15001", "10.0.0.1:15001", []string{"10.0.0.1:15001"}},
		{"127.0.0.3:15001", "127.0.0.1:15001", []string{"127.0.0.3:15001", "127.0.0.1:15001"}},
		{"alias:15001", "10.0.0.1:15001", []string{"alias:15001", "10.0.0.1:15001"}},
		{"localhost:15001", "10.0.0.1:15001", []string{"10.0.0.1:15001", "localhost:15001"}},
		{"[::1]:15001", "[fd00::1]:15001", []string{"[fd00::1]:15001", "[::1]:15001"}},
		{"", "10.0.0.1:15001", []string{"10.0.0.1:15001"}},
	} {
		got := PeerAddrs(c.published, c.asked)
		if !slices.Equal(got, c.want) {
			t.Errorf("%+v: %v", c, got)
		}
		d := &segment.Desc{Name: segment.Name(c.published)}
		SetDaemons(d, got...)
		if back := Daemons(d); !slices.Equal(back, got) {
			t.Errorf("%v came back as %v", got, back)
		}
	}
	if got := Daemons(&segment.Desc{Name: "h:1"}); !slices.Equal(got, []string{"h:1"}) {
		t.Error(got)
	}
}
