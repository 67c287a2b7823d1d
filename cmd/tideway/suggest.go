package main

import "strings"

// nearest returns the word of list that s was probably meant to be, or "". It
// ignores case and accepts about one mistake in three letters.
func nearest(s string, list []string) string {
	best, bestDist := "", max(1, len(s)/3)+1
	for _, w := range list {
		if d := distance(strings.ToLower(s), strings.ToLower(w)); d < bestDist {
			best, bestDist = w, d
		}
	}
	return best
}

// didYouMean returns a clause for an error message, empty when nothing in list
// is near.
func didYouMean(s string, list []string) string {
	if w := nearest(s, list); w != "" {
		return "; did you mean " + w + "?"
	}
	return ""
}

// distance counts the insertions, deletions, replacements and swaps of
// neighbours that make b of a.
func distance(a, b string) int {
	before, last, next := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		next[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			next[j] = min(last[j]+1, next[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				next[j] = min(next[j], before[j-2]+1)
			}
		}
		before, last, next = last, next, before
	}
	return last[len(b)]
}
