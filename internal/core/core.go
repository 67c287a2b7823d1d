// Package core is the scheduler as a pure state machine: which slice of which
// transfer goes over which path and rail, when, and what happens when it fails.
//
// It has no I/O, no lock, no goroutine, no clock and no randomness. Events are
// method calls that carry the time; what the caller must do next is appended to
// an Actions that it reuses. The caller (internal/engine, or the simulator)
// holds its own lock around each call and runs the actions after releasing it,
// in order per path. How many requests may be inside at once is admit's
// business, which paths a transfer may take is selector's; a Shard schedules
// what it is given.
package core

import (
	"math"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/transport"
)

// Time is nanoseconds on a monotonic clock, counted from the engine's start.
type Time int64

// Never is later than every instant.
const Never Time = math.MaxInt64

// Rungs is the most paths that one transfer may fall through.
const Rungs = 4

// Config configures a Shard. NewShard replaces zero fields by the defaults.
type Config struct {
	// Shard is this shard's number, carried in every tag; see TagShard.
	// At most MaxShards-1.
	Shard int
	// Retries is how often one transfer may be tried again on a path. Zero or
	// less: never.
	Retries int
	// RestMin is a path's or rail's first rest after repeated failure; each
	// further one is twice as long, up to RestMax. Defaults 50 ms and 2 s.
	RestMin, RestMax time.Duration
	// SliceBytes bounds a slice where the path allows longer ones, and is the
	// turn that one transfer gets before the next. Default 1 MiB.
	SliceBytes uint64
	// SmallBytes is the length up to which a transfer is small: small ones have
	// queues and a part of every window of their own. Default 64 KiB.
	SmallBytes uint64
	// Window is how many bytes a rail may have in flight when its transport does
	// not say. Default 8 MiB.
	Window uint64
	// MaxWindow is up to where that window follows twice the measured rate times
	// the shortest round trip. Default 64 MiB with the default Window; not above
	// Window: it is fixed.
	MaxWindow uint64
	// RailSlices is how many slices one rail may have in flight. Default 4096.
	RailSlices int
	// MaxSlices bounds the slices in flight or waiting for a retry in the whole
	// shard. Default and limit 1<<22.
	MaxSlices int
	// MaxPaths bounds the paths, those included whose last slices are still
	// outstanding after RemovePath. Default 1<<16, limit 1<<20.
	MaxPaths int
	// HalfLife is the time after which a rail's measured speed counts half.
	// Default 200 ms.
	HalfLife time.Duration
}

// PathID names a path: one transport to one incarnation of one peer. It is
// valid in one shard and is not used again soon after RemovePath. The numbers are
// far apart: they are keys of a map, not indexes.
type PathID uint32

// PathSpec is what the scheduler must know about a path.
type PathSpec struct {
	MaxSlice uint64 // bytes in one slice at most; 0: no limit
	Align    uint64 // slices end at multiples of it where they can; a power of two; 0 or 1: anywhere
	Fences   bool   // a WRITE that failed without doubt can touch nothing any more
}

// RailSpec is what the scheduler must know about a rail.
type RailSpec struct {
	Window  uint64  // bytes in flight at most; 0: Config.Window
	Penalty float64 // multiplies the predicted finish, for rails far from the memory; 0: 1
}

// TransferID names a transfer until it has ended; later it names nothing.
type TransferID uint64

// Transfer is one accepted request on its way in.
type Transfer struct {
	Owner    uint64 // the caller's handle, returned in slices and in the end
	Group    uint64 // the batch: those of one class on one path take turns
	Op       transport.Op
	Class    transport.Class // 0 most urgent; above 2 counts as 2
	Rungs    uint8           // how many of Ladder are set
	Ladder   [Rungs]PathID   // the paths that it may take, best first
	Length   uint64          // bytes; 0 ends well as soon as a path is connected
	Offset   uint64          // first byte in the target's buffer, for alignment
	Deadline Time            // 0: none
	// Lengths, if set, makes it a run of up to RunLen transfers that differ only
	// in their lengths, which are these, and in their owners, which count up from
	// Owner. Length and Offset mean nothing then. The ids count up like the owners.
	Lengths []uint32
}

// Slice is one piece of a transfer to be posted.
type Slice struct {
	Tag    transport.Tag
	Owner  uint64 // of its transfer
	Offset uint64 // first byte, counted from the transfer's first
	Length uint64 // never 0
	Op     transport.Op
	Class  transport.Class
	Rail   uint8 // index into the rails that Connected gave
	Retry  uint8 // how often bytes of it were tried before
	// Run, if not 0, says that it stands for so many slices, each a whole transfer,
	// whose tags and owners count up from these; Length means nothing then.
	Run uint8
}

// Actions is what the caller must do, in this order: Posts, Cancels, Close,
// Connect; Ends at any point. Several events may add to one Actions before it is
// carried out. What it holds is valid until Reset.
type Actions struct {
	// Connect asks for one connection attempt per path, answered by Connected
	// or ConnectFailed.
	Connect []PathID
	// Posts are runs of slices. What an endpoint does not take is handed to
	// Refused; every other slice is owed to Completed.
	Posts []Post
	// Cancels are slices whose transfers end early; they still complete. Some may
	// have come back in the same event; there is nothing to cancel then.
	Cancels []Cancel
	// Close asks to close the endpoint that the path has. Its slices complete
	// through Completed as the endpoint flushes them.
	Close []PathID
	// Ends are the transfers that have ended. Their slices are quiet: no byte of
	// the local range moves any more.
	Ends []End
	// Fault, if not empty, says which invariant was broken. The shard ignored
	// the event; its caller must stop trusting it.
	Fault string

	slices []Slice
	tags   []transport.Tag
}

// Post is a run of slices for one path.
type Post struct {
	Path   PathID
	Slices []Slice
}

// Cancel is a run of tags to cancel on one path.
type Cancel struct {
	Path PathID
	Tags []transport.Tag
}

// End is the one end of a transfer.
type End struct {
	Owner     uint64
	Bytes     uint64 // completed, all of them when Code is OK
	Path      PathID // where it ended: the path of the first failure or of the last bytes
	Code      errs.Code
	InDoubt   bool // a WRITE whose remote range may still change
	Retryable bool // the same request may succeed if submitted again
	Err       error
	Attempts  []Attempt // failed tries, oldest first; the receiver owns it
	// Run, if not 0, says that so many transfers have ended, well and without a
	// failed try, whose owners count up from Owner. Bytes is that of all.
	Run int
}

// Attempt is one failed try of a transfer.
type Attempt struct {
	Path PathID
	Rail int // -1 when it did not get as far as a rail
	Code errs.Code
	Err  error
}

// Reset empties a for the next event and keeps its memory.
func (a *Actions) Reset() {
	clear(a.Ends)
	clear(a.Posts)
	clear(a.Cancels)
	*a = Actions{
		Connect: a.Connect[:0], Posts: a.Posts[:0], Cancels: a.Cancels[:0], Close: a.Close[:0], Ends: a.Ends[:0],
		slices: a.slices[:0], tags: a.tags[:0],
	}
}

// grow adds a zero element and returns it. Reset has cleared what it reuses.
func grow[T any](s *[]T) *T {
	n := len(*s)
	if n == cap(*s) {
		var zero T
		*s = append(*s, zero)
	} else {
		*s = (*s)[:n+1]
	}
	return &(*s)[n]
}
