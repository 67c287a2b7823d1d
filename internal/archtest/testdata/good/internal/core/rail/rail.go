// Package rail is pure.
package rail

import (
	"slices"
	"time"
)

// Due is pure: now comes in.
func Due(now, at time.Time, by []int, table map[int]int) bool {
	for _, i := range slices.Sorted(slices.Values(by)) {
		if table[i] > 0 {
			return now.Sub(at) > time.Second
		}
	}
	return now.After(at)
}
