package tcp

import (
	"testing"
	"time"
)

func TestSleeps(t *testing.T) {
	time.Sleep(time.Second) // it is usually ready by then
	go func() { time.Sleep(time.Second) }()
}
