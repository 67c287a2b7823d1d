package transporttest

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
)

// damage is one way in which a wire falsifies a stretch of bytes.
type damage struct {
	name string
	spot func(p []byte, at int, rng *rand.Rand) (out []byte, cut bool) // p[at] is where it strikes
}

var damages = []damage{
	{"a bit flipped", func(p []byte, at int, rng *rand.Rand) ([]byte, bool) {
		p[at] ^= 1 << rng.IntN(8)
		return p, false
	}},
	{"eight bytes of noise", func(p []byte, at int, rng *rand.Rand) ([]byte, bool) {
		for i := at; i < min(at+8, len(p)); i++ {
			p[i] = byte(rng.Uint32())
		}
		return p, false
	}},
	{"bytes lost", func(p []byte, at int, rng *rand.Rand) ([]byte, bool) {
		n := min(1+rng.IntN(64), len(p)-at)
		return append(p[:at:at], p[at+n:]...), false
	}},
	{"bytes twice", func(p []byte, at int, rng *rand.Rand) ([]byte, bool) {
		n := min(1+rng.IntN(4096), len(p)-at)
		return append(p[:at+n:at+n], p[at:]...), false
	}},
	{"zeros inserted", func(p []byte, at int, rng *rand.Rand) ([]byte, bool) {
		return append(append(p[:at:at], make([]byte, 1+rng.IntN(64))...), p[at:]...), false
	}},
	{"cut short", func(p []byte, at int, _ *rand.Rand) ([]byte, bool) { return p[:at], true }},
}

// checkCorruption: "Corruption is detected on every path that leaves shared memory,
// counted, retried, and never delivered."
//
// For a transport: with bytes falsified, lost, doubled or cut short at random
// places, both ways, a slice that succeeds has its right bytes, and the pair
// recovers.
func checkCorruption(t testing.TB, cfg *Config) {
	w := newWorld(t, cfg, func(l *transport.Limits) { l.StallTimeout = 300 * time.Millisecond })
	from, to := w.pair()
	f := from.connect(to)
	count := rounds(8)
	c := &corruptCheck{
		local:  from.memory(corruptSlices*corruptCell, segment.LocalOnly),
		target: to.memory(count*len(damages)*2*corruptSlices*corruptCell, segment.ReadWrite),
		rng:    rand.New(rand.NewPCG(w.seed, 10)),
	}
	f.do([]transport.Slice{slice(transport.Write, c.local.mem[:8], c.target.published(), 0)}, nil)
	f.close()
	if from.wire.dialled() == 0 {
		t.Skipf("no byte leaves shared memory")
	}
	if !from.tr.Caps().Checks {
		t.Skipf("Caps.Checks is false: the wire has no checksum")
	}
	for range count {
		for _, d := range damages {
			c.strike(from, to, d, up)
			c.strike(from, to, d, down)
		}
	}
	t.Logf("%d rounds were struck, %d slices failed, %d payloads did not match", c.struck, c.failed, c.counted)
	if c.observed && c.counted == 0 {
		t.Errorf("no mismatch was counted in RailState.Checksums")
	}
	if c.struck == 0 || c.failed == 0 {
		t.Errorf("%d rounds were struck and %d slices failed: the check did not reach the wire", c.struck, c.failed)
	}
}

const (
	corruptSlices = 8
	corruptCell   = 32 << 10
)

type corruptCheck struct {
	local, target  *buffer
	rng            *rand.Rand
	round          uint64
	struck, failed int
	observed       bool   // the endpoint is an Observer
	counted        uint64 // mismatches that it has counted
}

// strike damages one place on one connection while a few slices are under way.
func (c *corruptCheck) strike(from, to *host, d damage, way direction) {
	from.Helper()
	f := from.reconnect(to)
	old, data := key(mix(from.seed+c.round*4)), key(mix(from.seed+c.round*4+1))
	base := c.round * corruptSlices * corruptCell // a fresh part each round: a WRITE that failed may be in doubt
	c.round++
	s := make([]transport.Slice, corruptSlices)
	for i := range s {
		off := base + uint64(i*corruptCell)
		local := c.localFor(off)
		s[i] = slice(transport.Write, local, c.target.published(), off)
		data.fill(local, off)
		c.target.fillRange(old, off, corruptCell)
		if i%2 == 0 {
			s[i].Op = transport.Read
			old.fill(local, off)
			c.target.fillRange(data, off, corruptCell)
		}
	}
	tags := from.tag(s)
	left, struck := c.rng.IntN(corruptSlices*corruptCell/2+512), false
	if c.rng.IntN(4) == 0 {
		left = c.rng.IntN(512) // often among the heads of the first frames
	}
	from.wire.setFilter(func(dir direction, _ int64, p []byte) ([]byte, bool) {
		if dir != way || struck {
			return p, false
		}
		if left >= len(p) {
			left -= len(p)
			return p, false
		}
		struck = true
		return d.spot(p, left, c.rng)
	})
	taken, _ := f.post(s, nil)
	done := f.await(tags[:taken])
	from.wire.setFilter(nil)
	if struck {
		c.struck++
	}
	c.verify(s[:taken], done, data, fmt.Sprintf("round %d, %s, direction %d", c.round, d.name, way))
	if o, ok := transport.As[transport.Observer](f.ep); ok {
		c.observed = true
		for _, r := range o.Observe() {
			c.counted += r.Checksums
		}
	}
	f.close()
	c.target.host.reg.sync()
	c.target.intact()
}

// localFor returns the local range for the target range at off.
func (c *corruptCheck) localFor(off uint64) []byte {
	off %= corruptSlices * corruptCell
	return c.local.mem[off : off+corruptCell]
}

// verify checks that whatever succeeded is right.
func (c *corruptCheck) verify(s []transport.Slice, done []transport.Completion, data key, what string) {
	h := c.local.host
	h.Helper()
	for i, sl := range s {
		if done[i].Code != errs.OK {
			c.failed++
			continue
		}
		if at := wrong(sl, c.target, data); at >= 0 {
			h.Errorf("%s: %v %d succeeded with a wrong byte at %d", what, sl.Op, i, at)
		}
	}
}
