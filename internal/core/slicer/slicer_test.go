package slicer

import (
	"math"
	"math/rand/v2"
	"testing"
	"testing/quick"
)

func TestNext(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct {
		name                                  string
		offset, remaining, limit, align, want uint64
	}{
		{"nothing left", 0, 0, 10, 0, 0},
		{"fits", 0, 10, 10, 0, 10},
		{"no limit", 5, math.MaxUint64 - 5, 0, 0, math.MaxUint64 - 5},
		{"one byte over is halved, not a crumb", 0, 11, 10, 0, 6},
		{"limit one", 0, 3, 1, 0, 1},
		{"aligned upwards", 0, mib + 1, mib, 4096, 512*1024 + 4096},
		{"aligned from an odd start", 100, 3 * mib, mib, 4096, mib - 100},
		{"alignment above limit gives way", 1, 100, 10, 64, 10},
		{"boundary just in reach", 60, 100, 10, 64, 4},
		{"whole 64-bit range", 0, math.MaxUint64, mib, 4096, mib},
		{"end of the 64-bit range", math.MaxUint64 - 99, 100, 60, 64, 36},
		{"rounding up would wrap", math.MaxUint64 - 30, 31, 30, 16, 15},
	} {
		if got := Next(c.offset, c.remaining, c.limit, c.align); got != c.want {
			t.Errorf("%s: Next(%d, %d, %d, %d) = %d, want %d", c.name, c.offset, c.remaining, c.limit, c.align, got, c.want)
		}
	}
}

// TestCover cuts whole ranges and compares what comes out with what the comment
// of Next says, byte counts and boundaries checked by a second way of counting.
func TestCover(t *testing.T) {
	cover := func(seed uint64) bool {
		r := rand.New(rand.NewPCG(seed, 1))
		length, limit, align := r.Uint64N(10_000)+1, r.Uint64N(300)+1, uint64(1)<<r.Uint64N(8)
		offset := r.Uint64N(1000)
		if r.IntN(2) == 0 {
			offset = math.MaxUint64 - length - r.Uint64N(100) + 1 // near, up to the very end
		}
		var pieces []uint64
		sum := uint64(0)
		for sum < length {
			n := Next(offset+sum, length-sum, limit, align)
			if n == 0 || n > limit || n > length-sum {
				t.Logf("offset %d length %d limit %d align %d: piece %d at %d", offset, length, limit, align, n, sum)
				return false
			}
			sum += n
			if at := offset + sum; sum < length && align <= limit && at%align != 0 {
				t.Logf("offset %d limit %d align %d: ends at %d", offset, limit, align, at)
				return false
			}
			pieces = append(pieces, n)
		}
		return sum == length && (align > 1 || even(pieces, length, limit))
	}
	if err := quick.Check(cover, &quick.Config{MaxCount: 3000}); err != nil {
		t.Error(err)
	}
}

// even is the dumb twin without alignment: as few pieces as can be, lengths no
// more than one apart.
func even(pieces []uint64, length, limit uint64) bool {
	count := uint64(0)
	for left := length; left > 0; left -= min(left, limit) {
		count++
	}
	lo, hi := pieces[0], pieces[0]
	for _, n := range pieces {
		lo, hi = min(lo, n), max(hi, n)
	}
	return uint64(len(pieces)) == count && hi-lo <= 1
}

func BenchmarkNext(b *testing.B) {
	var sum uint64
	for i := range b.N {
		sum += Next(uint64(i), 8<<30-uint64(i), 1<<20, 4096)
	}
	_ = sum
}
