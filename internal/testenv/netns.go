package testenv

import (
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// netnsDir is where the ip command keeps named network namespaces.
const netnsDir = "/run/netns"

// Lab is a set of hosts, each a network namespace of this machine. It needs root
// and goes away with the test.
type Lab struct {
	t       testing.TB
	id      string
	nowhere *Host // far end of dummies, once there is one
}

// Host is one network namespace.
type Host struct {
	Netns string // its name for the ip command

	lab   *Lab
	links int
}

// Link is a cable between two hosts: a veth pair.
type Link struct{ ends [2]linkEnd }

type linkEnd struct {
	host *Host
	dev  string
}

// NewLab prepares a lab, and removes what killed test runs left behind.
func NewLab(t testing.TB) *Lab {
	t.Helper()
	NeedRoot(t)
	NeedTool(t, "ip")
	reapNetns()
	return &Lab{t: t, id: fmt.Sprintf("tideway-%d-%s", os.Getpid(), rand.Text()[:6])}
}

// reapNetns deletes namespaces of labs whose process is gone.
func reapNetns() {
	names, _ := filepath.Glob(netnsDir + "/tideway-*")
	for _, name := range names {
		pid, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(name), "tideway-"), "-")
		if n, err := strconv.Atoi(pid); err == nil && unix.Kill(n, 0) == unix.ESRCH {
			exec.Command("ip", "netns", "del", filepath.Base(name)).Run()
		}
	}
}

// Host adds a host with a loopback device that is up.
func (l *Lab) Host(name string) *Host {
	l.t.Helper()
	h := &Host{Netns: l.id + "-" + name, lab: l}
	l.run("ip", "netns", "add", h.Netns)
	l.t.Cleanup(func() {
		l.run("ip", "netns", "del", h.Netns)
		os.RemoveAll(filepath.Join("/etc/netns", h.Netns))
	})
	h.Run("ip", "link", "set", "lo", "up")
	return h
}

