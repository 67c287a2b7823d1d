package main

import (
	"math/bits"
	"time"
)

// subBuckets is the number of buckets in each power of two; the error of a
// quantile is under one part in subBuckets.
const (
	subBits    = 6
	subBuckets = 1 << subBits
)

// histogram counts durations in buckets that grow with the value, from one
// nanosecond to centuries, in fixed memory. The zero value is empty. Quantiles
// are upper bounds: at most 1/64 above the exact value, never below it.
type histogram struct {
	counts [(64 - subBits + 1) * subBuckets]uint64
	total  uint64
	most   uint64
}

// add counts one duration; a negative one counts as zero.
func (h *histogram) add(d time.Duration) {
	v := uint64(max(d, 0))
	h.counts[bucketOf(v)]++
	h.total++
	h.most = max(h.most, v)
}

// merge adds all that o counted.
func (h *histogram) merge(o *histogram) {
	for i, c := range o.counts {
		h.counts[i] += c
	}
	h.total += o.total
	h.most = max(h.most, o.most)
}

// quantile returns the smallest bucket bound that at least the share q of the
// durations does not exceed; 0 when empty.
func (h *histogram) quantile(q float64) time.Duration {
	if h.total == 0 {
		return 0
	}
	need := max(1, uint64(q*float64(h.total)+0.999999))
	var seen uint64
	for i, c := range h.counts {
		if seen += c; seen >= need {
			return time.Duration(min(bucketTop(i), h.most))
		}
	}
	return time.Duration(h.most)
}

// coarse returns the counts that are not zero as pairs of the largest value in
// nanoseconds and the count, in steps of an eighth of a power of two.
func (h *histogram) coarse() [][2]uint64 {
	const step = subBuckets / 8
	out := [][2]uint64{}
	for i := 0; i < len(h.counts); i += step {
		var sum uint64
		for _, c := range h.counts[i : i+step] {
			sum += c
		}
		if sum > 0 {
			out = append(out, [2]uint64{bucketTop(i + step - 1), sum})
		}
	}
	return out
}

func bucketOf(v uint64) int {
	if v < subBuckets {
		return int(v)
	}
	shift := bits.Len64(v) - subBits - 1
	return (shift+1)<<subBits + int(v>>shift) - subBuckets
}

// bucketTop returns the largest value of a bucket.
func bucketTop(i int) uint64 {
	if i < subBuckets {
		return uint64(i)
	}
	shift := i>>subBits - 1
	return (subBuckets+uint64(i)&(subBuckets-1)+1)<<shift - 1
}
