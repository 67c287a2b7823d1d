package mooncake

import (
	"errors"
	"testing"

	"github.com/tideway-io/tideway/errs"
)

// TestKeys compares keys with those of Mooncake, byte by byte.
func TestKeys(t *testing.T) {
	for _, c := range []struct{ cluster, name, desc, addr string }{
		{"", "10.0.0.1:15001", "mooncake/ram/10.0.0.1:15001", "mooncake/rpc_meta/10.0.0.1:15001"},
		{"c1", "n", "mooncake/c1/ram/n", "mooncake/c1/rpc_meta/n"},
		{"c1/", "n", "mooncake/c1/ram/n", "mooncake/c1/rpc_meta/n"},
		{"a/b", "n", "mooncake/a/b/ram/n", "mooncake/a/b/rpc_meta/n"},
		{"", "nvmeof/foo", "mooncake/nvmeof/foo", "mooncake/rpc_meta/nvmeof/foo"},
		{"c1", "team/a", "mooncake/c1/team/a", "mooncake/c1/rpc_meta/team/a"},
		{"", "", "mooncake/ram/", "mooncake/rpc_meta/"},
		{"", "[fe80::1%eth0]:15012", "mooncake/ram/[fe80::1%eth0]:15012", "mooncake/rpc_meta/[fe80::1%eth0]:15012"},
	} {
		if d, a := DescKey(c.cluster, c.name), AddrKey(c.cluster, c.name); d != c.desc || a != c.addr {
			t.Errorf("%q %q: %q and %q, want %q and %q", c.cluster, c.name, d, a, c.desc, c.addr)
		}
	}
}

func TestAddr(t *testing.T) {
	for addr, want := range map[string]string{
		"10.0.0.1:15428":     `{"ip_or_host_name":"10.0.0.1","rpc_port":15428}`,
		"[fe80::1%eth0]:1":   `{"ip_or_host_name":"fe80::1%eth0","rpc_port":1}`,
		"node-1.local:65535": `{"ip_or_host_name":"node-1.local","rpc_port":65535}`,
	} {
		p, err := EncodeAddr(addr)
		if err != nil || string(p) != want {
			t.Errorf("%s: %s, %v, want %s", addr, p, err, want)
		}
		if back, err := DecodeAddr(append(p, '\n')); err != nil || back != addr {
			t.Errorf("%s: back %s, %v", addr, back, err)
		}
	}
	for _, addr := range []string{"", "h", "h:65536", "h:x", ":::"} {
		if p, err := EncodeAddr(addr); !errors.Is(err, errs.ErrInvalid) {
			t.Errorf("%q: %s, %v", addr, p, err)
		}
	}
	for _, text := range []string{"", "null", "[]", "{}", `{"rpc_port":1}`, `{"ip_or_host_name":"h"}`, `{"ip_or_host_name":"h","rpc_port":65536}`, `{"ip_or_host_name":1,"rpc_port":1}`, `{"ip_or_host_name":"h","rpc_port":"1"}`} {
		if a, err := DecodeAddr([]byte(text)); err == nil {
			t.Errorf("%s: %s", text, a)
		}
	}
	if a, err := DecodeAddr([]byte(`{"barex_port":2,"ip_or_host_name":"h","rpc_port":1}`)); err != nil || a != "h:1" {
		t.Errorf("%s, %v", a, err)
	}
}

func FuzzDecodeAddr(f *testing.F) {
	f.Add([]byte(`{"ip_or_host_name":"h","rpc_port":1}`))
	f.Add([]byte(`{"rpc_port":-1}`))
	f.Fuzz(func(t *testing.T, p []byte) {
		addr, err := DecodeAddr(p)
		if err != nil {
			return
		}
		q, err := EncodeAddr(addr)
		if err != nil {
			t.Fatal(err)
		}
		if back, err := DecodeAddr(q); err != nil || back != addr {
			t.Fatalf("%q: %q, %v", addr, back, err)
		}
	})
}
