package tideway_test

import (
	"testing"
	"time"

	"github.com/tideway-io/tideway"
	"github.com/tideway-io/tideway/internal/testenv"
	"github.com/tideway-io/tideway/segment"
)

// wireTo returns an engine and the address of the buffer of a target in another
// process, known to it through a store: as Tideway's, or as Mooncake's.
func wireTo(t *testing.T, mooncake bool) (*tideway.Engine, *tideway.Segment, uint64) {
	t.Helper()
	d := &storeDouble{values: map[string]string{}, strip: mooncake}
	at := d.listenFor(t, "http")
	startTarget(t, spec{Config: targetConfig{Store: at, Name: "target"}, Buffers: []targetBuffer{{Name: "kv", Size: 64 << 20, Access: segment.ReadWrite}}})
	e, closing := member(t, at, "initiator")
	t.Cleanup(closing)
	testenv.Eventually(t, 10*time.Second, func() bool {
		s, err := e.OpenSegment(t.Context(), "target")
		return err == nil && len(s.Buffers()) == 1
	}, "the target's buffer is published")
	s := openNamed(t, e, "target")
	return e, s, s.Buffers()[0].Addr
}

// TestSpeedMooncake holds Mooncake's wire to our own: 1 MiB, four in flight, one
// bulk lane each, in turns. Ours has checksums, theirs none.
func TestSpeedMooncake(t *testing.T) {
	testenv.NeedSpeed(t)
	const size = 1 << 20
	local := make([]byte, 64<<20)
	rate := map[bool]func(tideway.Op) float64{}
	for _, mooncake := range []bool{true, false} {
		e, s, base := wireTo(t, mooncake)
		transport := map[bool]string{true: "mooncake", false: "tcp"}[mooncake]
		rate[mooncake] = func(op tideway.Op) float64 {
			return requestRate(t, e, size, 4, 700*time.Millisecond, func(n int) tideway.Request {
				at := n * size % len(local)
				return tideway.Request{Op: op, Local: tideway.Bytes(local[at : at+size]), Remote: s.At(base + uint64(at)), Transport: transport}
			})
		}
	}
	for _, op := range []tideway.Op{tideway.Write, tideway.Read} {
		theirs, ours := pairs(5, 0.8, func() float64 { return rate[true](op) }, func() float64 { return rate[false](op) })
		t.Logf("%v 1 MiB: %.2f GB/s on Mooncake's wire, %.2f on ours: %.2f", op, theirs/1e9, ours/1e9, theirs/ours)
		if theirs < 0.8*ours {
			t.Errorf("%v: Mooncake's wire has %.2f of ours, want 0.8", op, theirs/ours)
		}
	}
}
