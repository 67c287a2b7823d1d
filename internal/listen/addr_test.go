package listen

import (
	"errors"
	"strings"
	"testing"

	"github.com/tideway-io/tideway/errs"
)

func TestParseAddr(t *testing.T) {
	for _, c := range []struct {
		in, host string
		port     uint16
		bad      bool
	}{
		{in: "", port: 7}, {in: ":0"}, {in: ":80", port: 80},
		{in: "node17", host: "node17", port: 7}, {in: "node17:80", host: "node17", port: 80}, {in: "node17:", host: "node17", port: 7},
		{in: "10.0.0.1", host: "10.0.0.1", port: 7}, {in: "10.0.0.1:65535", host: "10.0.0.1", port: 65535},
		{in: "::1", host: "::1", port: 7}, {in: "[::1]", host: "::1", port: 7}, {in: "[::1]:80", host: "::1", port: 80},
		{in: "fd00::1", host: "fd00::1", port: 7}, {in: "[fd00::1]:12345", host: "fd00::1", port: 12345}, {in: "FD00:0:0::1", host: "fd00::1", port: 7},
		{in: "fe80::1%lo", host: "fe80::1%lo", port: 7}, {in: "[fe80::1%eth0.7]:80", host: "fe80::1%eth0.7", port: 80}, {in: "::", host: "::", port: 7},
		{in: "[::]:0", host: "::"},
		{in: "::1:65536:", bad: true}, {in: "a:b:80", bad: true}, {in: "[::1", bad: true}, {in: "[::1]80", bad: true}, {in: "[node]:80", bad: true},
		{in: "node:65536", bad: true}, {in: "node:-1", bad: true}, {in: "node:http", bad: true}, {in: "no de:1", bad: true}, {in: "a/b:1", bad: true},
		{in: strings.Repeat("n", 254), bad: true},
	} {
		host, port, err := ParseAddr(c.in, 7)
		if c.bad {
			if !errors.Is(err, errs.ErrInvalid) {
				t.Errorf("%q: %q %d %v, want invalid", c.in, host, port, err)
			}
			continue
		}
		if err != nil || host != c.host || port != c.port {
			t.Errorf("%q: %q %d %v, want %q %d", c.in, host, port, err, c.host, c.port)
		}
		if again, p, err := ParseAddr(JoinAddr(host, port), 7); err != nil || again != host || p != port {
			t.Errorf("%q joined is %q, which is %q %d %v", c.in, JoinAddr(host, port), again, p, err)
		}
	}
}

func FuzzParseAddr(f *testing.F) {
	for _, s := range []string{"[fe80::1%lo]:80", "::1", "node:1", "[", "]:", ":"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		host, port, err := ParseAddr(s, 7)
		if err != nil {
			return
		}
		if again, p, err := ParseAddr(JoinAddr(host, port), 9); err != nil || again != host || p != port {
			t.Fatalf("%q is %q %d; joined %q is %q %d, %v", s, host, port, JoinAddr(host, port), again, p, err)
		}
	})
}
