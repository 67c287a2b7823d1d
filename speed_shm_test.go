package tideway_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/tideway-io/tideway"
	"github.com/tideway-io/tideway/internal/mem"
	"github.com/tideway-io/tideway/internal/sys"
	"github.com/tideway-io/tideway/internal/testenv"
	"github.com/tideway-io/tideway/segment"
)

// sharedSpan is how far the rounds of shared memory walk: beyond every cache.
const sharedSpan = 128 << 20

// shared maps sharedSpan bytes as a peer's memory is mapped, with their pages.
func shared(t testing.TB) []byte {
	t.Helper()
	fd, err := sys.NewMemfd("yardstick", sharedSpan, 0)
	if err != nil {
		t.Fatal(err)
	}
	m, unmap, err := mem.Map(fd, sharedSpan, true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = unmap(), sys.Close(fd) })
	testenv.Poison(m)
	return m
}

// walk calls move for places size bytes apart for a while, and returns the bytes
// per second.
func walk(size int, d time.Duration, move func(at int)) float64 {
	start, n := time.Now(), 0
	for ; n == 0 || time.Since(start) < d; n++ {
		move(n * size % sharedSpan)
	}
	return float64(n*size) / time.Since(start).Seconds()
}

// TestSpeedSharedMapped compares transfers to another process's memory that is
// mapped with copies between two mappings.
func TestSpeedSharedMapped(t *testing.T) {
	testenv.NeedSpeed(t)
	tg := startTarget(t, spec{Buffers: []targetBuffer{{Name: "kv", Size: sharedSpan, Access: segment.ReadWrite, Key: 1}}})
	e := open(t, everything())
	_, kv := find(t, e, tg.Addr, "kv")
	local, one, two := alloc(t, e, "local", sharedSpan, segment.LocalOnly).Bytes(), shared(t), shared(t)
	testenv.Fill(local, 1, 0)
	for _, op := range []tideway.Op{tideway.Write, tideway.Read} {
		for _, size := range []int{1 << 20, 16 << 20} {
			a, b := pairs(9, 0.9,
				func() float64 { return streamRate(t, e, op, local, kv, size, 2, 100*time.Millisecond) },
				func() float64 {
					return walk(size, 100*time.Millisecond, func(at int) { copy(one[at:at+size], two[at:]) })
				})
			t.Logf("shm, mapped, %v %d MiB: %.2f GB/s, copy %.2f GB/s: %.2f", op, size>>20, a/1e9, b/1e9, a/b)
			if a < 0.9*b {
				t.Errorf("shm, mapped, %v %d MiB: %.2f of copy, want 0.9", op, size>>20, a/b)
			}
		}
	}
	onlyBy(t, e, "shm")
}

// TestSpeedSharedAttached compares reads of another process's memory that cannot
// be mapped with the system call that makes them.
func TestSpeedSharedAttached(t *testing.T) {
	testenv.NeedSpeed(t)
	tg := startTarget(t, spec{Buffers: []targetBuffer{{Name: "kv", Size: sharedSpan, Access: segment.ReadWrite, Key: 1, Heap: true}}})
	e := open(t, everything())
	_, kv := find(t, e, tg.Addr, "kv")
	local := alloc(t, e, "local", sharedSpan, segment.LocalOnly).Bytes()
	testenv.Fill(local, 1, 0)
	const size = 1 << 20
	var r sys.Ranges
	bare := func(at int) {
		r.Reset()
		r.Add(local[at:at+size], kv.Desc().Addr+uint64(at))
		if n, err := r.Read(tg.cmd.Process.Pid); n != size {
			t.Fatal(n, err)
		}
	}
	for _, op := range []tideway.Op{tideway.Write, tideway.Read} {
		a, b := pairs(9, 0.9,
			func() float64 { return streamRate(t, e, op, local, kv, size, 4, 100*time.Millisecond) },
			func() float64 { return walk(size, 100*time.Millisecond, bare) })
		t.Logf("shm, attached, %v 1 MiB: %.2f GB/s, process_vm_readv %.2f GB/s: %.2f", op, a/1e9, b/1e9, a/b)
		if a < 0.9*b {
			t.Errorf("shm, attached, %v 1 MiB: %.2f of process_vm_readv, want 0.9", op, a/b)
		}
	}
	onlyBy(t, e, "shm")
}

// onlyBy fails the test where a path of another transport has moved bytes.
func onlyBy(t testing.TB, e *tideway.Engine, want string) {
	t.Helper()
	for _, p := range e.Inspect().Peers {
		for _, path := range p.Paths {
			for _, r := range path.Rails {
				if path.Transport != want && r.BytesIn+r.BytesOut > 0 {
					t.Errorf("%d bytes went by %s, want %s", r.BytesIn+r.BytesOut, path.Transport, want)
				}
			}
		}
	}
}

// BenchmarkShared is one request at a time to another process's mapped memory,
// within a span that stays in a cache or does not.
func BenchmarkShared(b *testing.B) {
	tg := startTarget(b, spec{Buffers: []targetBuffer{{Name: "kv", Size: sharedSpan, Access: segment.ReadWrite, Key: 1}}})
	e := open(b, everything())
	_, kv := find(b, e, tg.Addr, "kv")
	local := alloc(b, e, "local", sharedSpan, segment.LocalOnly)
	testenv.Fill(local.Bytes(), 1, 0)
	batch := e.NewBatch()
	for _, span := range []uint64{256 << 10, sharedSpan} {
		for _, size := range []uint64{4 << 10, 64 << 10, 256 << 10, 1 << 20} {
			for _, op := range []tideway.Op{tideway.Write, tideway.Read} {
				b.Run(fmt.Sprintf("%dKiB/%v/%dKiB", span>>10, op, size>>10), func(b *testing.B) {
					b.SetBytes(int64(size))
					b.ReportAllocs()
					for at := uint64(0); b.Loop(); at = (at + size) % max(span, size) {
						req := tideway.Request{Op: op, Local: local.Range(at, size), Remote: kv.At(at)}
						if err := errors.Join(batch.Reset(), batch.Add(b.Context(), req), batch.Wait(b.Context())); err != nil {
							b.Fatal(err)
						}
					}
				})
			}
		}
	}
}
