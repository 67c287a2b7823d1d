package tideway

import (
	"context"
	"io"

	"github.com/tideway-io/tideway/internal/engine"
	"github.com/tideway-io/tideway/segment"
)

// Segment is a peer's published set of buffers, or the engine's own.
type Segment struct{ s *engine.Segment }

// Name returns the name that it was opened by.
func (s *Segment) Name() string { return string(s.s.Name()) }

// Incarnation identifies the life of the owner that is known now.
func (s *Segment) Incarnation() segment.Incarnation { return s.s.Desc().Incarnation }

// Desc returns what the owner published, as known now. It must not be changed.
func (s *Segment) Desc() *segment.Desc { return s.s.Desc() }

// Buffers returns what the owner published, as known now, sorted by address.
// The slice must not be changed.
func (s *Segment) Buffers() []segment.Buffer { return s.s.Desc().Buffers }

// Buffer finds a buffer by name. A name that is not known yet is looked for
// once more at the owner before the error is ErrNotFound.
func (s *Segment) Buffer(ctx context.Context, name string) (*RemoteBuffer, error) {
	b, err := s.s.Buffer(ctx, name)
	if err != nil {
		return nil, err
	}
	return &RemoteBuffer{b}, nil
}

// At names a place by its address at the owner.
func (s *Segment) At(addr uint64) Remote {
	return Remote{engine.Remote{Segment: s.s, Offset: addr}}
}

// Refresh fetches the descriptor again. After ErrStale, buffers must be looked
// up again.
func (s *Segment) Refresh(ctx context.Context) error { return s.s.Refresh(ctx) }

// Close lets go of the segment. Requests under way are not disturbed.
func (s *Segment) Close() error { return s.s.Close() }

// Remote is where a request's remote range starts.
type Remote struct{ r engine.Remote }

// RemoteBuffer is one buffer of a segment as it was published: after its owner
// restarts or closes it, requests against it end in ErrStale.
type RemoteBuffer struct{ f *engine.Found }

// Desc returns the buffer as published.
func (r *RemoteBuffer) Desc() segment.Buffer { return *r.f.Desc }

// Len returns the length in bytes.
func (r *RemoteBuffer) Len() uint64 { return r.f.Desc.Length }

// At names a place by its offset in the buffer.
func (r *RemoteBuffer) At(offset uint64) Remote {
	return Remote{engine.Remote{Segment: r.f.Segment, Found: r.f, Offset: offset}}
}

// ReadAt reads len(p) bytes at offset, like io.ReaderAt: fewer than asked come
// with an error, io.EOF at the buffer's end. When ctx ends first, the transfer
// is cancelled and quiet before ReadAt returns.
func (r *RemoteBuffer) ReadAt(ctx context.Context, p []byte, offset uint64) (int, error) {
	n, end := r.clip(len(p), offset)
	err := r.f.Segment.Engine().Do(ctx, engine.Request{Op: Read, Local: Bytes(p[:n]).r, Remote: r.At(offset).r})
	if err != nil {
		return 0, err
	}
	if end {
		return n, io.EOF
	}
	return n, nil
}

// clip limits n to what is left at offset, and says whether it had to.
func (r *RemoteBuffer) clip(n int, offset uint64) (int, bool) {
	left := r.Len() - min(offset, r.Len())
	if uint64(n) <= left {
		return n, false
	}
	return int(left), true
}

// WriteAt writes p at offset; a range that leaves the buffer is ErrInvalid and
// writes nothing. When ctx ends first, the transfer is cancelled and no longer
// reads p when WriteAt returns; Error.InDoubt says whether the remote range may
// still change.
func (r *RemoteBuffer) WriteAt(ctx context.Context, p []byte, offset uint64) (int, error) {
	err := r.f.Segment.Engine().Do(ctx, engine.Request{Op: Write, Local: Bytes(p).r, Remote: r.At(offset).r})
	if err != nil {
		return 0, err
	}
	return len(p), nil
}

// ReaderAt returns the buffer as an io.ReaderAt whose calls are bound to ctx.
func (r *RemoteBuffer) ReaderAt(ctx context.Context) io.ReaderAt { return at{ctx, r} }

// WriterAt returns the buffer as an io.WriterAt whose calls are bound to ctx.
func (r *RemoteBuffer) WriterAt(ctx context.Context) io.WriterAt { return at{ctx, r} }

// Reader returns a reader of the whole buffer that is also an io.WriterTo, which
// keeps several reads in flight.
func (r *RemoteBuffer) Reader(ctx context.Context) io.Reader { return &stream{ctx: ctx, r: r} }
