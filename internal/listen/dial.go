package listen

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"github.com/tideway-io/tideway/errs"
)

// Dialer connects to peers. The zero value is ready; fields that are zero have
// the documented default.
type Dialer struct {
	Timeout       time.Duration // of a whole attempt, default 5 s
	LookupTimeout time.Duration // of the name lookup, default 1 s
	// Lookup resolves a host name, default the system's resolver.
	Lookup func(ctx context.Context, host string) ([]netip.Addr, error)
}

// NewDialer returns a Dialer whose attempts take at most timeout.
func NewDialer(timeout time.Duration) *Dialer { return &Dialer{Timeout: timeout} }

// stagger is how long one address is tried alone before the next one is tried
// beside it (RFC 8305 calls it the connection attempt delay).
const stagger = 250 * time.Millisecond

// maxAddrs bounds the addresses of one name that are tried.
const maxAddrs = 8

// Dial connects to host:port over TCP, resolving the name anew. IPv6 and IPv4
// addresses take turns, and the first to connect wins. Errors are *errs.Error:
// NameLookup when the name has no address, Refused when nobody listens there,
// Unresponsive when nobody answers in time, Unreachable when there is no way
// there, Overloaded (retryable, and no fault of the peer) when this host is out
// of ports or descriptors, Deadline or Canceled when ctx ended first.
func (d *Dialer) Dial(ctx context.Context, addr string) (net.Conn, error) {
	host, port, err := ParseAddr(addr, 0)
	if err != nil {
		return nil, err
	}
	if host == "" || port == 0 {
		return nil, errs.New(errs.Invalid, "dial", "%q: want host:port", addr)
	}
	if a, err := netip.ParseAddr(host); err == nil && a.Is6() && a.IsLinkLocalUnicast() && a.Zone() == "" {
		return nil, errs.New(errs.Invalid, "dial", "%q: a link-local address needs the interface that leads to it, as in [%s%%eth0]:%d", addr, a, port)
	}
	inner, cancel := context.WithTimeout(ctx, cmp.Or(d.Timeout, 5*time.Second))
	defer cancel()
	ips, err := d.resolve(inner, host)
	if err != nil {
		return nil, d.explain(ctx, addr, err)
	}
	conn, err := race(inner, ips, port)
	if err != nil {
		return nil, d.explain(ctx, addr, err)
	}
	return conn, nil
}

// DialFrom is Dial to an IP address from an address of this host. What goes out
// then leaves through the interface, if the system lets this process say so; else
// the kernel's routes for that address decide.
func (d *Dialer) DialFrom(ctx context.Context, local netip.Addr, device, addr string) (net.Conn, error) {
	to, err := netip.ParseAddrPort(addr)
	if err != nil {
		return nil, errs.New(errs.Invalid, "dial", "%q from %s: want an IP address and a port", addr, local)
	}
	inner, cancel := context.WithTimeout(ctx, cmp.Or(d.Timeout, 5*time.Second))
	defer cancel()
	nd := net.Dialer{
		LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(local, 0)),
		Control:   func(_, _ string, c syscall.RawConn) error { return bindTo(c, device) },
	}
	conn, err := nd.DialContext(inner, "tcp", to.String())
	if err != nil {
		return nil, d.explain(ctx, addr, err)
	}
	return conn, nil
}

func (d *Dialer) resolve(ctx context.Context, host string) ([]netip.Addr, error) {
	if a, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{a}, nil
	}
	timeout := cmp.Or(d.LookupTimeout, time.Second)
	lctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	lookup := d.Lookup
	if lookup == nil {
		lookup = func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		}
	}
	ips, err := lookup(lctx, host)
	if err == nil && len(ips) > 0 {
		return takeTurns(ips), nil
	}
	if err == nil {
		err = errors.New("the name has no address")
	}
	e := errs.New(errs.NameLookup, "dial", "no address for %q within %v; check the name, /etc/hosts and DNS, or use an IP address", host, timeout)
	e.Err, e.Retryable = err, true
	return nil, e
}

