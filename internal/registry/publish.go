package registry

import (
	"sync"
	"sync/atomic"

	"github.com/tideway-io/tideway/inspect"
	"github.com/tideway-io/tideway/segment"
)

// Published is what peers may see of a Registry at one version. It is shared
// and immutable: put Buffers and Lookup into a segment.Desc as they are, and do
// not Seal that again.
type Published struct {
	Version uint64
	Buffers []segment.Buffer // sorted by address, then name; no local-only ones
	Lookup  map[string]int   // index into Buffers by name
}

// publisher keeps the last Published. A version that nobody asks for is never
// built.
type publisher struct {
	last     atomic.Pointer[Published]
	building sync.Mutex // one builder; the others wait for what it made
}

// Version grows with each change of what peers may see. It starts at 1.
func (r *Registry) Version() uint64 { return r.version.Load() }

// Published returns what peers may see now.
func (r *Registry) Published() *Published {
	p := &r.published
	if last := p.last.Load(); last != nil && last.Version == r.version.Load() {
		return last
	}
	p.building.Lock()
	defer p.building.Unlock()
	if last := p.last.Load(); last != nil && last.Version == r.version.Load() {
		return last
	}
	now := r.build()
	p.last.Store(now)
	return now
}

// build copies the visible buffers. The version cannot change meanwhile: that
// takes the write lock.
func (r *Registry) build() *Published {
	r.mu.RLock()
	defer r.mu.RUnlock()
	p := &Published{
		Version: r.version.Load(),
		Buffers: make([]segment.Buffer, 0, r.mu.count),
		Lookup:  make(map[string]int, len(r.mu.names)),
	}
	for b := range r.mu.order.all {
		if !b.published || b.pub.Access == segment.LocalOnly {
			continue
		}
		if b.pub.Name != "" {
			p.Lookup[b.pub.Name] = len(p.Buffers)
		}
		p.Buffers = append(p.Buffers, b.pub)
	}
	return p
}

// Inspect returns the first limit buffers, local-only and closing ones included.
func (r *Registry) Inspect(limit int) []inspect.Buffer {
	r.mu.RLock()
	defer r.mu.RUnlock()
	out := make([]inspect.Buffer, 0, min(limit, r.mu.count))
	for b := range r.mu.order.all {
		if len(out) >= limit {
			break
		}
		pins, uses := b.Held()
		out = append(out, inspect.Buffer{
			Name: b.pub.Name, Addr: b.pub.Addr, Length: b.pub.Length, Location: string(b.pub.Location),
			Access: b.pub.Access.String(), Key: uint32(b.pub.Key), Pins: pins + uses,
		})
	}
	return out
}
