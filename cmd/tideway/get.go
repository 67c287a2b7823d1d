package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/tideway-io/tideway"
	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/segment"
)

// get copies a buffer, or a range of it, to a file.
type get struct {
	client
	quiet    bool
	from     place
	to       string
	canAgain bool // the destination can be written anew
	last     life // that bytes came from
}

func newGet(c *console) *cobra.Command {
	g := &get{client: client{c: c}}
	cmd := &cobra.Command{
		Use:   "get ADDR/NAME[@OFFSET[:LENGTH]] FILE",
		Short: "Copy a buffer or a file of another process to a file (- for standard output)",
		Long: "Copy a buffer, or a range of it, to FILE.\n\n" +
			"The bytes go to FILE" + partSuffix + " with a journal beside it, and become FILE when all are there.\n" +
			"A copy that was cut short goes on where it was when the same command is run again, provided that\n" +
			"the source is still the same; otherwise it starts again and says why.",
		Example: "  tideway get 127.0.0.1:7000/model model.bin\n  tideway get [::1]:7000/kv@1MiB:64KiB - | sha256sum",
		Args:    arguments(2, 2, "ADDR/NAME[@OFFSET[:LENGTH]] and FILE"),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if g.from, err = g.names.place(args[0]); err != nil {
				return swapped(err, args[1], "ADDR/NAME comes first, then FILE")
			}
			if g.to = args[1]; g.to == "" {
				return usagef("the name of the file is empty; give one, or - for standard output")
			}
			return g.run(cmd.Context())
		},
	}
	g.flags(cmd, "table", "json")
	cmd.Flags().BoolVarP(&g.quiet, "quiet", "q", false, "print nothing but errors")
	return cmd
}

// moved is what put and get report.
type moved struct {
	Name      string  `json:"name"`
	Bytes     uint64  `json:"bytes"`         // moved by this command
	Resumed   uint64  `json:"resumed_bytes"` // there already
	Seconds   float64 `json:"seconds"`
	Rate      float64 `json:"bytes_per_second"`
	Transport string  `json:"transport"`
	Attempts  int     `json:"attempts"`
}

func (g *get) run(ctx context.Context) error {
	e, err := g.open(ctx, tuning{})
	if err != nil {
		return err
	}
	defer e.Close()
	for attempt := 1; ; attempt++ {
		m, err := g.once(ctx, e)
		if err == nil {
			m.Attempts = attempt
			return g.report(m)
		}
		if !errors.Is(err, errs.ErrStale) || attempt == retries || !g.canAgain {
			return err
		}
		g.say("%s; starting again (attempt %d of %d)", summary(err), attempt+1, retries)
	}
}

// say prints a line for people, beside the result.
func (g *get) say(format string, args ...any) {
	if !g.quiet {
		fmt.Fprintf(g.c.err, "get: "+format+"\n", args...)
	}
}

// once makes one attempt from finding the segment to the whole file.
func (g *get) once(ctx context.Context, e *tideway.Engine) (m moved, err error) {
	seg, err := e.OpenSegment(ctx, g.from.addr)
	if err != nil {
		return m, err
	}
	defer seg.Close()
	if g.last != (life{}) {
		if err := seg.Refresh(ctx); err != nil {
			return m, err
		}
	}
	r, err := awaitBuffer(ctx, seg, g.from.name, g.last)
	if err != nil {
		return m, err
	}
	d := r.Desc()
	g.last = life{seg.Incarnation(), d.Key}
	if err := may(seg, &d, segment.RemoteRead); err != nil {
		return m, err
	}
	id, err := g.span(seg, &d)
	if err != nil {
		return m, err
	}
	dst, err := g.destination(ctx, id)
	if err != nil {
		return m, err
	}
	defer func() { err = g.keep(errors.Join(err, dst.Close()), dst) }()
	if m, err = g.copy(ctx, e, r, id, dst); err != nil {
		return m, err
	}
	if err := unchanged(ctx, seg, id); err != nil {
		return m, err
	}
	return m, dst.Commit()
}

// span returns the identity of the bytes asked for, having checked the range.
func (g *get) span(seg *tideway.Segment, d *segment.Buffer) (identity, error) {
	off, n := g.from.offset, g.from.length
	if off > d.Length || g.from.hasLength && n > d.Length-off {
		return identity{}, errs.New(errs.OutOfRange, "get "+d.Name, "%d bytes at %d are asked for and it has %d", n, off, d.Length)
	}
	if !g.from.hasLength {
		n = d.Length - off
	}
	return identityOf(seg, d, off, n), nil
}

