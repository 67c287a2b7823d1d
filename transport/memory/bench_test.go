package memory

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/registry"
	"github.com/tideway-io/tideway/internal/testenv"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
)

// tally is a sink that signals when a whole round has completed.
type tally struct {
	left int // only touched by one Post's goroutine or one worker at a time
	all  chan struct{}
	bad  errs.Code
}

func (s *tally) Complete(done []transport.Completion) {
	for i := range done {
		if done[i].Code != errs.OK {
			s.bad = done[i].Code
		}
	}
	if s.left -= len(done); s.left == 0 {
		s.all <- struct{}{}
	}
}

// rounds returns a function that posts n slices of size bytes over a region of
// 64 MiB in order, and waits for them.
func rounds(tb testing.TB, n, size int) func() {
	const region = 64 << 20
	reg := registry.New(registry.Options{})
	sink := &tally{all: make(chan struct{}, 1)}
	tr, err := New().Open(tb.Context(), transport.Env{Sink: sink, Memory: reg, Self: transport.Self{Incarnation: 1}})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = tr.Close() })
	tr.(*Transport).large.max = 1 // tally counts without a lock
	b, err := reg.Register(tb.Context(), registry.Registration{Bytes: bytes.Repeat([]byte{1}, region), Access: segment.ReadWrite})
	if err != nil {
		tb.Fatal(err)
	}
	ep, err := tr.Connect(tb.Context(), &segment.Desc{Incarnation: 1})
	if err != nil {
		tb.Fatal(err)
	}
	local := bytes.Repeat([]byte{2}, region)
	s, at := make([]transport.Slice, n), 0
	return func() {
		for i := range s {
			s[i] = transport.Slice{Op: transport.Write, Local: local[at : at+size], Buffer: b.Desc(), Offset: uint64(at), Tag: transport.Tag(i)}
			if at += size; at+size > region {
				at = 0
			}
		}
		sink.left = n
		if took, err := ep.Post(s); took != n {
			tb.Fatal(took, err)
		}
		if <-sink.all; sink.bad != errs.OK {
			tb.Fatal(sink.bad)
		}
	}
}

func TestNoAllocationPerSlice(t *testing.T) {
	for _, c := range []struct{ n, size int }{{128, 4096}, {1, 4096}, {4, inlineSlice + 1}} {
		testenv.MaxAllocs(t, 0, rounds(t, c.n, c.size))
	}
}

func BenchmarkPost(b *testing.B) {
	for _, c := range []struct{ n, size int }{{1, 64}, {128, 64}, {1, 4 << 10}, {128, 4 << 10}, {16, 64 << 10}, {4, 1 << 20}, {1, 16 << 20}} {
		b.Run(fmt.Sprintf("%dx%dB", c.n, c.size), func(b *testing.B) {
			b.ReportAllocs()
			post(b, c.n, c.size)
		})
	}
}

func post(b *testing.B, n, size int) {
	round := rounds(b, n, size)
	b.SetBytes(int64(n * size))
	for b.Loop() {
		round()
	}
}

// BenchmarkCopy is what Post is held against: the same walk with copy alone.
func BenchmarkCopy(b *testing.B) {
	for _, size := range []int{64, 4 << 10, 64 << 10, 1 << 20, 16 << 20} {
		b.Run(fmt.Sprintf("%dB", size), func(b *testing.B) { plain(b, size) })
	}
}

func plain(b *testing.B, size int) {
	const region = 64 << 20
	dst, src, at := bytes.Repeat([]byte{1}, region), bytes.Repeat([]byte{2}, region), 0 // touched: no page faults in what is measured
	b.SetBytes(int64(size))
	for b.Loop() {
		copy(dst[at:at+size], src[at:])
		if at += size; at+size > region {
			at = 0
		}
	}
}

// TestSpeedOfMemory holds transfers within one process against copy.
func TestSpeedOfMemory(t *testing.T) {
	testenv.NeedSpeed(t)
	for _, c := range []struct {
		n, size int
		least   float64
	}{{128, 4 << 10, 0.6}, {16, 64 << 10, 0.85}, {4, 1 << 20, 0.9}, {1, 16 << 20, 0.9}} {
		best := 0.0
		for range 3 {
			ours := testing.Benchmark(func(b *testing.B) { post(b, c.n, c.size) })
			theirs := testing.Benchmark(func(b *testing.B) { plain(b, c.size) })
			best = max(best, float64(theirs.NsPerOp())*float64(c.n)/float64(ours.NsPerOp()))
		}
		t.Logf("%d x %d bytes: %.2f of copy", c.n, c.size, best)
		if best < c.least {
			t.Errorf("%d x %d bytes at %.2f of copy, want at least %.2f", c.n, c.size, best, c.least)
		}
	}
}
