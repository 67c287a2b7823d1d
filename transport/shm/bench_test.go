package shm

import (
	"fmt"
	"testing"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/mem"
	"github.com/tideway-io/tideway/internal/sys"
	"github.com/tideway-io/tideway/internal/testenv"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
)

// span is how far the rounds below walk, so that nothing stays in a cache.
const span = 128 << 20

// tally is a sink that signals when a whole round has completed.
type tally struct {
	engine *engine
	left   chan int // completions of one call
}

func (s *tally) Complete(done []transport.Completion) {
	for i := range done {
		if done[i].Code != errs.OK {
			panic(fmt.Sprint("a slice ended with ", done[i].Code, done[i].Err))
		}
	}
	s.left <- len(done)
}

// touched returns span bytes of the kind that engines allocate: the pages are
// there, and huge where the host has such.
func touched(tb testing.TB) []byte {
	tb.Helper()
	b, free, err := mem.Alloc(span, mem.Options{Prefault: true})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = free() })
	testenv.Poison(b)
	return b
}

// rounds returns a function that posts n slices of size bytes between local
// memory and the child's, and waits for them.
func rounds(tb testing.TB, kind string, op transport.Op, n, size int) func() {
	tb.Helper()
	e, p := start(tb, options{}), spawn(tb, nature{})
	sink := &tally{e.engine, make(chan int, 4*n)}
	ep := e.connect(p.card)
	b := p.buffer(kind, "b", span, segment.ReadWrite)
	p.ask(nil, command{Do: "fill", Name: "b"}) // touched, so that no round makes pages
	local := touched(tb)
	e.ok(e.do(ep, op, local, b, 0)) // and so are these
	e.tr.env.Sink = sink
	s, at := make([]transport.Slice, n), 0
	return func() {
		for i := range s {
			s[i] = transport.Slice{Op: op, Class: 1, Local: local[at : at+size], Buffer: b, Offset: uint64(at), Tag: transport.Tag(i)}
			if at += size; at+size > span {
				at = 0
			}
		}
		if took, err := ep.Post(s); took != n {
			tb.Fatal(took, err)
		}
		for left := n; left > 0; {
			left -= <-sink.left
		}
	}
}

func TestNoAllocationPerSlice(t *testing.T) {
	for _, c := range []struct {
		kind    string
		op      transport.Op
		n, size int
	}{
		{"alloc", transport.Write, 128, 4096}, {"alloc", transport.Read, 1, 4096}, {"alloc", transport.Write, 4, 1 << 20},
		{"heap", transport.Read, 128, 4096}, {"heap", transport.Read, 4, 1 << 20}, {"heap", transport.Write, 128, 4096}, {"heap", transport.Write, 4, 1 << 20},
	} {
		t.Run(fmt.Sprintf("%s/%v/%dx%d", c.kind, c.op, c.n, c.size), func(t *testing.T) {
			testenv.MaxAllocs(t, 0, rounds(t, c.kind, c.op, c.n, c.size))
		})
	}
}

func BenchmarkPost(b *testing.B) {
	for _, kind := range kinds {
		for _, op := range []transport.Op{transport.Read, transport.Write} {
			for _, c := range []struct{ n, size int }{{1, 64}, {128, 4 << 10}, {1, 64 << 10}, {16, 64 << 10}, {8, 1 << 20}, {1, 16 << 20}} {
				b.Run(fmt.Sprintf("%s/%v/%dx%dB", kind, op, c.n, c.size), func(b *testing.B) {
					b.ReportAllocs()
					measure(b, rounds(b, kind, op, c.n, c.size), c.n*c.size)
				})
			}
		}
	}
}

func measure(b *testing.B, round func(), size int) {
	b.SetBytes(int64(size))
	for b.Loop() {
		round()
	}
}

// twoMappings is the yardstick for mapped memory: copy between two mappings.
func twoMappings(tb testing.TB, size int) func() {
	tb.Helper()
	var maps [2][]byte
	for i := range maps {
		fd, err := sys.NewMemfd("yardstick", span, 0)
		if err != nil {
			tb.Fatal(err)
		}
		m, unmap, err := mem.Map(fd, span, true)
		if err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(func() { _, _ = unmap(), sys.Close(fd) })
		testenv.Poison(m)
		maps[i] = m
	}
	at := 0
	return func() {
		copy(maps[0][at:at+size], maps[1][at:])
		if at += size; at+size > span {
			at = 0
		}
	}
}

// bareRead is the yardstick for attach: process_vm_readv and nothing else.
func bareRead(tb testing.TB, size int) func() {
	tb.Helper()
	p := spawn(tb, nature{})
	b := p.buffer("heap", "b", span, segment.ReadWrite)
	p.ask(nil, command{Do: "fill", Name: "b"})
	local, at := touched(tb), 0
	var r sys.Ranges
	return func() {
		r.Reset()
		r.Add(local[at:at+size], b.Addr+uint64(at))
		if n, err := r.Read(p.Pid); n != size {
			tb.Fatal(n, err)
		}
		if at += size; at+size > span {
			at = 0
		}
	}
}

// TestSpeedOfSharedMemory holds slices between two processes against what the
// same memory allows with nothing in between.
func TestSpeedOfSharedMemory(t *testing.T) {
	testenv.NeedSpeed(t)
	for _, c := range []struct {
		kind    string
		op      transport.Op
		n, size int
		least   float64
		bare    func(testing.TB, int) func()
	}{
		{"alloc", transport.Write, 1, 1 << 20, 0.9, twoMappings}, {"alloc", transport.Write, 8, 1 << 20, 0.9, twoMappings},
		{"alloc", transport.Write, 1, 16 << 20, 0.9, twoMappings}, {"alloc", transport.Read, 8, 1 << 20, 0.9, twoMappings},
		{"heap", transport.Read, 8, 1 << 20, 0.9, bareRead}, {"heap", transport.Read, 1, 16 << 20, 0.9, bareRead},
		{"heap", transport.Write, 8, 1 << 20, 0.9, bareRead}, {"heap", transport.Write, 1, 16 << 20, 0.9, bareRead},
	} {
		best := 0.0
		for range 3 {
			ours := testing.Benchmark(func(b *testing.B) { measure(b, rounds(b, c.kind, c.op, c.n, c.size), 0) })
			theirs := testing.Benchmark(func(b *testing.B) { measure(b, c.bare(b, c.size), 0) })
			best = max(best, float64(theirs.NsPerOp())*float64(c.n)/float64(ours.NsPerOp()))
		}
		t.Logf("%s, %v, %d x %d bytes: %.2f of what memory allows", c.kind, c.op, c.n, c.size, best)
		if best < c.least {
			t.Errorf("%s, %v, %d x %d bytes at %.2f of what memory allows, want at least %.2f", c.kind, c.op, c.n, c.size, best, c.least)
		}
	}
}

// TestIdle: with a peer connected and nothing under way, nobody looks at a clock.
func TestIdle(t *testing.T) {
	e, other := start(t, options{}), start(t, options{})
	b := e.must(e.heap("b", 4096, segment.ReadWrite))
	ep := other.connect(e.card())
	other.ok(other.do(ep, transport.Write, make([]byte, 4096), b.Desc(), 0))
	last, since := other.looks.Load(), time.Now()
	testenv.Eventually(t, 5*time.Second, func() bool {
		if n := other.looks.Load(); n != last {
			last, since = n, time.Now()
		}
		return time.Since(since) > 3*maxTick
	}, "the clock is left alone")
}
