package core

import (
	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/transport"
)

// MaxShards is how many shards one engine may have.
const MaxShards = 1 << 10

// TagShard returns the number of the shard that made the tag.
func TagShard(t transport.Tag) int { return int(t >> 54) }

// Shard is the machine for a set of peers: their paths, the transfers on them,
// the slices in flight. Each method is one event; none may run at the same time
// as another.
type Shard struct{ cfg Config }

// NewShard returns a shard without paths.
func NewShard(cfg Config) *Shard { return &Shard{cfg: cfg} }

// AddPath adds a path that is not connected. It is connected when the first
// transfer needs it.
func (s *Shard) AddPath(spec PathSpec) PathID { return 0 }

// RemovePath forgets a path: its transfers fall down their ladders or end with
// code and err, its endpoint is closed. Later events for it are ignored.
func (s *Shard) RemovePath(now Time, id PathID, code errs.Code, err error, out *Actions) {}

// Submit takes transfers in and sets ids[i] for each ts[i]; ids must be as long
// as ts. Each ends exactly once, possibly in this call.
func (s *Shard) Submit(now Time, ts []Transfer, ids []TransferID, out *Actions) {}

// Connected says that the path has an endpoint with these rails, at most 256.
// The endpoint of a path that did not ask, or is gone, is asked to be closed.
func (s *Shard) Connected(now Time, id PathID, rails []RailSpec, out *Actions) {}

// ConnectFailed says that the attempt asked for with Connect failed.
func (s *Shard) ConnectFailed(now Time, id PathID, code errs.Code, err error, out *Actions) {}

// Refused gives back the slices of a Post that the endpoint did not take, with
// the reason for the first of them.
func (s *Shard) Refused(now Time, id PathID, slices []Slice, code errs.Code, err error, out *Actions) {
}

// Completed takes the completions of slices of this shard.
func (s *Shard) Completed(now Time, done []transport.Completion, out *Actions) {}

// PathDown says that the path's endpoint is of no use any more, although no
// slice has said so. It is ignored for a path that is not connected.
func (s *Shard) PathDown(now Time, id PathID, code errs.Code, err error, out *Actions) {}

// Cancel ends a transfer early with code: Canceled, Deadline or Closed. What is
// queued vanishes at once, what is posted is cancelled, and the transfer ends
// when all of it is quiet. An id that has ended is ignored.
func (s *Shard) Cancel(now Time, id TransferID, code errs.Code, out *Actions) {}

// Tick does what is due: deadlines, ends of rests.
func (s *Shard) Tick(now Time, out *Actions) {}

// NextWake returns when Tick is due next, or Never. It can change with every event.
func (s *Shard) NextWake() Time { return Never }

// PathState is what a path is doing.
type PathState uint8

// The states of a path.
const (
	Idle       PathState = iota // not connected, nothing asked
	Connecting                  // an attempt is under way
	Up                          // has an endpoint
	Draining                    // its endpoint is closing with slices outstanding
	Resting                     // failed more than once; waits before the next attempt
)

// String returns the word used in snapshots.
func (p PathState) String() string {
	return [...]string{"idle", "connecting", "up", "draining", "resting"}[min(p, Resting)]
}

// PathInfo is a path at one instant.
type PathInfo struct {
	State    PathState
	Until    Time      // when Resting: the end of the rest
	Code     errs.Code // the last failure, OK if none since it was last connected
	Err      error
	Queued   int // transfers that wait for it
	InFlight int // slices
	Rails    []RailInfo
}

// RailInfo is a rail at one instant.
type RailInfo struct {
	InFlight       uint64 // bytes
	Slices         int
	Window         uint64
	BytesPerSecond float64 // measured; 0: not yet
	Resting        bool
}

// Path fills info with the path's state, reusing info.Rails, and reports
// whether the path exists.
func (s *Shard) Path(id PathID, info *PathInfo) bool { return false }
