package testenv

import (
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// StoreServer is a server of a metadata store: a real one, in a process of its
// own, on a loopback address that outlives it.
type StoreServer struct {
	Addr string // host:port
	*Process

	t    testing.TB
	args []string
	data string // what it keeps on disk, empty if nothing
}

// storeStart is how long such a server may take until it answers.
const storeStart = 30 * time.Second

// Etcd starts a cluster of one member, with an empty directory.
func Etcd(t testing.TB) *StoreServer {
	t.Helper()
	program := NeedTool(t, "etcd")
	addr, peers := FreeAddr(t), "http://"+FreeAddr(t)
	data := filepath.Join(t.TempDir(), "etcd")
	return StartStore(t, addr, data, program, "--data-dir", data, "--log-level", "error",
		"--listen-client-urls", "http://"+addr, "--advertise-client-urls", "http://"+addr,
		"--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", "default="+peers,
		"--heartbeat-interval", "20", "--election-timeout", "200") // so that leases may be as short as a second
}

// Redis starts a server that keeps nothing on disk, with further arguments.
func Redis(t testing.TB, args ...string) *StoreServer {
	t.Helper()
	program := NeedTool(t, "redis-server")
	addr := FreeAddr(t)
	host, port, _ := net.SplitHostPort(addr)
	return StartStore(t, addr, "", append([]string{program, "--bind", host, "--port", port, "--save", "", "--dir", t.TempDir(), "--loglevel", "warning"}, args...)...)
}

// StartStore starts a program that listens on addr and keeps what it has in data,
// empty if it keeps nothing.
func StartStore(t testing.TB, addr, data string, args ...string) *StoreServer {
	t.Helper()
	s := &StoreServer{Addr: addr, t: t, args: args, data: data}
	s.Restart()
	return s
}

// Restart starts the server again after Kill, with what it has on disk, and waits
// until it takes connections.
func (s *StoreServer) Restart() {
	s.t.Helper()
	s.Process = Start(s.t, s.args...)
	Eventually(s.t, storeStart, func() bool {
		if s.Ended() {
			s.t.Fatalf("%s ended: %s", s.args[0], s.Output())
		}
		c, err := net.Dial("tcp", s.Addr)
		if err == nil {
			c.Close()
		}
		return err == nil
	}, s.args[0], " takes connections")
}

// Wipe makes a server that was killed forget everything.
func (s *StoreServer) Wipe() {
	s.t.Helper()
	if s.data == "" {
		return
	}
	if err := os.RemoveAll(s.data); err != nil {
		s.t.Fatal(err)
	}
}

// FreeAddr returns a loopback address that nobody listens on.
func FreeAddr(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
