package engine

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestLogLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l logLimit
		for second := range 3 {
			logged := 0
			for range 3 * maxLines {
				if l.allow() {
					logged++
				}
			}
			if logged != maxLines {
				t.Errorf("second %d: %d lines, want %d", second, logged, maxLines)
			}
			if n := l.skipped(); n != 2*maxLines || l.skipped() != 0 {
				t.Errorf("second %d: %d lines held back, want %d, told once", second, n, 2*maxLines)
			}
			time.Sleep(time.Second)
		}
	})
}
