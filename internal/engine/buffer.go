package engine

import (
	"context"
	"errors"
	"os"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/mem"
	"github.com/tideway-io/tideway/internal/registry"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/topology"
)

// Registration describes a buffer to register: exactly one of Bytes, File and
// Addr with Length.
type Registration struct {
	Name     string
	Location topology.Location
	Access   segment.Access
	Bytes    []byte
	File     *os.File
	Addr     uintptr
	Length   uint64
}

// Buffer is a registered local buffer.
type Buffer struct {
	e *Engine
	r *registry.Buffer
}

// Alloc makes a buffer of n zero bytes.
func (e *Engine) Alloc(n uint64, r Registration) (*Buffer, error) {
	if err := e.usable("alloc"); err != nil {
		return nil, err
	}
	p, free, err := mem.Alloc(n, mem.Options{})
	if err != nil {
		return nil, err
	}
	r.Bytes = p
	b, err := e.register(r, free)
	if err != nil {
		return nil, errors.Join(err, free())
	}
	return b, nil
}

// Register makes existing memory or a file a buffer.
func (e *Engine) Register(r Registration) (*Buffer, error) {
	if err := e.usable("register"); err != nil {
		return nil, err
	}
	if r.Addr != 0 || r.Length != 0 {
		p, err := mem.Slice(r.Addr, r.Length)
		if err != nil {
			return nil, err
		}
		r.Bytes = p
	}
	return e.register(r, nil)
}

func (e *Engine) register(r Registration, free func() error) (*Buffer, error) {
	in := registry.Registration{Name: r.Name, Bytes: r.Bytes, Location: r.Location, Access: r.Access, Free: free}
	if in.Location == "" {
		in.Location = "cpu:0"
	}
	if r.File != nil {
		source, err := fileSource(r.File)
		if err != nil {
			return nil, err
		}
		in.File, in.Length, in.Source, in.Location = r.File, source.Size, source, topology.File
	}
	b, err := e.local.Register(e.ctx, in)
	if err != nil {
		return nil, err
	}
	e.changed()
	return &Buffer{e, b}, nil
}

// fileSource identifies the present content of f.
func fileSource(f *os.File) (segment.Source, error) {
	info, err := f.Stat()
	if err != nil {
		return segment.Source{}, &errs.Error{Op: "register file", Reason: errs.Invalid, Err: err}
	}
	if !info.Mode().IsRegular() {
		return segment.Source{}, errs.New(errs.Invalid, "register file", "%s is %s; only regular files can be offered", f.Name(), info.Mode().Type())
	}
	s := segment.Source{Size: uint64(info.Size()), ModTime: info.ModTime().UnixNano()}
	s.Inode, s.Device = inode(info)
	return s, nil
}

// Desc returns the buffer as published.
func (b *Buffer) Desc() *segment.Buffer { return b.r.Desc() }

// Bytes returns the memory, nil for a file.
func (b *Buffer) Bytes() []byte { return b.r.Bytes() }

// Close withdraws the buffer unless transfers use it.
func (b *Buffer) Close() error {
	if err := b.r.TryClose(); err != nil {
		return err
	}
	return b.closed()
}

// CloseContext withdraws the buffer and waits for the transfers that use it.
func (b *Buffer) CloseContext(ctx context.Context) error {
	if err := b.r.Close(ctx); err != nil {
		return err
	}
	return b.closed()
}

func (b *Buffer) closed() error {
	b.e.changed()
	return nil
}
