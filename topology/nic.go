package topology

import (
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"path"
	"strconv"
	"strings"
)

// NIC is one network interface of this host at one instant.
type NIC struct {
	Name      string
	Index     int            // the kernel's number, 1 and up
	Addrs     []netip.Prefix // without zones; see Zoned
	MTU       int            // bytes
	Up        bool           // switched on by the administrator
	Carrier   bool           // can pass frames now: a cable, or a peer that is up
	Loopback  bool
	Kind      NICKind
	SpeedMbps int // link speed in Mb/s, 0 when not known
	NUMA      int // node that the device hangs on, -1 when not known or none
}

// NICKind says what is behind an interface.
type NICKind string

// The kinds that a choice of address cares about. A kernel device type that is
// not listed here (gre, macvlan, wireguard, ...) is kept under its own name.
const (
	NICPhysical NICKind = "physical" // a device, virtio included
	NICLoopback NICKind = "loopback"
	NICVeth     NICKind = "veth" // one end of a pair: a container's own interface, or the host's end of it
	NICBridge   NICKind = "bridge"
	NICBond     NICKind = "bond"
	NICVLAN     NICKind = "vlan"
	NICVXLAN    NICKind = "vxlan"
	NICTunnel   NICKind = "tunnel"  // tun, tap, IP in IP
	NICVirtual  NICKind = "virtual" // no device behind it and nothing more is known (dummy, ...)
	NICUnknown  NICKind = "unknown" // the host does not say
)

// Interfaces lists this host's network interfaces in the order of their
// numbers. sys is the tree of /sys (os.DirFS("/sys")); what cannot be read there
// stays unknown, so an empty tree is fine where there is none.
func Interfaces(sys fs.FS) ([]NIC, error) {
	list, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list network interfaces: %w", err)
	}
	nics := make([]NIC, 0, len(list))
	for i := range list {
		nic, err := fromKernel(&list[i])
		if err != nil {
			continue // it went away between the two calls, as container interfaces do
		}
		nic.describe(sys)
		nics = append(nics, nic)
	}
	return nics, nil
}

// fromKernel takes over what the system call knows.
func fromKernel(in *net.Interface) (NIC, error) {
	nic := NIC{
		Name: in.Name, Index: in.Index, MTU: in.MTU, NUMA: -1, Kind: NICUnknown,
		Up: in.Flags&net.FlagUp != 0, Carrier: in.Flags&net.FlagRunning != 0, Loopback: in.Flags&net.FlagLoopback != 0,
	}
	addrs, err := in.Addrs()
	if err != nil {
		return nic, fmt.Errorf("list addresses of %s: %w", in.Name, err)
	}
	for _, a := range addrs {
		ipnet, ok := a.(*net.IPNet)
		if !ok {
			continue
		}
		ip, ok := netip.AddrFromSlice(ipnet.IP)
		if !ok {
			continue
		}
		bits, _ := ipnet.Mask.Size()
		nic.Addrs = append(nic.Addrs, netip.PrefixFrom(ip.Unmap(), bits))
	}
	return nic, nil
}

// Zoned returns a, one of the interface's addresses, with the interface's name
// as its zone where a is link-local IPv6, which is of no use without one.
func (n *NIC) Zoned(a netip.Addr) netip.Addr {
	if a.Is6() && a.IsLinkLocalUnicast() {
		return a.WithZone(n.Name)
	}
	return a
}

// describe adds what /sys/class/net/NAME says. Unreadable files change nothing:
// the kernel refuses carrier and speed of an interface that is down. Nor does a
// tree that is not of this network namespace, where the name may be another
// interface's.
func (n *NIC) describe(sys fs.FS) {
	dir := path.Join("class/net", n.Name)
	if readInt(sys, path.Join(dir, "ifindex"), -1) != n.Index {
		return
	}
	// "unknown" is what drivers without link state say: tun, dummy, loopback.
	switch readLine(sys, path.Join(dir, "operstate")) {
	case "up":
		n.Carrier = true
	case "down", "lowerlayerdown", "notpresent", "dormant", "testing":
		n.Carrier = false
	}
	if readLine(sys, path.Join(dir, "carrier")) == "0" {
		n.Carrier = false
	}
	n.SpeedMbps = max(0, readInt(sys, path.Join(dir, "speed"), 0))
	n.NUMA = max(-1, readInt(sys, path.Join(dir, "device/numa_node"), -1))
	n.Kind = n.kind(sys, dir)
}

// Hardware types of /sys/class/net/NAME/type, from the kernel's if_arp.h.
const (
	arpEther    = 1
	arpTunnel   = 768
	arpTunnel6  = 769
	arpLoopback = 772
	arpSit      = 776
	arpNone     = 65534
)

func (n *NIC) kind(sys fs.FS, dir string) NICKind {
	arp := readInt(sys, path.Join(dir, "type"), -1)
	switch {
	case n.Loopback || arp == arpLoopback:
		return NICLoopback
	case exists(sys, path.Join(dir, "bridge")):
		return NICBridge
	case exists(sys, path.Join(dir, "bonding")):
		return NICBond
	case exists(sys, path.Join(dir, "tun_flags")):
		return NICTunnel
	}
	if t := devType(sys, path.Join(dir, "uevent")); t != "" && t != "wlan" && t != "wwan" {
		return NICKind(t)
	}
	switch {
	case exists(sys, path.Join(dir, "device")):
		return NICPhysical
	case arp == arpTunnel || arp == arpTunnel6 || arp == arpSit || arp == arpNone:
		return NICTunnel
	case arp == arpEther && readInt(sys, path.Join(dir, "iflink"), n.Index) != n.Index:
		return NICVeth // its link is another interface, perhaps in another namespace
	case arp >= 0:
		return NICVirtual
	}
	return NICUnknown
}

// devType returns DEVTYPE of a uevent file: "vlan", "vxlan", "wireguard", ...
func devType(sys fs.FS, name string) string {
	b, err := fs.ReadFile(sys, name)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(b)) {
		if t, ok := strings.CutPrefix(strings.TrimSpace(line), "DEVTYPE="); ok {
			return t
		}
	}
	return ""
}

func readLine(sys fs.FS, name string) string {
	b, err := fs.ReadFile(sys, name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

func readInt(sys fs.FS, name string, otherwise int) int {
	n, err := strconv.Atoi(readLine(sys, name))
	if err != nil {
		return otherwise
	}
	return n
}

func exists(sys fs.FS, name string) bool {
	_, err := fs.Stat(sys, name)
	return err == nil
}