// takeTurns puts IPv6 and IPv4 addresses alternately, keeping the order within
// each and starting with the family that the resolver put first.
func takeTurns(ips []netip.Addr) []netip.Addr {
	var first, other []netip.Addr
	for _, a := range ips {
		a = a.Unmap()
		if a.Is4() == ips[0].Unmap().Is4() {
			first = append(first, a)
		} else {
			other = append(other, a)
		}
	}
	out := make([]netip.Addr, 0, len(ips))
	for i := 0; len(out) < len(ips); i++ {
		if i < len(first) {
			out = append(out, first[i])
		}
		if i < len(other) {
			out = append(out, other[i])
		}
	}
	return out[:min(len(out), maxAddrs)]
}

// race tries the addresses, each a little after the one before or at once when
// that one failed, and returns the first connection. The others are closed; all
// attempts have ended when it returns.
func race(ctx context.Context, ips []netip.Addr, port uint16) (net.Conn, error) {
	type result struct {
		conn net.Conn
		err  error
	}
	ctx, cancel := context.WithCancel(ctx)
	results := make(chan result)
	started, ended := 0, 0
	start := func() {
		to := netip.AddrPortFrom(ips[started], port).String()
		started++
		go func() {
			var nd net.Dialer
			conn, err := nd.DialContext(ctx, "tcp", to)
			results <- result{conn, err}
		}()
	}
	var won net.Conn
	var failures []error
	timer := time.NewTimer(stagger)
	defer timer.Stop()
	for start(); ended < started; {
		select {
		case <-timer.C:
		case r := <-results:
			ended++
			switch {
			case r.err != nil:
				failures = append(failures, r.err)
			case won == nil:
				won = r.conn
				cancel()
			default:
				_ = r.conn.Close()
			}
		}
		if won == nil && started < len(ips) && ctx.Err() == nil {
			start()
			timer.Reset(stagger)
		}
	}
	cancel()
	if won == nil {
		return nil, telling(failures)
	}
	return won, nil
}

// telling joins the failures that say something: that a host without IPv6 has no
// address to dial from does not, when another address failed otherwise.
func telling(failures []error) error {
	var out []error
	for _, err := range failures {
		var op *net.OpError
		if errors.As(err, &op) && errors.Is(err, syscall.EADDRNOTAVAIL) {
			if to, ok := op.Addr.(*net.TCPAddr); ok && to.IP.To4() == nil {
				continue
			}
		}
		out = append(out, err)
	}
	if len(out) == 0 {
		out = failures
	}
	return errors.Join(out...)
}

// explain turns what failed into a typed error. What is wrong on this host
// comes first, since it says nothing about the peer.
func (d *Dialer) explain(ctx context.Context, addr string, err error) error {
	e := &errs.Error{Op: "dial", Peer: addr, Stage: "connect", Err: err, Retryable: true}
	var typed *errs.Error
	switch {
	case ctx.Err() != nil:
		e.Reason, e.Err = errs.Of(ctx.Err()), ctx.Err()
	case errors.As(err, &typed):
		typed.Peer, typed.Stage = addr, "connect"
		return typed
	case isAny(err, syscall.EADDRNOTAVAIL, syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EAGAIN):
		e.Reason, e.Detail = errs.Overloaded, "this host is out of local ports, file descriptors or memory; wait, or raise ip_local_port_range or ulimit -n"
	case isAny(err, syscall.ECONNREFUSED):
		e.Reason, e.Detail = errs.Refused, "the host is up but nobody listens on that port; check the port and that the peer runs"
	case isAny(err, syscall.EACCES, syscall.EPERM):
		e.Reason, e.Detail = errs.Denied, "a firewall on this host forbids it"
	case isAny(err, context.DeadlineExceeded, os.ErrDeadlineExceeded, syscall.ETIMEDOUT):
		e.Reason, e.Detail = errs.Unresponsive, "no answer in time; check the address, the route and the firewalls between"
	default:
		e.Reason, e.Detail = errs.Unreachable, "no way there; check the address and the route"
	}
	return e
}

func isAny(err error, targets ...error) bool {
	for _, t := range targets {
		if errors.Is(err, t) {
			return true
		}
	}
	return false
}
