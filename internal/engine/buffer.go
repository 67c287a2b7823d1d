package engine

import (
	"context"
	"errors"
	"os"
	"sync/atomic"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/mem"
	"github.com/tideway-io/tideway/internal/registry"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/topology"
	"github.com/tideway-io/tideway/transport"
)

// Registration describes a buffer to register: exactly one of Bytes, File and
// Addr with Length.
type Registration struct {
	Name     string
	Location topology.Location
	Access   segment.Access
	Bytes    []byte
	File     *os.File
	Fixed    bool // peers must not read a file that has changed meanwhile
	Addr     uintptr
	Length   uint64
}

// Buffer is a registered local buffer.
type Buffer struct {
	e     *Engine
	r     *registry.Buffer
	state atomic.Int32
}

// Alloc makes a buffer of n zero bytes.
func (e *Engine) Alloc(n uint64, r Registration) (*Buffer, error) {
	if err := e.usable("alloc"); err != nil {
		return nil, err
	}
	p, free, err := e.allocate(n, r)
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

// allocate takes memory for peers from the first transport whose peers can map
// it. Any memory will do where there is none, or none left, and where no peer is
// let in.
func (e *Engine) allocate(n uint64, r Registration) (p []byte, free func() error, err error) {
	for _, t := range e.transports.open {
		if r.Access == segment.LocalOnly {
			break
		}
		a, ok := transport.As[transport.Allocator](t.transport)
		if !ok {
			continue
		}
		if p, free, err = a.Alloc(n, r.Location); err == nil {
			return p, free, nil
		}
		e.log.Debug("memory is allocated that peers cannot map", "transport", t.name, "bytes", n, "err", err)
		break
	}
	return mem.Alloc(n, mem.Options{})
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
		file, source, err := e.file(r)
		if err != nil {
			return nil, err
		}
		in.File, in.Length, in.Source, in.Location = file, source.Size, source, topology.File
	}
	b, err := e.local.Register(e.ctx, in)
	if err != nil {
		return nil, err
	}
	e.changed()
	return &Buffer{e: e, r: b}, nil
}

// file returns what peers read and write, and what it is now.
func (e *Engine) file(r Registration) (transport.File, segment.Source, error) {
	if r.Fixed {
		return fixFile(r.File)
	}
	source, err := fileSource(r.File)
	return r.File, source, err
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
	s := segment.Source{Size: uint64(info.Size()), ModTime: lastChange(info)}
	s.Inode, s.Device = inode(info)
	return s, nil
}

// Desc returns the buffer as published.
func (b *Buffer) Desc() *segment.Buffer { return b.r.Desc() }

// Bytes returns the memory, nil for a file.
func (b *Buffer) Bytes() []byte { return b.r.Bytes() }

// done ends the use of the buffer, nil for plain memory, by n transfers.
func (b *Buffer) done(n int) {
	if b != nil {
		b.r.Done(n)
	}
}

// Close withdraws the buffer unless transfers use it.
func (b *Buffer) Close() error { return b.end(b.r.TryClose) }

// CloseContext withdraws the buffer and waits for the transfers that use it.
func (b *Buffer) CloseContext(ctx context.Context) error {
	return b.end(func() error { return b.r.Close(ctx) })
}

// The states of a handle: identical registrations share a registry.Buffer, so
// each handle gives back its one reference once.
const (
	handleOpen = iota
	handleClosing
	handleClosed
)

// end runs close, unless it succeeded before or is running.
func (b *Buffer) end(close func() error) error {
	if !b.state.CompareAndSwap(handleOpen, handleClosing) {
		if b.state.Load() == handleClosed {
			return nil
		}
		return errs.New(errs.Busy, "close buffer", "%s is being closed", b.r)
	}
	if err := close(); err != nil {
		b.state.Store(handleOpen)
		return err
	}
	b.state.Store(handleClosed)
	b.e.changed()
	return nil
}
