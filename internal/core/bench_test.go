package core

import (
	"fmt"
	"testing"
	"time"

	"github.com/tideway-io/tideway/internal/testenv"
	"github.com/tideway-io/tideway/transport"
)

// loop is a shard with one connected path whose slices all complete at once.
type loop struct {
	s    *Shard
	path PathID
	now  Time
	out  Actions
	done []transport.Completion
	ts   []Transfer
	ids  []TransferID
}

func newLoop(batch int, length uint64, rails int) *loop {
	l := &loop{s: NewShard(Config{Retries: 3}), ts: make([]Transfer, batch), ids: make([]TransferID, batch)}
	l.path = l.s.AddPath(PathSpec{Fences: true})
	for i := range l.ts {
		l.ts[i] = Transfer{Owner: uint64(i), Op: transport.Write, Class: 1, Length: length, Rungs: 1, Ladder: [Rungs]PathID{l.path}}
	}
	l.s.Submit(0, l.ts[:1], l.ids, &l.out)
	l.out.Reset()
	l.s.Connected(0, l.path, make([]RailSpec, rails), &l.out)
	l.drain()
	return l
}

// drain completes what was posted until nothing is in flight; it returns how
// many slices that took.
func (l *loop) drain() (slices int) {
	for {
		l.done = l.done[:0]
		for _, p := range l.out.Posts {
			for i := range p.Slices {
				for k := range max(p.Slices[i].Run, 1) {
					l.done = append(l.done, transport.Completion{Tag: p.Slices[i].Tag + transport.Tag(k)})
				}
			}
		}
		l.out.Reset()
		if len(l.done) == 0 {
			return slices
		}
		slices += len(l.done)
		l.now += 1000
		l.s.Completed(l.now, l.done, &l.out)
	}
}

// gather makes runs of the transfers.
func (l *loop) gather() {
	runs := l.ts[:0]
	for at := 0; at < len(l.ts); at += RunLen {
		t := l.ts[at]
		t.Lengths = make([]uint32, min(RunLen, len(l.ts)-at))
		for i := range t.Lengths {
			t.Lengths[i] = uint32(t.Length)
		}
		runs = append(runs, t)
	}
	l.ts = runs
}

func (l *loop) submit() {
	l.now += 1000
	l.s.Submit(l.now, l.ts, l.ids, &l.out)
}

func BenchmarkSmall(b *testing.B) {
	for _, batch := range []int{1, 16, 128, 1024} {
		b.Run(fmt.Sprintf("batch=%d", batch), func(b *testing.B) {
			l := newLoop(batch, 4096, 1)
			b.ReportAllocs()
			slices := 0
			for b.Loop() {
				l.submit()
				slices += l.drain()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(slices), "ns/slice")
		})
	}
}

func BenchmarkBulk(b *testing.B) {
	for _, rails := range []int{1, 4} {
		b.Run(fmt.Sprintf("rails=%d", rails), func(b *testing.B) {
			l := newLoop(1, 8<<30, rails)
			b.ReportAllocs()
			slices := 0
			for b.Loop() {
				l.submit()
				slices += l.drain()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(slices), "ns/slice")
		})
	}
}

func TestSteadyStateAllocatesNothing(t *testing.T) {
	for _, c := range []struct {
		batch  int
		length uint64
		rails  int
	}{{1, 4096, 1}, {128, 4096, 2}, {8, 64 << 20, 1}, {2, 64 << 20, 4}} {
		for _, runs := range []bool{false, true} {
			l := newLoop(c.batch, c.length, c.rails)
			if runs {
				l.gather()
			}
			cycle := func() { l.submit(); l.drain() }
			cycle()
			if n := testing.AllocsPerRun(50, cycle); n != 0 {
				t.Errorf("%d transfers of %d bytes on %d rails, in runs %v: %v allocations, want 0", c.batch, c.length, c.rails, runs, n)
			}
		}
	}
}

func BenchmarkRun(b *testing.B) {
	for _, batch := range []int{16, 64, 128, 1024} {
		b.Run(fmt.Sprintf("batch=%d", batch), func(b *testing.B) {
			l := newLoop(batch, 4096, 1)
			l.gather()
			b.ReportAllocs()
			slices := 0
			for b.Loop() {
				l.submit()
				slices += l.drain()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(slices), "ns/slice")
		})
	}
}

// TestSpeedRun: what a slice costs in a batch of 128, and what the scheduler
// decides about a run costs beside its slices: half of what submitting and
// completing it takes, extrapolated to none.
func TestSpeedRun(t *testing.T) {
	testenv.NeedSpeed(t)
	cycle := func(n int) func() {
		l := newLoop(n, 4096, 1)
		l.gather()
		return func() { l.submit(); l.drain() }
	}
	var best [3]float64
	runs := [3]func(){cycle(8), cycle(RunLen), cycle(128)}
	for try := range 200 {
		for i, run := range runs {
			start := time.Now()
			for range 100 {
				run()
			}
			if ns := float64(time.Since(start).Nanoseconds()) / 100; try == 0 || ns < best[i] {
				best[i] = ns
			}
		}
	}
	slice := best[2] / 128
	decision := (best[0] - 8*(best[1]-best[0])/(RunLen-8)) / 2
	t.Logf("%.1f ns a slice at batch 128, %.0f ns a decision", slice, decision)
	if slice > 20 || decision > 150 {
		t.Errorf("%.1f ns a slice and %.0f ns a decision, want 20 and 150 at most", slice, decision)
	}
}
