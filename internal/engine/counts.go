package engine

import (
	"sync"
	"sync/atomic"

	"github.com/tideway-io/tideway/errs"
)

// counts are the engine's totals. They live here once; inspection reads them.
type counts struct {
	batches                atomic.Int64
	requests, refused      atomic.Uint64
	bytesRead              atomic.Uint64
	bytesWritten           atomic.Uint64
	retries, checksums     atomic.Uint64
	noticesSent, noticesIn atomic.Uint64

	mu struct {
		sync.Mutex
		failures map[errs.Code]uint64
	}
}

func (c *counts) failed(code errs.Code) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.failures == nil {
		c.mu.failures = make(map[errs.Code]uint64)
	}
	c.mu.failures[code]++
}

// failures returns the failed requests by reason.
func (c *counts) failures() map[string]uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make(map[string]uint64, len(c.mu.failures))
	for code, n := range c.mu.failures {
		out[code.String()] = n
	}
	return out
}
