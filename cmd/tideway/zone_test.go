package main

import (
	"path/filepath"
	"testing"

	"github.com/tideway-io/tideway/internal/testenv"
)

// Link-local IPv6 addresses have a zone, which is each host's own name of its
// device: what a server calls eth0 is eth1 at the client.
func TestZones(t *testing.T) {
	lab := testenv.NewLab(t)
	client, other, server := lab.Host("client"), lab.Host("other"), lab.Host("server")
	lab.Link(client, other, "10.77.0.1/24", "10.77.0.2/24")
	lab.Link(client, server, "10.78.0.1/24", "10.78.0.2/24")
	client.Run("ip", "-6", "addr", "add", "fe80::a/64", "dev", "eth1", "nodad")
	server.Run("ip", "-6", "addr", "add", "fe80::b/64", "dev", "eth0", "nodad")
	dir := t.TempDir()
	src, to := patternFile(t, t.TempDir(), "src", 3<<20, 1), filepath.Join(dir, "out")
	s := server.Start("tideway", "serve", "--listen", "[fe80::b%eth0]:7000", "--file", "data="+src, "--access", "rw")
	s.Expect(patience, "serving at ")
	within(t, client.Start("tideway", "get", "[fe80::b%eth1]:7000/data", to), patience, 0)
	same(t, src, to)
	next := patternFile(t, t.TempDir(), "next", 5<<20, 2)
	within(t, client.Start("tideway", "put", next, "[fe80::b%eth1]:7000/data"), patience, 0)
	same(t, src, next)
	if p := client.Start("tideway", "get", "[fe80::b]:7000/data", to); p.Wait(patience) == 0 {
		t.Error("an address without a zone works")
	}
}
