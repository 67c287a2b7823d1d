package tideway_test

import (
	"fmt"
	"testing"

	"github.com/tideway-io/tideway"
	"github.com/tideway-io/tideway/internal/testenv"
	"github.com/tideway-io/tideway/segment"
)

// batchOf returns what submits n requests of size bytes in a batch that it uses
// again, and waits for them.
func batchOf(t testing.TB, e *tideway.Engine, kv *tideway.RemoteBuffer, op tideway.Op, n, size int) func() {
	return again(t, e, alloc(t, e, fmt.Sprint("local", op, size), uint64(n*size), segment.LocalOnly), kv.At, op, n, size)
}

// again is batchOf with a local buffer that is there, and remote places as at says.
func again(t testing.TB, e *tideway.Engine, local *tideway.Buffer, at func(uint64) tideway.Remote, op tideway.Op, n, size int) func() {
	reqs := make([]tideway.Request, n)
	for i := range reqs {
		reqs[i] = tideway.Request{Op: op, Local: local.Range(uint64(i*size), uint64(size)), Remote: at(uint64(i * size))}
	}
	b := e.NewBatch()
	return func() {
		if err := b.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := b.Reset(); err != nil {
			t.Fatal(err)
		}
		if err := b.Add(t.Context(), reqs...); err != nil {
			t.Fatal(err)
		}
		if err := b.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestBatchAllocs: a batch that is used again allocates nothing: not for posts,
// completions or ends, and not to wait where it is done at once. Over tcp it has a
// channel to wait on, and that is all.
func TestBatchAllocs(t *testing.T) {
	e := open(t, tideway.Config{})
	alloc(t, e, "kv", 1<<20, segment.ReadWrite)
	_, own := find(t, e, e.Name(), "kv")
	_, far := find(t, e, startTarget(t, spec{Buffers: []targetBuffer{{Name: "kv", Size: 1 << 20, Access: segment.ReadWrite}}}).Addr, "kv")
	for _, c := range []struct {
		name string
		kv   *tideway.RemoteBuffer
		most float64
	}{{"own", own, 0}, {"tcp", far, 2}} {
		for _, op := range []tideway.Op{tideway.Write, tideway.Read} {
			t.Run(fmt.Sprint(c.name, " ", op), func(t *testing.T) {
				local := alloc(t, e, fmt.Sprint(c.name, op), 128*64, segment.LocalOnly)
				run := again(t, e, local, c.kv.At, op, 128, 64)
				for range 10 {
					run()
				}
				testenv.MaxAllocs(t, c.most, run)
			})
		}
	}
}

func BenchmarkBatch(b *testing.B) {
	for _, where := range []string{"own", "tcp"} {
		for _, size := range []int{64, 4096} {
			b.Run(fmt.Sprintf("%s/128x%d", where, size), func(b *testing.B) {
				e := open(b, tideway.Config{})
				addr := e.Name()
				if where == "tcp" {
					addr = startTarget(b, spec{Buffers: []targetBuffer{{Name: "kv", Size: 1 << 20, Access: segment.ReadWrite}}}).Addr
				} else {
					alloc(b, e, "kv", 1<<20, segment.ReadWrite)
				}
				_, kv := find(b, e, addr, "kv")
				run := batchOf(b, e, kv, tideway.Write, 128, size)
				b.SetBytes(int64(128 * size))
				b.ReportAllocs()
				for b.Loop() {
					run()
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/128, "ns/request")
			})
		}
	}
}
