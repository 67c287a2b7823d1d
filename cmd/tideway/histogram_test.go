package main

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func TestHistogramBuckets(t *testing.T) {
	last := -1
	for _, v := range []uint64{0, 1, 63, 64, 65, 127, 128, 129, 1000, 1 << 20, 1<<20 + 1, 1 << 40, 1<<63 - 1, 1 << 63, 1<<64 - 1} {
		i := bucketOf(v)
		if i < last || i >= len((&histogram{}).counts) {
			t.Errorf("bucketOf(%d) = %d after %d", v, i, last)
		}
		last = i
		if top := bucketTop(i); top < v || float64(top-v) > float64(v)/64 {
			t.Errorf("bucket of %d ends at %d", v, top)
		}
	}
	for i := range len((&histogram{}).counts) {
		if got := bucketOf(bucketTop(i)); got != i {
			t.Fatalf("the top of bucket %d is in bucket %d", i, got)
		}
	}
}

// The histogram's quantiles are those of the sorted values, up to a bucket.
func TestHistogramQuantiles(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{1, 2, 10, 999, 10000} {
		var h, other histogram
		var values []time.Duration
		for i := range n {
			v := time.Duration(1) << rng.IntN(40)
			v += time.Duration(rng.Int64N(int64(v)))
			values = append(values, v)
			if i%2 == 0 {
				h.add(v)
			} else {
				other.add(v)
			}
		}
		h.merge(&other)
		slices.Sort(values)
		for _, q := range []float64{0, 0.5, 0.9, 0.99, 0.999, 1} {
			at := int(q*float64(n)+0.999999) - 1
			want := values[max(0, at)]
			if got := h.quantile(q); got < want || float64(got-want) > float64(want)/64 {
				t.Errorf("%d values: quantile %v = %d; want %d", n, q, got, want)
			}
		}
	}
	if got := (&histogram{}).quantile(0.5); got != 0 {
		t.Errorf("empty: %v", got)
	}
}

func TestHistogramTakesAnything(t *testing.T) {
	var h histogram
	h.add(-time.Second)
	h.add(1<<63 - 1)
	if h.total != 2 || h.quantile(0.5) != 0 || h.quantile(1) != 1<<63-1 {
		t.Errorf("total %d, median %d, most %d", h.total, h.quantile(0.5), h.quantile(1))
	}
}

func TestHistogramAddAllocatesNothing(t *testing.T) {
	var h histogram
	if n := testing.AllocsPerRun(100, func() { h.add(time.Millisecond) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
