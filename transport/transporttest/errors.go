package transporttest

import (
	"errors"
	"net"
	"strconv"
	"strings"
	"testing"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
)

// checkErrors: "Every error says what, where, why and what to do."
//
// For a transport: what Connect and Post return is an *errs.Error with operation,
// reason, transport and detail, and from Connect the peer; a completion has a
// code that this version knows, and its detail agrees with the code.
func checkErrors(t testing.TB, cfg *Config) {
	connectErrors(t, cfg)
	completionErrors(t, cfg)
	if name := cfg.Driver().Name(); name == "" || name != strings.ToLower(name) {
		t.Errorf("the driver's name is %q: it is short, lower-case and fixed", name)
	}
}

// connectErrors fails to connect in a few ways.
func connectErrors(t testing.TB, cfg *Config) {
	t.Helper()
	w := newWorld(t, cfg, nil)
	from, to := w.pair()
	f := from.connect(to)
	other := *to.desc()
	other.Incarnation ^= 4
	nobody := other
	nobody.Addr = freePort(t)
	nobody.Name = segment.Name(nobody.Addr)
	_, port, _ := net.SplitHostPort(nobody.Addr)
	n, _ := strconv.ParseUint(port, 10, 16)
	nobody.TCPDataPort = uint16(n)
	for name, d := range map[string]*segment.Desc{"another incarnation": &other, "nobody listens": &nobody} {
		if cfg.Addressed && d == &other {
			continue // nothing on the wire tells
		}
		ep, err := from.tr.Connect(t.Context(), d)
		if err == nil {
			t.Errorf("%s: Connect succeeded", name)
			_ = ep.Close()
			continue
		}
		if e := w.wellFormed(name, err); e != nil && !strings.Contains(err.Error(), d.Addr) {
			t.Errorf("%s: %q does not name the peer %s", name, err, d.Addr)
		}
	}
	f.close()
	local, target := from.memory(64, segment.LocalOnly), to.memory(64, segment.ReadWrite)
	s := []transport.Slice{slice(transport.Write, local.mem, target.published(), 0)}
	from.tag(s)
	if _, err := f.post(s, nil); err != nil {
		w.wellFormed("a closed endpoint", err)
	}
}

// freePort returns an address where nobody listens.
func freePort(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("find a free port: %v", err)
	}
	defer l.Close()
	return l.Addr().String()
}

// wellFormed checks that err says what, where and why, and returns it.
func (w *world) wellFormed(when string, err error) *errs.Error {
	w.Helper()
	var e *errs.Error
	if !errors.As(err, &e) {
		w.Errorf("%s: %q is not an *errs.Error", when, err)
		return nil
	}
	if e.Op == "" || e.Reason == errs.OK || e.Transport != w.driver.Name() || e.Detail == "" && e.Err == nil {
		w.Errorf("%s: %q has op %q, reason %v, transport %q, detail %q: each must say something, the transport %q",
			when, err, e.Op, e.Reason, e.Transport, e.Detail, w.driver.Name())
	}
	if e.Reason.Kind() == errs.ErrInternal {
		w.Errorf("%s: %q is of the kind internal, which is for broken invariants", when, err)
	}
	return e
}

// completionErrors makes slices fail in every way that the ordeals know, and a
// few more.
func completionErrors(t testing.TB, cfg *Config) {
	t.Helper()
	eachOrdeal(t, cfg, func(o *ordeal) {
		o.run(nil)
		for _, c := range o.done {
			o.consistent(o.name, c)
		}
	})
	w := newWorld(t, cfg, nil)
	from, to := w.pair()
	f := from.connect(to)
	local, target := from.memory(64, segment.LocalOnly), to.memory(64, segment.RemoteRead)
	unknown := *target.published()
	unknown.Key += 1000
	unknown.Access = segment.ReadWrite
	for name, s := range map[string]transport.Slice{
		"a read-only buffer": slice(transport.Write, local.mem, target.published(), 0),
		"out of range":       slice(transport.Read, local.mem, target.published(), 1),
		"unknown key":        slice(transport.Read, local.mem, &unknown, 0),
		"no op":              slice(0, local.mem, target.published(), 0),
	} {
		if cfg.Addressed && name == "unknown key" {
			continue
		}
		c := f.try(s)
		if c.Code == errs.OK {
			t.Errorf("%s: succeeded", name)
		}
		w.consistent(name, c)
	}
}

// consistent checks one completion.
func (w *world) consistent(when string, c transport.Completion) {
	w.Helper()
	if strings.HasPrefix(c.Code.String(), "code_") || c.Code.Kind() == errs.ErrInternal {
		w.Errorf("%s: a slice ended with %v (%v)", when, c.Code, c.Err)
	}
	if c.Code == errs.OK && (c.Err != nil || c.InDoubt) {
		w.Errorf("%s: a slice succeeded, with the error %v, in doubt %v", when, c.Err, c.InDoubt)
	}
	if c.Err != nil && !errors.Is(errs.Of(c.Err).Kind(), c.Code.Kind()) {
		w.Errorf("%s: a slice ended with %v, but its detail is %q, which is %v", when, c.Code, c.Err, errs.Of(c.Err))
	}
}
