package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/tideway-io/tideway"
	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/topology"
)

// put copies a file into a buffer, or in place of a file, of another process.
type put struct {
	client
	quiet bool
	from  string
	to    place
}

func newPut(c *console) *cobra.Command {
	p := &put{client: client{c: c}}
	cmd := &cobra.Command{
		Use:   "put FILE ADDR/NAME[@OFFSET]",
		Short: "Copy a file (- for standard input) to a buffer or a file of another process",
		Long: "Copy FILE to another process.\n\n" +
			"Into memory, the bytes are written in place, at OFFSET or at the start; a copy that fails half way leaves\n" +
			"the memory half written, and starts again by itself when the other side restarts meanwhile.\n" +
			"A file served rw is replaced as a whole, once all bytes are there and their hash is right; others see the\n" +
			"old or the new content. With @OFFSET it is written in place, within its present size.",
		Example: "  tideway put model.bin 127.0.0.1:7000/model\n  tideway put - 127.0.0.1:7000/kv@64KiB < page",
		Args:    arguments(2, 2, "FILE and ADDR/NAME[@OFFSET]"),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if p.to, err = p.names.place(args[1]); err != nil {
				return swapped(err, args[0], "FILE comes first, then ADDR/NAME")
			}
			if p.to.hasLength {
				return usagef("%q: put takes an offset and no length; the length is the file's", args[1])
			}
			p.from = args[0]
			return p.run(cmd.Context())
		},
	}
	p.flags(cmd, "table", "json")
	cmd.Flags().BoolVarP(&p.quiet, "quiet", "q", false, "print nothing but errors")
	return cmd
}

func (p *put) run(ctx context.Context) error {
	src, err := openSource(ctx, p.from, p.c.in)
	if err != nil {
		return err
	}
	defer src.Close()
	e, err := p.open(ctx, tuning{})
	if err != nil {
		return err
	}
	defer e.Close()
	for attempt := 1; ; attempt++ {
		m, err := p.once(ctx, e, src)
		for deadline := time.Now().Add(comeback); attempt > 1 && errors.Is(err, errs.ErrUnreachable) && time.Now().Before(deadline); {
			if err = src.again(ctx); err == nil {
				m, err = p.once(ctx, e, src)
			}
		}
		if err == nil {
			m.Attempts = attempt
			return m.print(p.c.out, "put", p.output.value, p.quiet)
		}
		if !changed(err) || attempt == retries || ctx.Err() != nil {
			return err
		}
		p.say("%s; starting again (attempt %d of %d)", summary(err), attempt+1, retries)
		if err := src.again(ctx); err != nil {
			return err
		}
	}
}

// changed reports whether a put that ended in err may succeed from the start:
// the other side became another one, or the connection was lost.
func changed(err error) bool {
	return errors.Is(err, errs.ErrStale) || errs.Of(err) == errs.LaneLost
}

// comeback is how long a put that lost the other side waits for its return.
const comeback = 3 * time.Second

func (p *put) say(format string, args ...any) {
	if !p.quiet {
		fmt.Fprintf(p.c.err, "put: "+format+"\n", args...)
	}
}

// once makes one attempt from finding the segment to the last byte applied.
func (p *put) once(ctx context.Context, e *tideway.Engine, src *source) (moved, error) {
	seg, err := e.OpenSegment(ctx, p.to.addr)
	if err != nil {
		return moved{}, err
	}
	defer seg.Close()
	whole, err := p.replaces(ctx, seg)
	if err != nil {
		return moved{}, err
	}
	if whole {
		return p.replace(ctx, e, seg, src)
	}
	r, err := findBuffer(ctx, seg, p.to.name)
	if err != nil {
		return moved{}, err
	}
	d := r.Desc()
	if err := may(seg, &d, segment.RemoteWrite); err != nil {
		return moved{}, err
	}
	if src.known {
		if err := fits(r, p.to.offset, src.size); err != nil {
			return moved{}, &hinted{err, "nothing was written; serve a larger buffer"}
		}
	}
	return p.copy(ctx, e, r, p.to.offset, src, src)
}

