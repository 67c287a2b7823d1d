package main

import "slices"

// quantile returns the value below which the share q of sorted values lies,
// between two of them where it falls there; 0 when there are none.
func quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	at := q * float64(len(sorted)-1)
	i := int(at)
	if i+1 == len(sorted) {
		return sorted[i]
	}
	return sorted[i] + (at-float64(i))*(sorted[i+1]-sorted[i])
}

// mannWhitney returns the two-sided p of the rank sum test: the share of all ways
// to deal the joint ranks to a and b whose rank sum of a is as far from the mean
// as the one seen. It is exact, also with ties (which share their ranks).
func mannWhitney(a, b []float64) float64 {
	n := len(a)
	ranks := doubledRanks(a, b)
	seen, all := 0, 0
	for i, r := range ranks {
		all += r
		if i < n {
			seen += r
		}
	}
	// ways[k][s] is the number of ways to choose k ranks with the sum s.
	ways := make([][]float64, n+1)
	for k := range ways {
		ways[k] = make([]float64, all+1)
	}
	ways[0][0] = 1
	for i, r := range ranks {
		for k := min(i+1, n); k > 0; k-- {
			for s := all; s >= r; s-- {
				ways[k][s] += ways[k-1][s-r]
			}
		}
	}
	// The mean of the sum is all*n/len(ranks); distances are times len(ranks).
	far := farness(seen, all, n, len(ranks))
	var total, extreme float64
	for s, w := range ways[n] {
		total += w
		if farness(s, all, n, len(ranks)) >= far {
			extreme += w
		}
	}
	return extreme / total
}

func farness(sum, all, n, of int) int {
	if d := sum*of - all*n; d < 0 {
		return -d
	} else {
		return d
	}
}

// doubledRanks returns twice the rank of each value of a, then of b; equal values
// share the mean of theirs, which is why they are doubled.
func doubledRanks(a, b []float64) []int {
	joint := append(slices.Clone(a), b...)
	sorted := slices.Sorted(slices.Values(joint))
	ranks := make([]int, len(joint))
	for i, v := range joint {
		first, _ := slices.BinarySearch(sorted, v)
		last := first
		for last+1 < len(sorted) && sorted[last+1] == v {
			last++
		}
		ranks[i] = first + last + 2
	}
	return ranks
}

// canTell reports whether samples of these sizes can differ significantly at all:
// whether 2 in n+m over n is under the limit.
func canTell(n, m int) bool {
	ways := 1.0
	for i := 1; i <= n; i++ {
		ways = ways * float64(m+i) / float64(i)
	}
	return 2/ways < significant
}
