package main

import (
	"context"
	"io"
	"os"
)

// breakableOpen opens a file until ctx ends: the open of a pipe waits for
// somebody at its other end.
func breakableOpen(ctx context.Context, name string, flag int) (*os.File, error) {
	type result struct {
		file *os.File
		err  error
	}
	opened := make(chan result, 1)
	go func() { // stays until the other end comes, if ctx ends first; the process is about to end
		f, err := os.OpenFile(name, flag, 0)
		opened <- result{f, err}
	}()
	select {
	case r := <-opened:
		return r.file, r.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// breakableReader reads r, which may block for ever in the kernel, until ctx
// ends. The goroutine that reads ahead then stays until r yields; it holds
// nothing and the process is about to end.
func breakableReader(ctx context.Context, r io.Reader) io.Reader {
	out, in := io.Pipe()
	context.AfterFunc(ctx, func() { in.CloseWithError(context.Cause(ctx)) })
	go func() {
		err := relay(in, r)
		in.CloseWithError(err)
	}()
	return out
}

// relay copies in large pieces, which io.Copy between files and pipes does not.
func relay(w io.Writer, r io.Reader) error {
	_, err := io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{r}, make([]byte, blockSize))
	return err
}

// breakableWriter writes to w, which may block for ever in the kernel, until
// ctx ends.
type breakableWriter struct {
	in    *io.PipeWriter
	ctx   context.Context // of the command: it bounds every call
	ended chan error
}

func newBreakableWriter(ctx context.Context, w io.Writer) *breakableWriter {
	out, in := io.Pipe()
	context.AfterFunc(ctx, func() { out.CloseWithError(context.Cause(ctx)) })
	b := &breakableWriter{in, ctx, make(chan error, 1)}
	go func() {
		err := relay(w, out)
		out.CloseWithError(err)
		b.ended <- err
	}()
	return b
}

// Write implements io.Writer.
func (b *breakableWriter) Write(p []byte) (int, error) { return b.in.Write(p) }

// Commit waits until all that was written has reached the writer below.
func (b *breakableWriter) Commit() error {
	b.in.Close()
	select {
	case err := <-b.ended:
		return err
	case <-b.ctx.Done():
		return context.Cause(b.ctx)
	}
}

// Close ends the goroutine of a writer that is not committed.
func (b *breakableWriter) Close() error { return b.in.CloseWithError(context.Canceled) }
