package topology

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Choice says which addresses may be advertised. The zero value takes any.
type Choice struct {
	Interface string // only this interface's
	No4, No6  bool   // families that nobody listens on
}

// Advertise picks, among the addresses of nics, the one that peers on other
// hosts reach most likely, for a listener that is bound to all of them. In
// order: the interface with the default route; other devices; the host's ends
// of virtual links; container networks; interfaces that carry nothing now;
// loopback. Within one rank global addresses come before link-local ones, IPv4
// before IPv6. The reason is a sentence for people: what was taken, why, and
// what was passed over.
func Advertise(nics []NIC, routes []Route, choice Choice) (addr netip.Addr, reason string, err error) {
	found := candidates(nics, routes, choice)
	if len(found) == 0 {
		return netip.Addr{}, "", choice.none(nics)
	}
	best := found[0]
	reason = fmt.Sprintf("%s of %s: %s", best.addr, best.nic.Name, best.why)
	if choice.Interface != "" {
		reason += "; only this interface was asked for"
	}
	if others := passedOver(found); others != "" {
		reason += "; passed over " + others
	}
	return best.addr, reason, nil
}

// candidates lists what may be advertised, the best first.
func candidates(nics []NIC, routes []Route, choice Choice) (found []candidate) {
	for i := range nics {
		n := &nics[i]
		if choice.Interface != "" && n.Name != choice.Interface {
			continue
		}
		for _, a := range n.Addrs {
			if c, ok := judge(n, a, routes, choice); ok {
				found = append(found, c)
			}
		}
	}
	slices.SortStableFunc(found, func(a, b candidate) int { return slices.Compare(a.rank[:], b.rank[:]) })
	return found
}

// candidate is one address with what decides, the most important first.
type candidate struct {
	nic  *NIC
	addr netip.Addr
	rank [5]int
	why  string
}

// Ranks of an interface.
const (
	hasDefault = iota
	isDevice
	isVirtual
	isContainerNetwork
	isIdle
	isLoopback
)

func judge(n *NIC, p netip.Prefix, routes []Route, choice Choice) (candidate, bool) {
	a := p.Addr()
	if !n.Up || choice.No4 && a.Is4() || choice.No6 && a.Is6() || a.IsMulticast() || a.IsUnspecified() {
		return candidate{}, false
	}
	at := slices.IndexFunc(routes, func(r Route) bool { return r.Interface == n.Name && r.Gateway.Is4() == a.Is4() })
	class, why := n.class(at >= 0)
	if a.IsLoopback() {
		class, why = isLoopback, "loopback, reachable only from this host"
	}
	offLink := 0
	if at >= 0 && !p.Contains(routes[at].Gateway) {
		offLink = 1
	}
	local, six := 0, 0
	if a.IsLinkLocalUnicast() {
		local, why = 1, why+", a link-local address"
	}
	if a.Is6() {
		six = 1
	}
	// A link-local address of a good interface is worth less than a global one
	// of any that can be reached at all.
	if local == 1 && class < isIdle {
		class = isIdle - 1
	}
	return candidate{n, n.Zoned(a), [5]int{class, local, six, max(at, 0), offLink}, why}, true
}

// class ranks the interface. One with the default route is trusted whatever it
// is: a container's own interface is a virtual one, a hypervisor's a bridge.
func (n *NIC) class(routed bool) (rank int, why string) {
	switch {
	case n.Loopback || n.Kind == NICLoopback:
		return isLoopback, "loopback, reachable only from this host"
	case !n.Carrier:
		return isIdle, "no carrier"
	case routed:
		return hasDefault, "it has the default route"
	case n.Kind == NICBridge || n.Kind == NICVXLAN || containerName(n.Name):
		return isContainerNetwork, "a container network"
	case n.Kind == NICVeth || n.Kind == NICTunnel || n.Kind == NICVirtual:
		return isVirtual, "a virtual interface without the default route"
	}
	return isDevice, "no default route"
}

// containerName knows the names that container run-times and virtual machine
// managers give to what only their guests use.
func containerName(name string) bool {
	for _, prefix := range []string{"docker", "br-", "veth", "flannel", "cni", "cali", "cilium", "lxc", "lxd", "virbr", "vmnet", "podman", "kube-", "weave", "tunl"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// passedOver lists the best of each interface but the first's.
func passedOver(found []candidate) string {
	const most = 6
	var out []string
	seen := map[string]bool{found[0].nic.Name: true}
	for _, c := range found {
		if seen[c.nic.Name] {
			continue
		}
		seen[c.nic.Name] = true
		if len(out) == most {
			return strings.Join(out, ", ") + " and others"
		}
		out = append(out, fmt.Sprintf("%s of %s (%s)", c.addr, c.nic.Name, c.why))
	}
	return strings.Join(out, ", ")
}

func (choice Choice) none(nics []NIC) error {
	var names []string
	for i := range nics {
		names = append(names, nics[i].Name)
	}
	slices.SortFunc(names, cmp.Compare)
	have := strings.Join(names, ", ")
	if choice.Interface == "" {
		return fmt.Errorf("no interface has an address to advertise (there are: %s)", have)
	}
	if !slices.Contains(names, choice.Interface) {
		return fmt.Errorf("no interface %q (there are: %s)", choice.Interface, have)
	}
	return fmt.Errorf("interface %q is down or has no address of the family that is listened on", choice.Interface)
}
