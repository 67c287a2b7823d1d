package engine

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"github.com/tideway-io/tideway/errs"
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