// run runs a command and ends the test when it fails.
func (l *Lab) run(args ...string) string {
	l.t.Helper()
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	if err != nil {
		l.t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// Args puts a command line into the host: for Start, or exec.Command.
func (h *Host) Args(args ...string) []string {
	return append([]string{"ip", "netns", "exec", h.Netns}, args...)
}

// Run runs a command in the host and returns what it prints. When it fails, so
// does the test.
func (h *Host) Run(args ...string) string {
	h.lab.t.Helper()
	return h.lab.run(h.Args(args...)...)
}

// Start starts a program in the host.
func (h *Host) Start(args ...string) *Process {
	h.lab.t.Helper()
	return Start(h.lab.t, h.Args(args...)...)
}

// Do runs f on a thread that is in the host's network. Sockets that f makes
// itself belong there, for ever; goroutines that it starts do not run there. It
// must not call t.Fatal.
func (h *Host) Do(f func()) {
	h.lab.t.Helper()
	errs := make(chan error, 1)
	go func() {
		defer close(errs)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		ns, err := os.Open(filepath.Join(netnsDir, h.Netns))
		if err == nil {
			err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
			ns.Close()
		}
		if err != nil {
			errs <- err
			return
		}
		f()
	}()
	if err := <-errs; err != nil {
		h.lab.t.Fatalf("enter %s: %v", h.Netns, err)
	}
}

// Listen listens in the host until the test ends.
func (h *Host) Listen(addr string) net.Listener {
	h.lab.t.Helper()
	var l net.Listener
	var err error
	h.Do(func() { l, err = net.Listen("tcp", addr) })
	if err != nil {
		h.lab.t.Fatalf("listen in %s: %v", h.Netns, err)
	}
	h.lab.t.Cleanup(func() { l.Close() })
	return l
}

// Dial connects from the host to an address; names are not resolved there.
func (h *Host) Dial(addr string, within time.Duration) (c net.Conn, err error) {
	h.lab.t.Helper()
	h.Do(func() { c, err = net.DialTimeout("tcp", addr, within) })
	return c, err
}

// Etc gives programs in the host a file of their own below /etc: "hosts".
func (h *Host) Etc(name, content string) {
	h.lab.t.Helper()
	dir := filepath.Join("/etc/netns", h.Netns)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		h.lab.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
		h.lab.t.Fatal(err)
	}
}

// Dummy adds a network device that leads nowhere, up, with addresses such as
// "172.17.0.1/16". Down on the link takes the carrier away from it. (The kernel's
// own dummy devices are a module that not every machine has.)
func (h *Host) Dummy(dev string, addrs ...string) *Link {
	l := h.lab
	l.t.Helper()
	if l.nowhere == nil {
		l.nowhere = l.Host("nowhere")
	}
	k := &Link{ends: [2]linkEnd{{l.nowhere, fmt.Sprintf("eth%d", l.nowhere.links)}, {h, dev}}}
	l.nowhere.links++
	l.veth(k)
	h.up(dev, addrs...)
	return k
}

func (h *Host) up(dev string, addrs ...string) {
	h.lab.t.Helper()
	for _, a := range addrs {
		args := []string{"ip", "addr", "add", a, "dev", dev}
		if strings.Contains(a, ":") {
			args = append(args, "nodad") // usable at once
		}
		h.Run(args...)
	}
	h.Run("ip", "link", "set", dev, "up")
}

// Route adds a route: Route("default", "via", "10.0.0.1").
func (h *Host) Route(args ...string) {
	h.lab.t.Helper()
	h.Run(append([]string{"ip", "route", "add"}, args...)...)
}

// Link connects two hosts by a new cable. Its devices are eth0, eth1 and so on,
// in the order of calls; addresses have a prefix length, "10.0.0.1/24".
func (l *Lab) Link(a, b *Host, addrA, addrB string) *Link {
	l.t.Helper()
	k := &Link{ends: [2]linkEnd{{a, fmt.Sprintf("eth%d", a.links)}, {b, fmt.Sprintf("eth%d", b.links)}}}
	a.links++
	b.links++
	l.veth(k)
	a.up(k.ends[0].dev, addrA)
	b.up(k.ends[1].dev, addrB)
	return k
}

// veth makes the link's two devices; the first is up.
func (l *Lab) veth(k *Link) {
	l.t.Helper()
	a, b := k.ends[0], k.ends[1]
	l.run("ip", "link", "add", a.dev, "netns", a.host.Netns, "type", "veth", "peer", "name", b.dev, "netns", b.host.Netns)
	k.Up()
}

// each runs a command at both ends; DEV in it stands for the device.
func (k *Link) each(command string) {
	for _, e := range k.ends {
		e.host.lab.t.Helper()
		e.host.Run(strings.Fields(strings.ReplaceAll(command, "DEV", e.dev))...)
	}
}

// Rate caps each way, with a queue of so much time before packets are dropped.
func (k *Link) Rate(bitsPerSecond int64, queue time.Duration) {
	NeedTool(k.ends[0].host.lab.t, "tc")
	burst := max(bitsPerSecond/8/1000, 16<<10) // what passes in 1 ms, or a few packets
	k.each(fmt.Sprintf("tc qdisc replace dev DEV root tbf rate %dbit burst %d latency %dus", bitsPerSecond, burst, queue.Microseconds()))
}

// Down takes the link down at its first end; the other loses its carrier.
func (k *Link) Down() { k.ends[0].host.Run("ip", "link", "set", k.ends[0].dev, "down") }

// Up is the end of Down.
func (k *Link) Up() { k.ends[0].host.Run("ip", "link", "set", k.ends[0].dev, "up") }

// Lose drops that many of a thousand packets, each way, at random.
func (k *Link) Lose(perMille int) { k.rule(fmt.Sprintf("numgen random mod 1000 < %d drop", perMille)) }

// Drop drops every packet: a partition that nobody is told of.
func (k *Link) Drop() { k.rule("drop") }

// Reset answers every TCP packet with a reset.
func (k *Link) Reset() { k.rule("tcp flags & rst == 0 reject with tcp reset") }

// Heal removes what Lose, Drop and Reset set.
func (k *Link) Heal() { k.chain(); k.each("nft flush chain inet tideway DEV") }

func (k *Link) rule(r string) {
	k.Heal()
	k.each("nft add rule inet tideway DEV iifname DEV " + r)
}

// chain makes the chain of each device, if it is not there.
func (k *Link) chain() {
	NeedTool(k.ends[0].host.lab.t, "nft")
	k.each("nft add table inet tideway")
	k.each("nft add chain inet tideway DEV { type filter hook input priority 0 ; }")
}
