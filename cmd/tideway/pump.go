package main

import (
	"context"
	"errors"
	"io"

	"github.com/tideway-io/tideway"
	"github.com/tideway-io/tideway/errs"
)

// The ring of local buffers that a copy goes through.
const (
	slotSize  = 4 << 20
	slotCount = 16
)

// pump copies between a remote buffer and the process, through a ring of
// registered slots with a request in flight on each: while one slot is read
// from or written to a file, the others are on their way. It is used by one
// goroutine, which sees the bytes in order.
type pump struct {
	e     *tideway.Engine
	buf   *tideway.Buffer
	slots []slot
	via   string // the only transport allowed, or ""
	used  string // the transport last used
}

// slot is one piece of the ring and the transfer that uses it.
type slot struct {
	bytes []byte // the piece, its capacity the slot's
	off   uint64
	batch *tideway.Batch
}

// newPump makes a ring for copies of about total bytes.
func newPump(e *tideway.Engine, total uint64, via string) (*pump, error) {
	n := min(slotCount, max(1, (total+slotSize-1)/slotSize))
	size := min(slotSize, max(1, total))
	buf, err := e.Alloc(n*size, tideway.BufferOptions{})
	if err != nil {
		return nil, err
	}
	p := &pump{e: e, buf: buf, via: via, slots: make([]slot, n)}
	for i := range p.slots {
		at := uint64(i) * size
		p.slots[i] = slot{bytes: buf.Bytes()[at : at+size : at+size], batch: e.NewBatch()}
	}
	return p, nil
}

// Close frees the ring.
func (p *pump) Close() error { return p.buf.Close() }

// slot returns the slot of the nth piece.
func (p *pump) slot(n uint64) (*slot, uint64) {
	i := n % uint64(len(p.slots))
	return &p.slots[i], i * uint64(cap(p.slots[i].bytes))
}

// start puts the nth piece, n bytes at off, on its way.
func (p *pump) start(ctx context.Context, op tideway.Op, r *tideway.RemoteBuffer, nth, off uint64, n int) error {
	s, at := p.slot(nth)
	s.off, s.bytes = off, s.bytes[:n]
	err := s.batch.Add(ctx, tideway.Request{Op: op, Local: p.buf.Range(at, uint64(n)), Remote: r.At(off), Transport: p.via})
	s.batch.Seal()
	return err
}

// finish waits for the nth piece.
func (p *pump) finish(ctx context.Context, nth uint64) (*slot, error) {
	s, _ := p.slot(nth)
	if err := s.batch.Wait(ctx); err != nil {
		return s, err
	}
	if ctx.Err() != nil { // pieces that never have to be waited for would not see it
		return s, context.Cause(ctx)
	}
	for _, res := range s.batch.Results() {
		p.used = res.Transport
	}
	return s, s.batch.Reset()
}

// drain withdraws the pieces [from, to) and waits until they are quiet.
func (p *pump) drain(from, to uint64) {
	for nth := from; nth < to; nth++ {
		s, _ := p.slot(nth)
		s.batch.Cancel()
	}
	for nth := from; nth < to; nth++ {
		s, _ := p.slot(nth)
		<-s.batch.Done()
		_ = s.batch.Reset() // a batch that is done can be reset
	}
}

// read copies [from, to) of r to sink, in order.
func (p *pump) read(ctx context.Context, r *tideway.RemoteBuffer, from, to uint64, sink func([]byte) error) (err error) {
	var head, tail uint64 // pieces finished, pieces started
	defer func() {
		if err != nil {
			p.drain(head, tail)
		}
	}()
	for next := from; head < tail || next < to; {
		for next < to && tail-head < uint64(len(p.slots)) {
			s, _ := p.slot(tail)
			n := min(uint64(cap(s.bytes)), to-next)
			tail++
			if err := p.start(ctx, tideway.Read, r, tail-1, next, int(n)); err != nil {
				return err
			}
			next += n
		}
		s, err := p.finish(ctx, head)
		if err != nil {
			return err
		}
		head++
		if err := sink(s.bytes); err != nil {
			return err
		}
	}
	return nil
}

// write copies what source yields, until io.EOF, to r from offset from on, and
// reports each piece that is applied. It returns the bytes taken from source.
func (p *pump) write(ctx context.Context, r *tideway.RemoteBuffer, from uint64, source io.Reader, applied func(int)) (total uint64, err error) {
	var head, tail uint64
	defer func() {
		if err != nil {
			p.drain(head, tail)
		}
	}()
	more := true
	for more || head < tail {
		for more && tail-head < uint64(len(p.slots)) {
			s, _ := p.slot(tail)
			n, err := io.ReadFull(source, s.bytes[:cap(s.bytes)])
			if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
				return total, err
			}
			more = err == nil
			if n == 0 {
				break
			}
			if err := fits(r, from+total, uint64(n)); err != nil {
				return total, err
			}
			tail++
			if err := p.start(ctx, tideway.Write, r, tail-1, from+total, n); err != nil {
				return total, err
			}
			total += uint64(n)
		}
		if head == tail {
			break
		}
		s, err := p.finish(ctx, head)
		if err != nil {
			return total, err
		}
		head++
		applied(len(s.bytes))
	}
	return total, nil
}

// fits says, naming both sizes, when n bytes at off do not fit into r.
func fits(r *tideway.RemoteBuffer, off, n uint64) error {
	if off <= r.Len() && n <= r.Len()-off {
		return nil
	}
	d := r.Desc()
	return errs.New(errs.OutOfRange, "write "+d.Name, "%d bytes at %d do not fit into its %d", n, off, r.Len())
}