// unchanged reports errs.ErrStale if the source is no longer what id says.
func unchanged(ctx context.Context, seg *tideway.Segment, id identity) error {
	if err := seg.Refresh(ctx); err != nil {
		return err
	}
	b := seg.Desc().ByName(id.Name)
	if b == nil {
		return errs.New(errs.Revoked, "get "+id.Name, "the other side withdrew it during the copy")
	}
	if d := identityOf(seg, b, id.Offset, id.Length).difference(id); d != "" {
		return errs.New(errs.Revoked, "get "+id.Name, "%s", d)
	}
	return nil
}

// sink is where a get writes.
type sink interface {
	io.WriteCloser
	Commit() error
	Done() uint64 // bytes of an earlier attempt
}

// Done returns the number of bytes that are there.
func (p *part) Done() uint64 { return p.done }

// plain is a sink that cannot be gone on with: standard output, a device, a pipe.
type plain struct {
	*breakableWriter
	file *os.File // closed at the end, nil for standard output
}

func (plain) Done() uint64 { return 0 }
func (p plain) Close() error {
	err := p.breakableWriter.Close()
	if p.file != nil {
		err = p.file.Close()
	}
	return err
}

func (g *get) destination(ctx context.Context, id identity) (sink, error) {
	if g.to == "-" {
		return plain{newBreakableWriter(ctx, g.c.out), nil}, nil
	}
	info, err := os.Stat(g.to)
	switch {
	case err == nil && info.IsDir():
		return nil, usagef("%s is a directory; give a file in it, such as %s/%s", g.to, g.to, id.Name)
	case err == nil && !info.Mode().IsRegular():
		f, err := breakableOpen(ctx, g.to, os.O_WRONLY)
		if err != nil {
			return nil, err
		}
		return plain{newBreakableWriter(ctx, f), f}, nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	p, reason, err := openPart(g.to, id)
	if err != nil {
		return nil, err
	}
	g.canAgain = true
	if reason != "" {
		g.say("%s%s is not used, %s: starting again", g.to, partSuffix, reason)
	} else if p.done > 0 {
		g.say("going on at %s of %s", formatSize(p.done), formatSize(p.total))
	}
	return p, nil
}

func (g *get) copy(ctx context.Context, e *tideway.Engine, r *tideway.RemoteBuffer, id identity, dst sink) (moved, error) {
	done := dst.Done()
	p, err := newPump(e, id.Length-done, g.transport)
	if err != nil {
		return moved{}, err
	}
	defer p.Close()
	m := newMeter(g.display(), "get", done, id.Length)
	err = p.read(ctx, r, id.Offset+done, id.Offset+id.Length, func(b []byte) error {
		n, err := dst.Write(b)
		m.add(n)
		return err
	})
	m.stop()
	n, d := m.moved()
	return moved{Name: id.Name, Bytes: n, Resumed: done, Seconds: d.Seconds(), Rate: rate(n, d), Transport: p.used}, err
}

// keep tells how to go on after a copy that was cut short.
func (g *get) keep(err error, dst sink) error {
	if _, isPart := dst.(*part); !isPart || err == nil || dst.Done() == 0 || errors.Is(err, errs.ErrStale) {
		return err
	}
	return &hinted{err, fmt.Sprintf("%s%s holds the first %s; run the same command again to go on", g.to, partSuffix, formatSize(dst.Done()))}
}

// display is where progress goes: nowhere when quiet.
func (g *get) display() io.Writer {
	if g.quiet {
		return nil
	}
	return g.c.err
}

// report prints the result, on standard error when the data went to standard
// output.
func (g *get) report(m moved) error {
	w := g.c.out
	if g.to == "-" {
		w = g.c.err
	}
	return m.print(w, "got", g.output.value, g.quiet)
}

func (m moved) print(w io.Writer, verb, format string, quiet bool) error {
	if format == "json" {
		return printJSON(w, m)
	}
	if quiet {
		return nil
	}
	again := ""
	if m.Resumed > 0 {
		again = fmt.Sprintf(" (and %s from before)", formatSize(m.Resumed))
	}
	_, err := fmt.Fprintf(w, "%s %s: %s%s in %s, %s over %s\n", verb, m.Name, formatSize(m.Bytes), again,
		time.Duration(m.Seconds*float64(time.Second)).Round(time.Millisecond), formatRate(m.Rate), orDash(m.Transport))
	return err
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
