package transporttest

import (
	"testing"

	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
)

// slowNeighbours: a peer that stands still in the middle of everything it does
// costs the others nothing, neither those who share its target nor those who share
// its initiator.
func slowNeighbours(t testing.TB, cfg *Config) {
	w := newWorld(t, cfg, nil)
	from, to := w.pair()
	third := w.third(to)
	h := &hostileCheck{from: from, to: to}
	for _, way := range []direction{up, down} {
		h.beside(third, to, way, "beside a held initiator")
		h.beside(from, third, way, "beside a held target")
	}
}

// beside holds an endpoint from a to b in one direction, half-way in slices of
// both kinds, and lets the honest pair work.
func (h *hostileCheck) beside(a, b *host, way direction, when string) {
	h.from.Helper()
	const n, cell = 8, 128 << 10
	held := a.connect(b)
	local, target := a.memory(n*cell, segment.LocalOnly), b.memory(n*cell, segment.ReadWrite)
	s := make([]transport.Slice, n)
	for i := range s {
		s[i] = slice(transport.Op(1+i%2), local.mem[i*cell:(i+1)*cell], target.published(), uint64(i*cell))
	}
	held.do(s[:2], nil)
	a.wire.allow(way, cell+cell/2)
	tags := a.tag(s)
	taken, _ := held.post(s, nil)
	if !eventually(a.cfg.Patience, a.wire.holding) {
		a.Fatalf("nothing reached the wire")
	}
	f := h.from.connect(h.to)
	mine, theirs := h.from.memory(honestSize, segment.LocalOnly), h.to.memory(honestSize, segment.ReadWrite)
	h.honest(f, mine, theirs, when)
	f.close()
	a.wire.thaw()
	held.await(tags[:taken])
	held.close()
}
