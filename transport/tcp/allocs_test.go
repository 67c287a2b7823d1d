//go:build !race

package tcp

import (
	"testing"

	"github.com/tideway-io/tideway/transport"
)

// TestAllocs: in the steady state a batch of slices costs no allocation, at
// either end, whatever their size.
func TestAllocs(t *testing.T) {
	for _, op := range []transport.Op{transport.Write, transport.Read} {
		for _, size := range []int{256, 4096, 100_000, 1 << 20} {
			ep, sink, local, buf := pair(t, defaultLimits())
			slices := make([]transport.Slice, max(1, min(128, 8<<20/size)))
			for i := range slices {
				slices[i] = transport.Slice{Op: op, Class: 1, Local: local[i*size : (i+1)*size], Buffer: buf, Offset: uint64(i * size), Tag: transport.Tag(i)}
			}
			posted := int64(0)
			batch := func() {
				if n, err := ep.Post(slices); n != len(slices) {
					t.Fatal(n, err)
				}
				posted += int64(len(slices))
				sink.reach(posted)
			}
			for range 50 { // queues grow to what they need, further lanes open
				batch()
			}
			if n := testing.AllocsPerRun(100, batch); n >= 1 {
				t.Errorf("%v of %d slices of %d bytes: %v allocations", op, len(slices), size, n)
			}
			if n := sink.bad.Load(); n > 0 {
				t.Errorf("%d slices failed", n)
			}
		}
	}
}
