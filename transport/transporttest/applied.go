package transporttest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/topology"
	"github.com/tideway-io/tideway/transport"
)

// checkApplied: "A WRITE is complete only when the bytes are visible at the
// target to any reader; a READ only when every byte is in the local range."
//
// The target is poisoned, written, and looked at from inside the completion,
// directly; then a second host reads it. Sizes sit on and around the limits of
// pages, frames and slices, at odd alignments on both sides.
func checkApplied(t testing.TB, cfg *Config) {
	w := newWorld(t, cfg, nil)
	from, to := w.pair()
	reader := w.third(to)
	size := cfg.largest(from)
	a := &appliedCheck{
		write: from.connect(to), read: reader.connect(to),
		local:  from.memory(size+slack, segment.LocalOnly),
		second: reader.memory(size+slack, segment.LocalOnly),
	}
	targets := []*buffer{to.memory(size+3*slack, segment.ReadWrite)}
	if slices.Contains(to.tr.Caps().Remote, topology.File.Kind()) {
		targets = append(targets, to.file(size+3*slack, segment.ReadWrite))
	}
	for _, target := range targets {
		for _, n := range []int{0, 1, 7, 4095, 4096, 4097, 65535, 65536, 65537, 1<<20 - 1, 1 << 20, 1<<20 + 1, size} {
			for _, align := range []int{0, 1, 3} {
				if n <= size && !t.Failed() {
					a.round++
					a.exchange(target, n, align, slack+5*align)
				}
			}
		}
	}
}

// slack is how far ranges are moved about inside their buffers.
const slack = 64

type appliedCheck struct {
	write, read   *flow
	local, second *buffer
	round         uint64
}

// exchange writes n bytes, looks at them, reads them through a second host, and
// reads new bytes.
func (a *appliedCheck) exchange(target *buffer, n, localOff, off int) {
	h := a.write.from
	h.Helper()
	seed := h.seed + a.round*16
	poison, data := key(mix(seed)), key(mix(seed+1))
	from, span := uint64(off-slack), uint64(n+2*slack) // the range and what is around it
	target.fillRange(poison, from, span)
	data.fill(a.local.mem[localOff:localOff+n], uint64(off))
	what := fmt.Sprintf("round %d, %d bytes at %d in %s", a.round, n, off, target.buf.Name)

	s := slice(transport.Write, a.local.mem[localOff:localOff+n], target.published(), uint64(off))
	a.write.do([]transport.Slice{s}, func(o *op) {
		if i := target.differs(data, uint64(off), uint64(n)); o.done.Code == errs.OK && i >= 0 {
			h.Errorf("%s: the WRITE completed, but byte %d is not at the target", what, i)
		}
	})
	if i := target.differs(poison, from, slack); i >= 0 {
		h.Errorf("%s: the WRITE changed byte %d before its range", what, i)
	}
	if i := target.differs(poison, uint64(off+n), slack); i >= 0 {
		h.Errorf("%s: the WRITE changed byte %d after its range", what, i)
	}
	a.expect(a.read, a.second, target, data, off, n, what+", second reader")

	fresh := key(mix(seed + 2))
	target.fillRange(fresh, from, span)
	a.expect(a.write, a.local, target, fresh, off, n, what)
}

// expect reads n bytes at off into mem and checks them from inside the
// completion.
func (a *appliedCheck) expect(f *flow, mem, target *buffer, data key, off, n int, what string) {
	f.from.Helper()
	blank := key(mix(uint64(data)))
	blank.fill(mem.mem[:n+slack], 0)
	dst := mem.mem[slack/2 : slack/2+n]
	s := slice(transport.Read, dst, target.published(), uint64(off))
	f.do([]transport.Slice{s}, func(o *op) {
		if i := data.differs(dst, uint64(off)); o.done.Code == errs.OK && i >= 0 {
			f.from.Errorf("%s: the READ completed, but byte %d is not in the local range", what, i)
		}
	})
	if blank.differs(mem.mem[:slack/2], 0) >= 0 || blank.differs(mem.mem[slack/2+n:][:slack/2], uint64(slack/2+n)) >= 0 {
		f.from.Errorf("%s: the READ changed bytes around the local range", what)
	}
}

// checkMixing: "Nothing in the target range is meaningful before success;
// requests in a batch have no order."
//
// What follows for a transport: whatever overtakes whatever, each slice's bytes
// end in its own range. Two endpoints, several posters, every class, reads and
// writes of many sizes side by side, each checked byte by byte.
func checkMixing(t testing.TB, cfg *Config) {
	w := newWorld(t, cfg, func(l *transport.Limits) { l.Lanes = 3 })
	from, to := w.pair()
	m := &mixingCheck{
		flows:  []*flow{from.connect(to), from.connect(to)},
		local:  from.memory(posters*perPoster*cell, segment.LocalOnly),
		target: to.memory(posters*perPoster*cell, segment.ReadWrite),
	}
	for round := range rounds(8) {
		m.round(key(mix(w.seed ^ uint64(round)<<32)))
	}
}

const (
	posters   = 4
	perPoster = 64
	cell      = 32 << 10
)

type mixingCheck struct {
	flows         []*flow
	local, target *buffer
}

// round moves every cell once, in a direction and length of its own.
func (m *mixingCheck) round(k key) {
	h := m.flows[0].from
	h.Helper()
	old, data := key(mix(uint64(k))), key(mix(uint64(k)+1))
	rng := rand.New(rand.NewPCG(uint64(k), 1))
	all := make([]transport.Slice, posters*perPoster)
	for i := range all {
		n, off := 1+rng.IntN(cell-1), uint64(i*cell)
		local := m.local.mem[i*cell : i*cell+n]
		all[i] = slice(transport.Write, local, m.target.published(), off)
		all[i].Class = transport.Class(rng.IntN(4))
		source, dest := m.local.mem[off:off+cell], m.target.mem[off:off+cell]
		if rng.IntN(2) == 0 {
			all[i].Op = transport.Read
			source, dest = dest, source
		}
		old.fill(dest, off)
		data.fill(source, off)
	}
	h.reg.sync()
	m.target.host.reg.sync()
	tags := h.tag(all)
	var wg sync.WaitGroup
	for p := range posters {
		wg.Go(func() {
			for mine := range slices.Chunk(all[p*perPoster:(p+1)*perPoster], 7) { // so that they interleave
				m.flows[p%len(m.flows)].postAll(mine, nil, nil)
			}
		})
	}
	wg.Wait()
	m.verify(all, m.flows[0].await(tags), old, data)
}

// verify checks that each slice moved its own bytes and none else.
func (m *mixingCheck) verify(mine []transport.Slice, done []transport.Completion, old, data key) {
	h := m.flows[0].from
	h.Helper()
	for i, s := range mine {
		if done[i].Code != errs.OK {
			h.Errorf("%v of %d bytes: %v (%v)", s.Op, len(s.Local), done[i].Code, done[i].Err)
			continue
		}
		dest := m.target
		if s.Op == transport.Read {
			dest = m.local
		}
		n := uint64(len(s.Local))
		if at := wrong(s, m.target, data); at >= 0 {
			h.Errorf("%v of %d bytes at %d: byte %d is not its own", s.Op, n, s.Offset, at)
		}
		if at := old.differs(dest.mem[s.Offset+n:s.Offset+cell], s.Offset+n); at >= 0 {
			h.Errorf("%v of %d bytes at %d changed byte %d after its range", s.Op, n, s.Offset, at)
		}
	}
}
