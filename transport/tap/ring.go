package tap

import (
	"context"
	"log/slog"
	"sync"

	"github.com/tideway-io/tideway/errs"
)

// Ring keeps the last events. It may be used from any goroutine.
type Ring struct {
	mu struct {
		sync.Mutex
		events []Event
		next   uint64 // events recorded so far
	}
}

// NewRing returns a ring of n events, at least one.
func NewRing(n int) *Ring {
	r := &Ring{}
	r.mu.events = make([]Event, max(1, n))
	return r
}

// Record keeps e in place of the oldest event. It is what Wrap takes.
func (r *Ring) Record(e Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.events[r.mu.next%uint64(len(r.mu.events))] = e
	r.mu.next++
}

// Events returns what is kept, oldest first, and how many older events are gone.
func (r *Ring) Events() (kept []Event, lost uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	size := uint64(len(r.mu.events))
	if r.mu.next > size {
		lost = r.mu.next - size
	}
	for i := lost; i < r.mu.next; i++ {
		kept = append(kept, r.mu.events[i%size])
	}
	return kept, lost
}

// Log returns a recorder that writes to l: at debug level what goes well, at
// warn level what does not.
func Log(l *slog.Logger) func(Event) {
	return func(e Event) {
		level := slog.LevelDebug
		if e.Code != errs.OK {
			level = slog.LevelWarn
		}
		if !l.Enabled(context.Background(), level) {
			return
		}
		attrs := []slog.Attr{slog.String("transport", e.Transport), slog.String("peer", string(e.Peer)), slog.Uint64("tag", uint64(e.Tag))}
		if e.Op != 0 {
			attrs = append(attrs, slog.String("op", e.Op.String()), slog.Int("bytes", e.Bytes), slog.Uint64("key", uint64(e.Key)),
				slog.Uint64("offset", e.Offset), slog.Int("class", int(e.Class)), slog.Int("rail", int(e.Rail)))
		}
		if e.Took != 0 {
			attrs = append(attrs, slog.Duration("took", e.Took))
		}
		if e.Code != errs.OK {
			attrs = append(attrs, slog.String("code", e.Code.String()), slog.Bool("in_doubt", e.InDoubt), slog.Any("err", e.Err))
		}
		l.LogAttrs(context.Background(), level, e.Kind.String(), attrs...)
	}
}
