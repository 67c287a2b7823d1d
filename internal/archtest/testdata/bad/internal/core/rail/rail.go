// Package rail is not pure.
package rail

import (
	"math/rand/v2"
	"net"
	"sync"
	"time"
)

// Step has all that the core may not have.
func Step(by map[int]net.Addr) time.Time {
	var mu sync.Mutex
	mu.Lock()
	for range by {
		go func() { rand.Int() }()
	}
	done := make(chan int)
	select {
	case <-done:
	case <-time.After(time.Second):
	}
	clock := time.Now
	return clock()
}
