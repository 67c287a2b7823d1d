package tideway

import (
	"context"

	"github.com/tideway-io/tideway/internal/engine"
)

// Buffer is local memory, or a file, that is registered with an engine.
type Buffer struct{ b *engine.Buffer }

func buffer(b *engine.Buffer, err error) (*Buffer, error) {
	if err != nil {
		return nil, err
	}
	return &Buffer{b}, nil
}

// Name returns the name given at registration.
func (b *Buffer) Name() string { return b.b.Desc().Name }

// Bytes returns the memory, nil for a file. It must not be used after Close of
// a buffer that Alloc made.
func (b *Buffer) Bytes() []byte { return b.b.Bytes() }

// Len returns the length in bytes.
func (b *Buffer) Len() uint64 { return b.b.Desc().Length }

// Addr returns the address by which peers may name the first byte, 0 for a file.
func (b *Buffer) Addr() uint64 { return b.b.Desc().Addr }

// Range returns part of the buffer as the local range of a request. Bounds are
// checked when the request is submitted.
func (b *Buffer) Range(offset, length uint64) Range {
	return Range{engine.Range{Buffer: b.b, Offset: offset, Length: length}}
}

// Close withdraws the buffer. While transfers use it, it stays as it is and the
// error is ErrBusy.
func (b *Buffer) Close() error { return b.b.Close() }

// CloseContext withdraws the buffer at once for new requests, waits until the
// transfers that use it have ended, and then closes it. When ctx ends first the
// error is ErrBusy and the buffer stays withdrawn; close it again later.
func (b *Buffer) CloseContext(ctx context.Context) error { return b.b.CloseContext(ctx) }

// Range is a local range of a request: part of a Buffer, or plain memory.
type Range struct{ r engine.Range }

// Bytes makes p the local range of a request without registering it, for
// transports that need no registration (tcp and memory do not). It must stay
// unchanged, for a write, or unused, for a read, until the request has ended.
func Bytes(p []byte) Range { return Range{engine.Range{Bytes: p, Length: uint64(len(p))}} }

// Len returns the length in bytes.
func (r Range) Len() uint64 { return r.r.Length }
