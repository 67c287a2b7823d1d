package tcp

import (
	"flag"
	"sort"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
)

var regions = flag.Int("tcp.region", 128, "MiB of memory at each side of a benchmark, a power of two")

// countSink counts completions and lets one goroutine wait for a number.
type countSink struct {
	n    atomic.Int64
	bad  atomic.Int64
	want atomic.Int64
	wake chan struct{}
}

func (s *countSink) Complete(done []transport.Completion) {
	for i := range done {
		if done[i].Code != errs.OK {
			s.bad.Add(1)
		}
	}
	if n := s.n.Add(int64(len(done))); n >= s.want.Load() {
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}
}

// reach waits until n slices have completed.
func (s *countSink) reach(n int64) {
	s.want.Store(n)
	for s.n.Load() < n {
		<-s.wake
	}
}

// pair is an initiator and a target on loopback, with plenty of memory.
func pair(b testing.TB, limits transport.Limits) (*Endpoint, *countSink, []byte, *segment.Buffer) {
	size := *regions << 20
	sink := &countSink{wake: make(chan struct{}, 1)}
	x, y := newHost(b, loopback{}, limits), newHost(b, loopback{}, limits)
	x.tr.env.Sink = sink
	local, remote := make([]byte, size), make([]byte, size)
	for _, m := range [][]byte{local, remote} { // untouched memory would be one page of zeros
		pattern(m[:1<<20], 1)
		for n := 1 << 20; n < size; n *= 2 {
			copy(m[n:], m[:n])
		}
	}
	return x.connect(b, y), sink, local, y.memory.add(remote, segment.ReadWrite)
}

// stream keeps depth batches of batch slices of size bytes in flight.
func stream(b *testing.B, op transport.Op, size, batch, depth int, sums bool) {
	limits := defaultLimits()
	limits.Checksum = sums
	ep, sink, local, buf := pair(b, limits)
	slices := make([]transport.Slice, batch)
	at, posted := 0, int64(0)
	b.SetBytes(int64(size * batch))
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		for i := range slices {
			if at+size > len(local) {
				at = 0
			}
			slices[i] = transport.Slice{Op: op, Class: 1, Local: local[at : at+size], Buffer: buf, Offset: uint64(at), Tag: transport.Tag(posted)}
			at += size
			posted++
		}
		for left := slices; len(left) > 0; {
			n, err := ep.Post(left)
			left = left[n:]
			if err != nil {
				sink.reach(sink.n.Load() + 1)
			}
		}
		sink.reach(posted - int64(batch*(depth-1)))
	}
	sink.reach(posted)
	b.StopTimer()
	if n := sink.bad.Load(); n > 0 {
		b.Fatalf("%d slices failed", n)
	}
}

func BenchmarkWrite1M(b *testing.B)    { stream(b, transport.Write, 1<<20, 1, 4, true) }
func BenchmarkRead1M(b *testing.B)     { stream(b, transport.Read, 1<<20, 1, 4, true) }
func BenchmarkWrite1MRaw(b *testing.B) { stream(b, transport.Write, 1<<20, 1, 4, false) }
func BenchmarkRead1MRaw(b *testing.B)  { stream(b, transport.Read, 1<<20, 1, 4, false) }
func BenchmarkWrite64K(b *testing.B)   { stream(b, transport.Write, 64<<10, 16, 2, true) }
func BenchmarkRead64K(b *testing.B)    { stream(b, transport.Read, 64<<10, 16, 2, true) }
func BenchmarkWrite4K(b *testing.B)    { stream(b, transport.Write, 4<<10, 128, 2, true) }
func BenchmarkRead4K(b *testing.B)     { stream(b, transport.Read, 4<<10, 128, 2, true) }
func BenchmarkWrite256(b *testing.B)   { stream(b, transport.Write, 256, 128, 4, true) }
func BenchmarkRead256(b *testing.B)    { stream(b, transport.Read, 256, 128, 4, true) }

// BenchmarkRoundTrip4K reports the latency of one read at a time.
func BenchmarkRoundTrip4K(b *testing.B) {
	ep, sink, local, buf := pair(b, defaultLimits())
	took := make([]time.Duration, 0, b.N)
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		start := time.Now()
		if n, err := ep.Post([]transport.Slice{{Op: transport.Read, Local: local[:4096], Buffer: buf, Tag: transport.Tag(i)}}); n != 1 {
			b.Fatal(err)
		}
		sink.reach(int64(i + 1))
		took = append(took, time.Since(start))
	}
	b.StopTimer()
	sort.Slice(took, func(i, j int) bool { return took[i] < took[j] })
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds()), "p50-ns")
	b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds()), "p99-ns")
}
