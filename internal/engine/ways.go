package engine

import (
	"context"
	"net"
	"net/netip"

	"github.com/tideway-io/tideway/internal/listen"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/topology"
	"github.com/tideway-io/tideway/transport"
)

// maxAddrs bounds how many addresses of one peer are looked at.
const maxAddrs = 16

// ways finds the ways to a peer whose addresses are known, each with one of this
// host's interfaces that is there now.
func (e *Engine) ways(d *segment.Desc) []transport.Way {
	if e.cfg.Rails == 1 || len(d.Addr) == 0 {
		return nil
	}
	var remotes []netip.Addr
	ports := map[netip.Addr]uint16{}
	for _, s := range append([]string{d.Addr}, d.Addrs[:min(len(d.Addrs), maxAddrs)]...) {
		a, err := netip.ParseAddrPort(s)
		if err != nil && len(remotes) == 0 {
			return nil // a name, which may be anything's at each connect
		}
		if _, known := ports[a.Addr()]; err == nil && !known && a.Port() != 0 && !a.Addr().IsLoopback() {
			remotes, ports[a.Addr()] = append(remotes, a.Addr()), a.Port()
		}
	}
	nics, _, err := listen.Network()
	if err != nil || len(remotes) == 0 {
		return nil
	}
	var out []transport.Way
	for _, p := range topology.Pairs(nics, remotes, e.cfg.Rails) {
		out = append(out, transport.Way{Interface: p.Interface, Local: p.Local, Remote: listen.JoinAddr(p.Remote.String(), ports[p.Remote])})
	}
	return out
}

// dialWay connects over one way.
func (e *Engine) dialWay(ctx context.Context, w transport.Way) (net.Conn, error) {
	if w.Interface == "" {
		return e.dialer.Dial(ctx, w.Remote)
	}
	return e.dialer.DialFrom(ctx, w.Local, w.Interface, w.Remote)
}
