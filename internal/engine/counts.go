package engine

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/core"
)

// counts are the engine's totals. They live here once; inspection reads them.
type counts struct {
	batches                atomic.Int64
	waiters                atomic.Int64  // goroutines in Wait
	groups                 atomic.Uint64 // batches ever made
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

// attempts counts the failed tries of a transfer that has ended.
func (c *counts) attempts(tries []core.Attempt) {
	for _, a := range tries {
		c.retries.Add(1)
		if a.Code == errs.Checksum {
			c.checksums.Add(1)
		}
	}
}

// logLimit lets a bounded number of log lines through each second.
type logLimit struct {
	mu struct {
		sync.Mutex
		second  int64
		lines   int
		skipped int
	}
}

// maxLines is how many failed requests are logged in one second.
const maxLines = 100

func (l *logLimit) allow() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := time.Now().Unix(); now != l.mu.second {
		l.mu.second, l.mu.lines = now, 0
	}
	if l.mu.lines == maxLines {
		l.mu.skipped++
		return false
	}
	l.mu.lines++
	return true
}

// skipped returns how many lines were held back since the last call.
func (l *logLimit) skipped() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.mu.skipped
	l.mu.skipped = 0
	return n
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
