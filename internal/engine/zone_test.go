package engine

import "testing"

func TestZoned(t *testing.T) {
	for _, c := range []struct{ addr, asked, want string }{
		{"[fe80::b%eth0]:7", "[fe80::b%veth1]:7", "[fe80::b%veth1]:7"},
		{"[fe80::b]:7", "[fe80::c%veth1]:8", "[fe80::b%veth1]:7"},
		{"[fe80::b%eth0]:7", "[fd00::1]:7", "[fe80::b%eth0]:7"},
		{"[fe80::b%eth0]:7", "node:7", "[fe80::b%eth0]:7"},
		{"[fd00::b]:7", "[fe80::b%veth1]:7", "[fd00::b]:7"},
		{"10.0.0.1:7", "[fe80::b%veth1]:7", "10.0.0.1:7"},
		{"node:7", "[fe80::b%veth1]:7", "node:7"},
		{"", "[fe80::b%veth1]:7", ""},
	} {
		if got := zoned(c.addr, c.asked); got != c.want {
			t.Errorf("%s asked at %s: %s, want %s", c.addr, c.asked, got, c.want)
		}
	}
}
