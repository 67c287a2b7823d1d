package listen

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/testenv"
)

// taskEnv makes this test binary do one task and print what came of it: how
// the tests below get into a network namespace, /sys included.
const taskEnv = "LISTEN_TEST_TASK"

func TestTask(t *testing.T) {
	task, arg, _ := strings.Cut(os.Getenv(taskEnv), " ")
	switch task {
	case "":
		return // the test binary itself is the subject of no test
	case "advertise":
		iface, listen, _ := strings.Cut(arg, " ")
		l, err := Open(t.Context(), Options{Listen: listen, Interface: iface})
		if err != nil {
			fmt.Println("RESULT", err)
			return
		}
		defer l.Close()
		at, reason := l.Advertised()
		fmt.Println("RESULT", at, reason)
	case "zone":
		l, err := Open(t.Context(), Options{Listen: arg})
		if err != nil {
			fmt.Println("RESULT", err)
			return
		}
		defer l.Close()
		_ = l.Handle(prefaceA, echo("a"))
		l.Start()
		at, _ := l.Advertised()
		c, err := new(Dialer).Dial(t.Context(), at)
		if err == nil {
			_, err = c.Write(prefaceA[:])
			hear(t, c, "a")
			_ = c.Close()
		}
		fmt.Println("RESULT", at, err)
	case "ports":
		l := open(t, Options{})
		_ = l.Handle(prefaceA, func(c net.Conn) { _, _ = c.Read(make([]byte, 1)) })
		for {
			c, err := new(Dialer).Dial(t.Context(), l.Addr())
			if err != nil {
				var e *errs.Error
				_ = errors.As(err, &e)
				fmt.Println("RESULT", e.Reason, e.Retryable)
				return
			}
			defer func() { _ = c.Close() }()
		}
	}
}

// in runs a task in a host and returns its result.
func in(t *testing.T, h *testenv.Host, task string) string {
	t.Helper()
	args := h.Args(os.Args[0], "-test.run=^TestTask$", "-test.v")
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), taskEnv+"="+task)
	out, err := cmd.CombinedOutput()
	_, after, ok := strings.Cut(string(out), "RESULT ")
	if err != nil || !ok {
		t.Fatalf("%s: %v\n%s", task, err, out)
	}
	result, _, _ := strings.Cut(after, "\n")
	return result
}

// TestAdvertiseOnAHost: a host with docker0, flannel.1, two cards and a dead
// one, as the kernel lists them.
func TestAdvertiseOnAHost(t *testing.T) {
	h := testenv.NewLab(t).Host("node")
	h.Dummy("docker0", "172.17.0.1/16")
	h.Dummy("flannel.1", "10.244.0.1/32")
	h.Dummy("eth2", "10.2.0.5/24").Down()
	settled := func(want ...string) {
		t.Helper()
		got := ""
		testenv.Eventually(t, 10*time.Second, func() bool { // the carrier takes its time to come and go
			got = in(t, h, "advertise  0.0.0.0")
			return slices.ContainsFunc(want, func(w string) bool { return strings.HasPrefix(got, w) })
		}, "one of ", want)
	}
	settled("172.17.0.1:", "10.244.0.1:")
	h.Dummy("eth1", "10.1.0.5/24")
	h.Dummy("eth0", "10.0.0.5/24")
	settled("10.1.0.5:", "10.0.0.5:")
	h.Run("ip", "route", "add", "default", "via", "10.0.0.1", "dev", "eth0")
	settled("10.0.0.5:")
	for _, c := range []struct{ task, want, reason string }{
		{"advertise  0.0.0.0", "10.0.0.5:", "default route"}, {"advertise  :0", "10.0.0.5:", "default route"},
		{"advertise eth1 0.0.0.0", "10.1.0.5:", "only this interface"}, {"advertise docker0 0.0.0.0", "172.17.0.1:", "only this interface"},
		{"advertise eth9 0.0.0.0", "choose the address", `no interface "eth9"`}, {"advertise eth2 0.0.0.0", "10.2.0.5:", "no carrier"},
		{"advertise  10.1.0.5", "10.1.0.5:", "bound"}, {"advertise  ", "127.0.0.1:", "bound"}, {"advertise  [::]:0", "10.0.0.5:", "default route"},
	} {
		if got := in(t, h, c.task); !strings.HasPrefix(got, c.want) || !strings.Contains(got, c.reason) {
			t.Errorf("%s: %s, want %s because %s", c.task, got, c.want, c.reason)
		}
	}
}

// TestLinkLocalAddress: bind, advertise and dial an address that needs its zone.
func TestLinkLocalAddress(t *testing.T) {
	h := testenv.NewLab(t).Host("node")
	h.Dummy("eth0")
	h.Run("ip", "-6", "addr", "add", "fe80::77/64", "dev", "eth0", "nodad")
	for _, listen := range []string{"fe80::77%eth0", "[fe80::77%eth0]:7071"} {
		if got := in(t, h, "zone "+listen); !strings.HasPrefix(got, "[fe80::77%eth0]:") || !strings.HasSuffix(got, "<nil>") {
			t.Errorf("%s: %s", listen, got)
		}
	}
}

// TestOutOfPorts: a host without local ports is not a dead peer.
func TestOutOfPorts(t *testing.T) {
	h := testenv.NewLab(t).Host("node")
	h.Run("sysctl", "-q", "-w", "net.ipv4.ip_local_port_range=40000 40019")
	if got := in(t, h, "ports"); got != "overloaded true" {
		t.Error(got)
	}
}
