package tideway

import (
	"context"
	"errors"
	"io"

	"github.com/tideway-io/tideway/errs"
)

// at binds a remote buffer to a context, for the io interfaces.
type at struct {
	ctx context.Context
	r   *RemoteBuffer
}

func (a at) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, errs.New(errs.OutOfRange, "read", "offset %d is negative", off)
	}
	return a.r.ReadAt(a.ctx, p, uint64(off))
}

func (a at) WriteAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, errs.New(errs.OutOfRange, "write", "offset %d is negative", off)
	}
	return a.r.WriteAt(a.ctx, p, uint64(off))
}

// stream reads a remote buffer from its start to its end.
type stream struct {
	ctx context.Context
	r   *RemoteBuffer
	off uint64
}

// Read implements io.Reader.
func (s *stream) Read(p []byte) (int, error) {
	if s.off >= s.r.Len() {
		return 0, io.EOF
	}
	n, err := s.r.ReadAt(s.ctx, p, s.off)
	s.off += uint64(n)
	if n > 0 && errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}

// The window of WriteTo: pieces in flight and the bytes of each.
const (
	streamPieces = 4
	streamPiece  = 1 << 20
)

// WriteTo implements io.WriterTo with several reads in flight.
func (s *stream) WriteTo(w io.Writer) (int64, error) {
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	type piece struct {
		p   []byte
		err chan error
	}
	var ring [streamPieces]piece
	start := func(i int, off uint64) {
		n := min(streamPiece, s.r.Len()-off)
		if ring[i].p == nil { // the first piece is the longest
			ring[i] = piece{make([]byte, n), make(chan error, 1)}
		}
		ring[i].p = ring[i].p[:n]
		go func() {
			_, err := s.r.ReadAt(ctx, ring[i].p, off)
			ring[i].err <- err
		}()
	}
	asked, live := s.off, 0
	var total int64
	var failed error
	for i := 0; failed == nil && (live > 0 || asked < s.r.Len()); i = (i + 1) % streamPieces {
		for live < streamPieces && asked < s.r.Len() {
			start((i+live)%streamPieces, asked)
			asked += min(streamPiece, s.r.Len()-asked)
			live++
		}
		failed = <-ring[i].err
		live--
		if failed == nil {
			var n int
			if n, failed = w.Write(ring[i].p); failed == nil && n < len(ring[i].p) {
				failed = io.ErrShortWrite
			}
			total += int64(n)
			s.off += uint64(n)
		}
		if failed != nil {
			cancel()
			for j := 1; j <= live; j++ {
				<-ring[(i+j)%streamPieces].err
			}
		}
	}
	return total, failed
}
