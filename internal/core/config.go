package core

import (
	"time"

	"github.com/tideway-io/tideway/internal/core/rail"
)

const (
	// maxSlices leaves room in the tags for the few slices beyond it that
	// Shard.full lets pass.
	maxSlices = 1 << (slotBits - 2)
	// maxPaths is what path ids can tell apart; slot 0 is none.
	maxPaths = 1<<pathSlotBits - 1
	// restoreSlices times SliceBytes is how much of a transfer must complete
	// after a failed try to give it its whole retry budget back.
	restoreSlices = 16
	// maxSums is how often one range is tried again after a checksum mismatch.
	maxSums = 2
	// maxAttempts bounds what a transfer remembers of its failed tries.
	maxAttempts = 32
	// pauseAfterRefusal is how long Post is left alone when it says "later"
	// with nothing outstanding; it doubles up to RestMax.
	pauseAfterRefusal = Time(time.Millisecond)
	// maxRefusals is how often in a row that may happen before the path is down.
	maxRefusals = 16
	// frameBytes is what a slice costs beside its bytes when shares are counted.
	frameBytes = 512
)

func (c Config) withDefaults() Config {
	c.Retries = max(c.Retries, 0)
	c.RestMin = or(c.RestMin, 50*time.Millisecond)
	c.RestMax = max(or(c.RestMax, 2*time.Second), c.RestMin)
	c.SliceBytes = or(c.SliceBytes, 1<<20)
	c.SmallBytes = or(c.SmallBytes, 64<<10)
	if c.Window == 0 {
		c.MaxWindow = or(c.MaxWindow, 64<<20)
	}
	c.Window = or(c.Window, 8<<20)
	c.RailSlices = or(c.RailSlices, 4096)
	c.MaxSlices = min(or(c.MaxSlices, maxSlices), maxSlices)
	c.MaxPaths = min(or(c.MaxPaths, 1<<16), maxPaths)
	c.HalfLife = or(c.HalfLife, 200*time.Millisecond)
	return c
}

// or returns v, or def when v is zero or less.
func or[T int | uint64 | time.Duration](v, def T) T {
	if v <= 0 {
		return def
	}
	return v
}

// rests is how a path or rail rests after a failure. The first failure of a
// path that may be a passing one costs no rest.
func (c *Config) rests(grows bool, free uint8) rail.Backoff {
	b := rail.Backoff{Free: free, Min: int64(c.RestMin), Max: int64(c.RestMax)}
	if !grows {
		b.Free, b.Max = 0, b.Min
	}
	return b
}
