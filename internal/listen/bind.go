package listen

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"syscall"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/topology"
)

// Bind listens on a host:port for a server that is no engine. The errors are
// those of Open.
func Bind(ctx context.Context, addr string) (net.Listener, error) {
	l, _, err := bind(ctx, &Options{Listen: addr})
	if err != nil {
		return nil, err
	}
	return l, nil
}

// bind listens on what opts.Listen says and returns the address that is bound.
func bind(ctx context.Context, opts *Options) (*net.TCPListener, netip.AddrPort, error) {
	host, port, err := ParseAddr(opts.Listen, 0)
	if err != nil {
		return nil, netip.AddrPort{}, err
	}
	var lc net.ListenConfig
	ln, err := draw(ctx, host, port, opts.Ports)
	if errors.Is(err, syscall.EADDRINUSE) && port != 0 && opts.PortFallback {
		ln, err = lc.Listen(ctx, family(host), JoinAddr(host, 0))
		if err == nil {
			opts.Logger.Warn("port in use, took another", "asked", JoinAddr(host, port), "bound", ln.Addr().String(), "owner", owner(port))
		}
	}
	if err != nil {
		return nil, netip.AddrPort{}, explainBind(host, port, err)
	}
	at := ln.Addr().(*net.TCPAddr).AddrPort()
	if asked, err := netip.ParseAddr(host); err == nil && at.Addr() == asked.WithZone("") {
		at = netip.AddrPortFrom(asked, at.Port()) // the kernel may keep the zone to itself
	}
	return ln.(*net.TCPListener), at, nil
}

// draws is how many ports of a range are tried.
const draws = 500

// draw listens on a port, or where that is 0 on a free one of ports.
func draw(ctx context.Context, host string, port uint16, ports [2]uint16) (ln net.Listener, err error) {
	var lc net.ListenConfig
	if port != 0 || ports == [2]uint16{} {
		return lc.Listen(ctx, family(host), JoinAddr(host, port))
	}
	if ports[0] == 0 || ports[1] < ports[0] {
		return nil, errs.New(errs.Invalid, "choose a port", "%d to %d is no range of ports", ports[0], ports[1])
	}
	for range draws {
		at := ports[0] + uint16(rand.IntN(int(ports[1]-ports[0])+1))
		ln, err = lc.Listen(ctx, family(host), JoinAddr(host, at))
		if !errors.Is(err, syscall.EADDRINUSE) {
			return ln, err
		}
	}
	e := errs.New(errs.PortInUse, "choose a port", "none of %d tries found a free port from %d to %d; allow more of them, or name one", draws, ports[0], ports[1])
	e.Err = err
	return nil, e
}

// family keeps what is asked to listen on every IPv4 address away from IPv6, where
// the standard library would listen as well.
func family(host string) string {
	if host == netip.IPv4Unspecified().String() {
		return "tcp4"
	}
	return "tcp"
}

func explainBind(host string, port uint16, err error) error {
	if typed := (*errs.Error)(nil); errors.As(err, &typed) {
		return typed
	}
	e := &errs.Error{Op: "listen on " + JoinAddr(host, port), Err: err}
	var dns *net.DNSError
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		e.Reason = errs.PortInUse
		e.Detail = fmt.Sprintf("port %d is taken%s; stop its owner, choose another port, use port 0, or allow falling back to a free one", port, owner(port))
	case errors.Is(err, syscall.EACCES):
		e.Reason, e.Detail = errs.Denied, fmt.Sprintf("port %d needs a privilege; choose one above 1023", port)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		e.Reason, e.Detail = errs.Invalid, fmt.Sprintf("%q is not an address of this host; bind one of its own and advertise the other", host)
	case errors.As(err, &dns):
		e.Reason, e.Detail = errs.NameLookup, fmt.Sprintf("%q has no address here", host)
	case isAny(err, syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM):
		e.Reason, e.Retryable = errs.Overloaded, true
	default:
		e.Reason = errs.Of(err)
	}
	return e
}

// maxOthers is how many further addresses are told besides the advertised one.
const maxOthers = 7

// advertise decides what peers are told to dial, and where else they may.
func advertise(opts *Options, bound netip.AddrPort) (hostport, reason string, others []string, err error) {
	if opts.Advertise != "" {
		host, port, err := dialable(opts.Advertise, bound.Port())
		if err != nil {
			return "", "", nil, err
		}
		return JoinAddr(host, port), "asked for", nil, nil
	}
	addr := bound.Addr().Unmap()
	if !addr.IsUnspecified() && opts.Interface != "" {
		return "", "", nil, errs.New(errs.Invalid, "advertise", "interface %q asked for, but only %s is bound; listen on 0.0.0.0 or [::] to choose by interface", opts.Interface, addr)
	}
	if !addr.IsUnspecified() {
		return JoinAddr(addr.String(), bound.Port()), "the address that is bound", nil, nil
	}
	nics, routes, err := opts.Network()
	if err != nil {
		return "", "", nil, fmt.Errorf("choose the address to advertise: %w", err)
	}
	choice := topology.Choice{Interface: opts.Interface, No6: addr.Is4()}
	best, reason, err := topology.Advertise(nics, routes, choice)
	if err != nil {
		e := errs.New(errs.Invalid, "choose the address to advertise", "bind a specific address, or say which to advertise")
		e.Err = err
		return "", "", nil, e
	}
	for _, a := range topology.Others(nics, routes, choice, best, maxOthers) {
		others = append(others, JoinAddr(a.String(), bound.Port()))
	}
	return JoinAddr(best.String(), bound.Port()), reason, others, nil
}

// dialable is ParseAddr of what peers are told to dial.
func dialable(s string, otherwise uint16) (host string, port uint16, err error) {
	host, port, err = ParseAddr(s, otherwise)
	if err != nil {
		return "", 0, err
	}
	if a, err := netip.ParseAddr(host); host == "" || port == 0 || err == nil && a.IsUnspecified() {
		return "", 0, errs.New(errs.Invalid, "advertise", "%q is nothing that a peer can dial; want host or host:port", s)
	}
	return host, port, nil
}

// CheckListen says what is wrong with Options.Listen as it is written, before
// anything is bound; nil if nothing is.
func CheckListen(s string) error {
	_, _, err := ParseAddr(s, 0)
	return err
}

// CheckAdvertise is CheckListen for Options.Advertise.
func CheckAdvertise(s string) error {
	if s == "" {
		return nil
	}
	_, _, err := dialable(s, 1)
	return err
}

// Network lists this host's interfaces and default routes.
func Network() ([]topology.NIC, []topology.Route, error) {
	nics, err := topology.Interfaces(os.DirFS("/sys"))
	if err != nil {
		return nil, nil, err
	}
	routes, err := topology.DefaultRoutes(os.DirFS("/proc"))
	return nics, routes, err
}
