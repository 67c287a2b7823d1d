package engine

import (
	"context"
	"net/netip"

	"github.com/tideway-io/tideway/internal/listen"
	"github.com/tideway-io/tideway/segment"
)

// discover gets a descriptor from the peer called name, which is its address.
func (e *Engine) discover(ctx context.Context, name string) (*segment.Desc, error) {
	pages := func(ctx context.Context, d *segment.Desc, n int) error {
		d.Addr = zoned(d.Addr, name)
		return e.fetchPages(ctx, d, n)
	}
	d, err := e.cfg.Discover(ctx, e.dialer.Dial, name, e.ownDesc(), pages)
	if err != nil {
		return nil, err
	}
	if addr := zoned(d.Addr, name); addr != d.Addr {
		here := *d // descriptors are shared, and never change
		here.Addr = addr
		d = &here
	}
	return d, nil
}

// zoned returns a peer's address with the zone that it was asked at. A zone is a
// host's own name of one of its devices: the peer's means nothing here.
func zoned(addr, asked string) string {
	host, port, err := listen.ParseAddr(addr, 0)
	at, _, aerr := listen.ParseAddr(asked, 0)
	if err != nil || aerr != nil {
		return addr
	}
	theirs, err := netip.ParseAddr(host)
	ours, aerr := netip.ParseAddr(at)
	if err != nil || aerr != nil || !theirs.IsLinkLocalUnicast() || !theirs.Is6() || ours.Zone() == "" {
		return addr
	}
	return listen.JoinAddr(theirs.WithZone(ours.Zone()).String(), port)
}
