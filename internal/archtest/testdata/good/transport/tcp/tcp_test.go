package tcp

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestSleeps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { time.Sleep(time.Hour) })
	bubble(t, func() { time.Sleep(time.Hour) })
	// real time: the kernel's clock is what is tested
	time.Sleep(time.Millisecond)
	time.Sleep(time.Millisecond) // real time: here too
}

var counter int // tests may

func init() { counter++ }

func bubble(t *testing.T, f func()) {
	synctest.Test(t, func(*testing.T) { f() })
}
