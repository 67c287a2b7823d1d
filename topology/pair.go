package topology

import (
	"cmp"
	"net/netip"
	"slices"
)

// Pair is the ends of one way to a peer.
type Pair struct {
	Interface string     // of this host; empty: the kernel chooses by its routes
	Local     netip.Addr // of that interface; invalid with it
	Remote    netip.Addr // with a zone where it needs one
}

// slower is how many times slower than the fastest an interface may be and still
// be worth a part of the work.
const slower = 8

// Others returns further addresses at which peers reach a listener that is bound
// to all of them, one of each interface but best's, in the order of Advertise and
// at most so many. Container networks, loopback and link-local addresses are left
// out, and what is much slower than the rest; what carries nothing now is not.
func Others(nics []NIC, routes []Route, choice Choice, best netip.Addr, most int) []netip.Addr {
	found := candidates(nics, routes, choice)
	fastest := fastest(nics)
	var out []netip.Addr
	seen := map[string]bool{}
	for _, c := range found {
		if c.addr == best {
			seen[c.nic.Name] = true
		}
	}
	for _, c := range found {
		if len(out) == most {
			break
		}
		up := *c.nic
		up.Carrier = true
		if rank, _ := up.class(false); rank <= isVirtual && !c.addr.IsLinkLocalUnicast() && !seen[c.nic.Name] && !c.nic.slow(fastest) {
			seen[c.nic.Name] = true
			out = append(out, c.addr)
		}
	}
	return out
}

// Pairs finds ways to a peer that do not share an interface at both ends, at
// most so many: one that is on the link of an interface of ours is reached
// through that, others as the kernel's routes say. The first is to remotes[0].
// Nil means that there is nothing to choose: the peer is on this host, or there
// is one way.
func Pairs(nics []NIC, remotes []netip.Addr, most int) []Pair {
	for i := range nics {
		for _, p := range nics[i].Addrs {
			if slices.Contains(remotes, p.Addr()) {
				return nil
			}
		}
	}
	var out []Pair
	here, there := map[string]bool{}, map[netip.Addr]bool{}
	links := links(nics, remotes)
	for ends := 2; ends > 0; ends-- { // first those that have no end in common with others
		for _, p := range links {
			fresh := 0
			if p.Interface != "" && !here[p.Interface] {
				fresh++
			}
			if !there[p.Remote] {
				fresh++
			}
			if p.Interface == "" {
				fresh *= 2 // which interface it leaves by is not ours to choose
			}
			if fresh >= ends && len(out) < most {
				here[p.Interface], there[p.Remote] = true, true
				out = append(out, p)
			}
		}
	}
	if len(out) < 2 {
		return nil
	}
	slices.SortStableFunc(out, func(a, b Pair) int {
		return cmp.Compare(slices.Index(remotes, a.Remote), slices.Index(remotes, b.Remote))
	})
	return out
}

// links lists the ways to each remote, in order.
func links(nics []NIC, remotes []netip.Addr) (out []Pair) {
	fastest := fastest(nics)
	for _, r := range remotes {
		n := len(out)
		for i := range nics {
			nic := &nics[i]
			if !nic.Up || !nic.Carrier || nic.Loopback || nic.slow(fastest) {
				continue
			}
			at := slices.IndexFunc(nic.Addrs, func(p netip.Prefix) bool { return p.Contains(r) && p.Bits() < p.Addr().BitLen() })
			if at >= 0 {
				out = append(out, Pair{nic.Name, nic.Zoned(nic.Addrs[at].Addr()), r})
			}
		}
		if len(out) == n {
			out = append(out, Pair{Remote: r})
		}
	}
	return out
}

// fastest returns the speed of the fastest interface that says its own.
func fastest(nics []NIC) (mbps int) {
	for i := range nics {
		if n := &nics[i]; n.Up && n.Carrier && !n.Loopback {
			mbps = max(mbps, n.SpeedMbps)
		}
	}
	return mbps
}

// slow reports whether the interface is known to be much slower than that.
func (n *NIC) slow(fastest int) bool { return n.SpeedMbps > 0 && n.SpeedMbps*slower < fastest }
