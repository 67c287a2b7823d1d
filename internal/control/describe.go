package control

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"sync"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/wire"
	"github.com/tideway-io/tideway/segment"
)

// MethodDescribe is the call that fetches a page of a descriptor's buffers. Its
// body is the version (8, present for the newest) and the index of the first buffer
// (4), its answer a wire.Page.
const MethodDescribe = "describe"

// present asks for the version that is published now.
const present = math.MaxUint64

// pageLimit is how many bytes of buffers one answer carries.
const pageLimit = MaxAnswer / 2

// keptVersions is how many versions that somebody began to fetch are kept, so
// that the pages fit together while buffers come and go.
const keptVersions = 4

// Describe returns the handler of MethodDescribe; current returns the present
// descriptor, which is not changed any more.
func Describe(current func() *segment.Desc) Handler {
	v := versions{current: current}
	return func(_ context.Context, _ segment.Incarnation, body []byte) ([]byte, error) {
		if len(body) != 12 {
			return nil, errs.New(errs.Invalid, "describe", "a body of %d bytes, want 12", len(body))
		}
		version, start := binary.LittleEndian.Uint64(body), binary.LittleEndian.Uint32(body[8:])
		d := v.find(version)
		if d == nil {
			return nil, errs.New(errs.Stale, "describe", "version %d is not known any more; begin anew", version)
		}
		return wire.AppendPage(nil, d, int(min(start, uint32(len(d.Buffers)))), pageLimit), nil
	}
}

// versions are the descriptors that somebody fetches.
type versions struct {
	current func() *segment.Desc
	mu      sync.Mutex
	kept    [keptVersions]*segment.Desc
	next    int // the one to replace
}

// find returns the descriptor of a version, nil if it is not kept; the present
// one is kept from now on.
func (v *versions) find(version uint64) *segment.Desc {
	v.mu.Lock()
	defer v.mu.Unlock()
	d := v.current()
	if version == present {
		version = d.Version
	}
	for _, k := range v.kept {
		if k != nil && k.Version == version {
			return k
		}
	}
	if d.Version != version {
		return nil
	}
	v.kept[v.next%keptVersions] = d
	v.next++
	return d
}

// FetchBuffers fills in the buffers of d, a descriptor that was published with
// a pointer in place of them, and seals it.
func (p *Peer) FetchBuffers(ctx context.Context, d *segment.Desc) error {
	const tries = 3
	var err error
	for range tries {
		if err = p.fetchBuffers(ctx, d); !errors.Is(err, errs.ErrStale) {
			return err
		}
	}
	return err
}

func (p *Peer) fetchBuffers(ctx context.Context, d *segment.Desc) error {
	version, all := uint64(present), []segment.Buffer(nil)
	for {
		body := binary.LittleEndian.AppendUint64(nil, version)
		body = binary.LittleEndian.AppendUint32(body, uint32(len(all)))
		answer, err := p.Call(ctx, MethodDescribe, body)
		if err != nil {
			return err
		}
		g, err := wire.ParsePage(answer)
		if err != nil {
			return err
		}
		if !follows(&g, version, len(all)) {
			return errs.New(errs.Invalid, "fetch buffers of "+p.Addr(), "%d buffers from %d of %d, version %d; asked for those from %d, version %d", len(g.Buffers), g.Start, g.Total, g.Version, len(all), version)
		}
		version, all = g.Version, append(all, g.Buffers...)
		if len(all) == int(g.Total) {
			break
		}
	}
	d.Version, d.Buffers = version, all
	d.Seal()
	return nil
}

// follows reports whether a page is the one that was asked for, and gets on.
func follows(g *wire.Page, version uint64, start int) bool {
	whole := len(g.Buffers) > 0 || int64(g.Total) == int64(start)
	return g.Total <= maxBuffers && int64(g.Start) == int64(start) && (version == present || g.Version == version) && whole
}

// maxBuffers bounds a descriptor.
const maxBuffers = 1 << 20
