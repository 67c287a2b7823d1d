package transporttest

import (
	"errors"
	"testing"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
)

// checkStale: "A restarted peer never serves an old handle: every request carries
// the target's incarnation and the buffer's registration key; a mismatch is
// ErrStale and touches nothing."
func checkStale(t testing.TB, cfg *Config) {
	staleIncarnation(t, cfg)
	staleKey(t, cfg)
	staleHost(t, cfg)
}

// staleIncarnation connects to a host that is not the one described.
func staleIncarnation(t testing.TB, cfg *Config) {
	t.Helper()
	w := newWorld(t, cfg, nil)
	from, to := w.pair()
	f := from.connect(to)
	desc := *to.desc()
	desc.Incarnation ^= 2
	ep, err := from.tr.Connect(t.Context(), &desc)
	if err == nil {
		t.Errorf("Connect reached another incarnation than the one described")
		_ = ep.Close()
	} else if from.wire.dialled() > 0 && errs.Of(err) != errs.Restarted {
		t.Errorf("Connect to another incarnation: %v, want %v", err, errs.Restarted)
	}
	local, target := from.memory(64, segment.LocalOnly), to.memory(64, segment.ReadWrite)
	f.do([]transport.Slice{slice(transport.Write, local.mem, target.published(), 0)}, nil)
}

// staleKey uses a buffer that its owner closed, before and after the same memory
// is registered again.
func staleKey(t testing.TB, cfg *Config) {
	t.Helper()
	const n = 3 * 4096
	w := newWorld(t, cfg, nil)
	from, to := w.pair()
	f := from.connect(to)
	local, target := from.memory(n, segment.LocalOnly), to.memory(n, segment.ReadWrite)
	stale := target.published()
	f.do([]transport.Slice{slice(transport.Write, local.mem, stale, 0)}, nil)
	if err := target.close(cfg.Prompt); err != nil {
		t.Fatalf("close the buffer: %v", err)
	}
	for _, when := range []string{"closed", "registered again"} {
		old, data := key(mix(w.seed)), key(mix(w.seed+1))
		target.fill(old)
		data.fill(local.mem, 0)
		for _, op := range []transport.Op{transport.Write, transport.Read} {
			c := f.try(slice(op, local.mem, stale, 0))
			if !errors.Is(c.Code.Kind(), errs.ErrStale) {
				t.Errorf("%v with the key of a buffer that was %s: %v (%v), want a code of the kind stale", op, when, c.Code, c.Err)
			}
		}
		if at := target.differs(old, 0, n); at >= 0 {
			t.Errorf("byte %d of a buffer that was %s changed", at, when)
		}
		if at := data.differs(local.mem, 0); at >= 0 {
			t.Errorf("byte %d of a buffer that was %s came back", at, when)
		}
		if when != "closed" {
			break
		}
		again := to.register(&buffer{host: to}, segment.Buffer{
			Name: "again", Addr: stale.Addr, Length: n, Location: stale.Location, Access: segment.ReadWrite,
		}, target.mem, nil)
		f.do([]transport.Slice{slice(transport.Read, local.mem, again.published(), 0)}, nil)
	}
}

// staleHost restarts the target on the same address, with the same keys for the
// same memory layout, under a live endpoint.
func staleHost(t testing.TB, cfg *Config) {
	t.Helper()
	const n = 4096
	w := newWorld(t, cfg, nil)
	from, to := w.pair()
	if from == to {
		return // an engine that restarts takes its endpoints to itself along
	}
	f := from.connect(to)
	local, target := from.memory(n, segment.LocalOnly), to.memory(n, segment.ReadWrite)
	before, stale := to.desc(), target.published()
	f.do([]transport.Slice{slice(transport.Write, local.mem, stale, 0)}, nil)
	to.close()

	reborn := w.hostAt("restarted target", to.addr)
	fresh := reborn.memory(n, segment.ReadWrite)
	if fresh.buf.Key != stale.Key {
		t.Fatalf("the restarted host gave key %d, want %d as before", fresh.buf.Key, stale.Key)
	}
	old, data := key(mix(w.seed)), key(mix(w.seed+1))
	fresh.fill(old)
	data.fill(local.mem, 0)
	for i := range 20 {
		if c := f.try(slice(transport.Op(1+i%2), local.mem, stale, 0)); c.Code == errs.OK {
			t.Fatalf("%v with a handle of the time before the restart succeeded", transport.Op(1+i%2))
		}
		pause()
	}
	ep, err := from.tr.Connect(t.Context(), before)
	if err == nil {
		t.Errorf("Connect with the description of the time before the restart succeeded")
		_ = ep.Close()
	} else if from.wire.dialled() > 0 && errs.Of(err) != errs.Restarted {
		t.Errorf("Connect with the description of the time before the restart: %v, want %v", err, errs.Restarted)
	}
	if at := fresh.differs(old, 0, n); at >= 0 {
		t.Errorf("an old handle changed byte %d of the restarted host's memory", at)
	}
	if at := data.differs(local.mem, 0); at >= 0 {
		t.Errorf("an old handle read byte %d of the restarted host's memory", at)
	}
	g := from.reconnect(reborn)
	g.do([]transport.Slice{slice(transport.Write, local.mem, fresh.published(), 0)}, nil)
	if at := fresh.differs(data, 0, n); at >= 0 {
		t.Errorf("byte %d is not at the restarted host", at)
	}
}