// replaces reports whether the target is a file to be replaced as a whole,
// possibly one that is not there yet.
func (p *put) replaces(ctx context.Context, seg *tideway.Segment) (bool, error) {
	if p.to.hasOffset {
		return false, nil
	}
	r, err := seg.Buffer(ctx, p.to.name)
	if err == nil {
		d := r.Desc()
		return d.Location == topology.File && d.Access&segment.RemoteWrite != 0, nil
	}
	if !errors.Is(err, errs.ErrNotFound) {
		return false, err
	}
	return seg.Desc().ByName(putMarker) != nil, nil
}

// copy writes what from yields to r at offset and then makes sure that the
// source did not change underneath.
func (p *put) copy(ctx context.Context, e *tideway.Engine, r *tideway.RemoteBuffer, offset uint64, src *source, from io.Reader) (moved, error) {
	ring, err := newPump(e, src.expect(), p.transport)
	if err != nil {
		return moved{}, err
	}
	defer ring.Close()
	m := newMeter(p.display(), "put", 0, src.size)
	_, err = ring.write(ctx, r, offset, from, m.add)
	m.stop()
	if err == nil {
		err = src.unchanged()
	}
	n, d := m.moved()
	return moved{Name: p.to.name, Bytes: n, Seconds: d.Seconds(), Rate: rate(n, d), Transport: ring.used}, err
}

func (p *put) display() io.Writer {
	if p.quiet {
		return nil
	}
	return p.c.err
}

// source is what a put reads: a regular file, whose size is known and which can
// be read again, or a stream.
type source struct {
	io.Reader
	file  *os.File // nil for a stream
	start int64    // of the content in file
	size  uint64   // 0 for a stream
	known bool
	owned bool
	mtime time.Time
}

func openSource(ctx context.Context, name string, stdin io.Reader) (*source, error) {
	if name == "-" {
		f, ok := stdin.(*os.File)
		if !ok {
			return &source{Reader: breakableReader(ctx, stdin)}, nil
		}
		return newSource(ctx, f, false)
	}
	f, err := breakableOpen(ctx, name, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	s, err := newSource(ctx, f, true)
	if err != nil {
		f.Close()
	}
	return s, err
}

func newSource(ctx context.Context, f *os.File, owned bool) (*source, error) {
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case info.IsDir():
		return nil, usagef("%s is a directory; put takes one file", f.Name())
	case !info.Mode().IsRegular():
		return &source{Reader: breakableReader(ctx, f), file: f, owned: owned}, nil
	}
	start, err := f.Seek(0, io.SeekCurrent)
	if err != nil {
		return nil, err
	}
	s := &source{file: f, start: start, known: true, owned: owned, mtime: info.ModTime()}
	s.size = uint64(max(0, info.Size()-start))
	return s, s.rewind()
}

// Close closes the file if this command opened it.
func (s *source) Close() error {
	if !s.owned {
		return nil
	}
	return s.file.Close()
}

// rewind goes back to the start, which a stream cannot.
func (s *source) rewind() error {
	if !s.known {
		return errors.New("a stream cannot be read again: put a file, or run the command again")
	}
	s.Reader = io.NewSectionReader(s.file, s.start, int64(s.size))
	return nil
}

// again waits a moment and then goes back to the start.
func (s *source) again(ctx context.Context) error {
	select {
	case <-time.After(askAgain):
		return s.rewind()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// expect guesses how many bytes will come.
func (s *source) expect() uint64 {
	if !s.known {
		return slotSize * slotCount
	}
	return s.size
}

// unchanged says if the file is no longer what it was when it was opened: the
// copy is then a mixture.
func (s *source) unchanged() error {
	if !s.known {
		return nil
	}
	info, err := s.file.Stat()
	if err != nil {
		return err
	}
	if info.ModTime() != s.mtime || uint64(info.Size()) != s.size+uint64(s.start) {
		return &hinted{fmt.Errorf("%s changed while it was read", s.file.Name()), "run the command again when nobody writes to it"}
	}
	return nil
}
