package engine

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/topology"
	"github.com/tideway-io/tideway/transport"
)

// named is a fake under another name.
type named struct {
	*fake
	name string
}

func (n named) Name() string { return n.name }

// TestForcedTransport: what is not open here refuses the call; what the peer does
// not have fails that request alone, and says so.
func TestForcedTransport(t *testing.T) {
	f, other, net := &fake{}, &fake{}, &network{}
	net.put(peerDesc("b:1", 7))
	e := openFake(t, f, net, func(c *Config) { c.Drivers = append(c.Drivers, named{other, "other"}) })
	_, kv := lookUp(t, e, "b:1")
	force := func(name string) Request {
		r := writes(1, kv)[0]
		r.Transport = name
		return r
	}
	b := e.NewBatch()
	if err := b.Add(t.Context(), []Request{force("fake"), force("pigeon")}); !errors.Is(err, errs.ErrUnsupported) || b.Len() != 0 {
		t.Errorf("a transport that is not open: %v, %d requests taken", err, b.Len())
	}
	add(t, b, force("fake"), force("other"))
	b.Seal()
	holding(t, f, 1)
	f.complete(errs.OK)
	_ = done(t, b)
	for i, r := range b.Results() {
		switch {
		case i == 0 && (r.Err != nil || r.Transport != "fake"):
			t.Errorf("forced to what both have: %+v", r)
		case i == 1 && errs.Of(r.Err) != errs.NoCommonTransport:
			t.Errorf("forced to what the peer does not have: %v", r.Err)
		}
	}
	x, err := e.Explain(t.Context(), force("other"))
	if err != nil || len(x.Chosen) != 0 || len(x.Candidates) != 2 {
		t.Errorf("explanation: %+v, %v", x, err)
	}
}

func TestTransportsThatDoNotOpen(t *testing.T) {
	bad := &fake{openErr: errs.New(errs.Unsupported, "open", "no such device")}
	net := &network{}
	e := openFake(t, &fake{}, net, func(c *Config) { c.Drivers = append(c.Drivers, named{bad, "bad"}) })
	s := e.Inspect()
	if len(s.Transports) != 2 || s.Transports[1].Open || s.Transports[1].Reason == "" || len(s.Conditions) != 1 {
		t.Errorf("inspection: %+v", s.Transports)
	}
	for name, cfg := range map[string]Config{
		"none is left":      {Drivers: []transport.Driver{bad}},
		"asked for by name": {Drivers: []transport.Driver{&fake{}, named{bad, "bad"}}, Transports: []string{"fake", "bad"}},
	} {
		cfg.Logger = slog.New(slog.DiscardHandler)
		if _, err := Open(context.Background(), cfg); !errors.Is(err, errs.ErrUnsupported) {
			t.Errorf("%s: %v, want unsupported", name, err)
		}
	}
	if _, err := Open(t.Context(), Config{Drivers: []transport.Driver{&fake{}, &fake{}}}); !errors.Is(err, errs.ErrInvalid) {
		t.Errorf("two drivers of one name: %v, want invalid", err)
	}
}

// lender is a fake whose peers can map what it allocates, while it has any.
type lender struct {
	*fake
	memory []byte
	freed  int
}

func (l *lender) Open(ctx context.Context, env transport.Env) (transport.Transport, error) {
	_, err := l.fake.Open(ctx, env)
	return l, err
}

func (l *lender) Alloc(n uint64, _ topology.Location) ([]byte, func() error, error) {
	if n > uint64(len(l.memory)) {
		return nil, nil, errs.New(errs.Overloaded, "allocate", "%d bytes: there are %d", n, len(l.memory))
	}
	return l.memory[:n], func() error { l.freed++; return nil }, nil
}

// TestAllocTakesWhatPeersCanMap: the memory is the transport's, and goes back
// there; where it has none, any memory will do.
func TestAllocTakesWhatPeersCanMap(t *testing.T) {
	l := &lender{fake: &fake{}, memory: make([]byte, 4096)}
	e, err := Open(t.Context(), Config{Drivers: []transport.Driver{l}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	b, err := e.Alloc(4096, Registration{Name: "lent", Access: segment.RemoteRead})
	if err != nil || &b.Bytes()[0] != &l.memory[0] {
		t.Errorf("the memory is not the transport's, %v", err)
	}
	other, err := e.Alloc(8192, Registration{Name: "other", Access: segment.RemoteRead})
	if err != nil || len(other.Bytes()) != 8192 {
		t.Errorf("more than the transport has: %v", err)
	}
	own, err := e.Alloc(4096, Registration{})
	if err != nil || &own.Bytes()[0] == &l.memory[0] {
		t.Errorf("memory that is for no peer is the transport's, %v", err)
	}
	if err := errors.Join(b.Close(), other.Close(), own.Close()); err != nil || l.freed != 1 {
		t.Errorf("freed %d times, %v", l.freed, err)
	}
	if _, err := e.Alloc(0, Registration{}); !errors.Is(err, errs.ErrInvalid) {
		t.Errorf("no bytes: %v", err)
	}
}

// TestSameHost: a transport of one host is tried with every peer that may be
// there, and with no other.
func TestSameHost(t *testing.T) {
	f := &fake{caps: transport.Caps{SameHost: true}}
	net := &network{}
	e := openFake(t, f, net)
	for i, c := range []struct {
		host string
		want bool
	}{{e.host, true}, {"", true}, {"another", false}} {
		name := "b:" + string(rune('1'+i))
		d := peerDesc(name, segment.Incarnation(7+i))
		d.Host = c.host
		net.put(d)
		_, kv := lookUp(t, e, name)
		x, err := e.Explain(t.Context(), writes(1, kv)[0])
		if got := len(x.Chosen) == 1; err != nil || got != c.want {
			t.Errorf("a peer on host %q: %+v, %v", c.host, x, err)
		}
	}
}
