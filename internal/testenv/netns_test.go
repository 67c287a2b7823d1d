package testenv

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// pair is two hosts, a link, and a connection across it to an echo server.
func pair(t *testing.T) (a, b *Host, k *Link, c *net.TCPConn) {
	t.Helper()
	lab := NewLab(t)
	a, b = lab.Host("a"), lab.Host("b")
	k = lab.Link(a, b, "10.77.0.1/24", "10.77.0.2/24")
	l := b.Listen("10.77.0.2:0")
	serve(t, l, func(c net.Conn) { io.Copy(c, c) })
	conn, err := a.Dial(l.Addr().String(), 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return a, b, k, conn.(*net.TCPConn)
}

// pings returns nil when a round trip succeeds within d.
func pings(c net.Conn, d time.Duration) error {
	c.SetDeadline(time.Now().Add(d))
	if _, err := c.Write([]byte("ping")); err != nil {
		return err
	}
	_, err := io.ReadFull(c, make([]byte, 4))
	return err
}

func TestLabLink(t *testing.T) {
	NeedFull(t)
	Leak(t)
	a, _, k, c := pair(t)
	if err := pings(c, 10*time.Second); err != nil {
		t.Fatal(err)
	}
	if _, err := net.DialTimeout("tcp", c.RemoteAddr().String(), 50*time.Millisecond); err == nil {
		t.Error("the lab's addresses can be reached from outside of it")
	}
	for _, cut := range []struct{ off, on func() }{{k.Drop, k.Heal}, {k.Down, k.Up}} {
		cut.off()
		if err := pings(c, 50*time.Millisecond); !isTimeout(err) {
			t.Errorf("across a cut link: %v, want silence", err)
		}
		cut.on()
		c.SetDeadline(time.Now().Add(20 * time.Second))
		if _, err := io.ReadFull(c, make([]byte, 4)); err != nil {
			t.Errorf("across a healed link: %v", err)
		}
	}
	k.Reset()
	if err := pings(c, 10*time.Second); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("under Reset: %v", err)
	}
	if out := a.Run("ip", "-br", "addr"); !strings.Contains(out, "eth0") || !strings.Contains(out, "10.77.0.1/24") {
		t.Errorf("addresses of a:\n%s", out)
	}
}

func TestLabRateAndLoss(t *testing.T) {
	NeedFull(t)
	_, _, k, c := pair(t)
	const bits, size = 80e6, 4 << 20
	k.Rate(bits, 5*time.Millisecond)
	k.Lose(2)
	ideal := time.Duration(size * 8 / bits * float64(time.Second))
	c.SetDeadline(time.Now().Add(60 * time.Second))
	start := time.Now()
	go func() { c.Write(pattern(size)); c.CloseWrite() }()
	got, err := io.ReadAll(c)
	if err != nil || !bytes.Equal(got, pattern(size)) {
		t.Fatalf("%d bytes of %d, %v", len(got), size, err)
	}
	if took := time.Since(start); took < ideal*8/10 {
		t.Errorf("%d bytes at %v bit/s took %v, less than %v", size, bits, took, ideal)
	}
	if out := k.ends[0].host.Run("nft", "list", "ruleset"); !strings.Contains(out, "numgen random mod 1000 < 2 drop") {
		t.Errorf("no loss rule in\n%s", out)
	}
}

func TestLabHostParts(t *testing.T) {
	NeedFull(t)
	lab := NewLab(t)
	h := lab.Host("h")
	docker := h.Dummy("docker0", "172.17.0.1/16")
	h.Dummy("ula0", "fd00:77::1/64")
	h.Route("default", "dev", "docker0")
	h.Etc("hosts", "172.17.0.1 target.test\n")
	if out := h.Run("ip", "route", "get", "192.0.2.1"); !strings.Contains(out, "docker0") {
		t.Errorf("the default route is not used: %s", out)
	}
	if out := h.Run("getent", "ahostsv4", "target.test"); !strings.Contains(out, "172.17.0.1") {
		t.Errorf("the host's own names are not used: %s", out)
	}
	if l := h.Listen("[fd00:77::1]:0"); !strings.HasPrefix(l.Addr().String(), "[fd00:77::1]") {
		t.Errorf("listening on %v", l.Addr())
	}
	docker.Down()
	p := h.Start("ip", "-br", "link", "show", "docker0")
	if code := p.Wait(10 * time.Second); code != 0 || !strings.Contains(p.Stdout(), "NO-CARRIER") {
		t.Errorf("status %d, %q", code, p.Stdout())
	}
}

func TestLabLeavesNothing(t *testing.T) {
	NeedFull(t)
	NeedRoot(t)
	var name string
	tr := try(t, "x", func(t testing.TB) {
		h := NewLab(t).Host("gone")
		h.Etc("hosts", "")
		name = h.Netns
	})
	for _, path := range []string{netnsDir + "/" + name, "/etc/netns/" + name} {
		if _, err := os.Stat(path); tr.failed || !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left behind: %v %s", path, err, &tr.said)
		}
	}
	// A run that was killed leaves a namespace named after a process that is no more.
	dead := exec.Command("true")
	if err := dead.Run(); err != nil {
		t.Fatal(err)
	}
	lab := &Lab{t: t}
	stale := "tideway-" + itoa(dead.Process.Pid) + "-stale"
	lab.run("ip", "netns", "add", stale)
	reapNetns()
	if _, err := os.Stat(netnsDir + "/" + stale); !errors.Is(err, os.ErrNotExist) {
		exec.Command("ip", "netns", "del", stale).Run()
		t.Errorf("a stale namespace is not reaped: %v", err)
	}
}
