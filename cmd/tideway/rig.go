package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/tideway-io/tideway"
	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/segment"
	"golang.org/x/sys/unix"
)

// rigBuffer is the name of the memory that a rig measures against.
const rigBuffer = "bench"

// rig is what bench and demo measure with: the engine under measurement, the
// remote buffer as it sees it and as a second engine sees it, and the target's
// process if it was started for this.
type rig struct {
	engine  *tideway.Engine
	remote  *tideway.RemoteBuffer
	second  *tideway.RemoteBuffer
	run     uint64 // random, keys the patterns
	buf     []byte
	child   *child
	pid     int // of the target's process, 0 if it is not known
	closers []func() error
}

// openRig opens both ends. Without an address the target is a process of its
// own, or this engine's own segment for the transport that joins nothing else.
func openRig(ctx context.Context, o *client, at place, need uint64, t tuning) (r *rig, err error) {
	r = &rig{run: rand.Uint64()}
	defer func() {
		if err != nil {
			r.Close()
		}
	}()
	if r.engine, err = o.open(ctx, t); err != nil {
		return r, err
	}
	r.closers = append(r.closers, r.engine.Close)
	second, err := o.open(ctx, tuning{})
	if err != nil {
		return r, err
	}
	r.closers = append(r.closers, second.Close)
	if at.addr == "" {
		if !o.names.peerToPeer() {
			return r, usagef("--metadata finds a segment by its name: give it, or leave out --metadata to start a second process")
		}
		at, err = r.target(ctx, o, need)
		if err != nil {
			return r, err
		}
	} else {
		r.pid = listener(at.addr)
	}
	if at.name, err = rigName(ctx, r.engine, at, need); err != nil {
		return r, err
	}
	if r.remote, err = r.openBuffer(ctx, r.engine, at); err != nil {
		return r, err
	}
	r.second, err = r.openBuffer(ctx, second, at)
	return r, err
}

// ownTransport is the transport that joins an engine only with itself.
const ownTransport = "memory"

// target provides need bytes to measure against.
func (r *rig) target(ctx context.Context, o *client, need uint64) (place, error) {
	if o.transport == ownTransport {
		b, err := r.engine.Alloc(need, tideway.BufferOptions{Name: rigBuffer, Access: segment.ReadWrite})
		if err != nil {
			return place{}, err
		}
		r.closers = append(r.closers, b.Close)
		return place{addr: r.engine.Name(), name: rigBuffer}, nil
	}
	c, err := startChild(ctx, rigBuffer, need, min(childStart, o.stall))
	if err != nil {
		return place{}, err
	}
	r.child, r.pid = c, c.cmd.Process.Pid
	r.closers = append(r.closers, c.Close)
	return place{addr: c.addr, name: rigBuffer}, nil
}

// rigName returns the buffer to use: the one named, or the largest that may be
// read and written.
func rigName(ctx context.Context, e *tideway.Engine, at place, need uint64) (string, error) {
	if at.name != "" {
		return at.name, nil
	}
	seg, err := e.OpenSegment(ctx, at.addr)
	if err != nil {
		return "", err
	}
	defer seg.Close()
	var best segment.Buffer
	for _, b := range seg.Buffers() {
		if b.Access == segment.ReadWrite && b.Addr != 0 && !internalName(b.Name) && b.Name != "" && b.Length > best.Length {
			best = b
		}
	}
	if best.Length < need {
		return "", &hinted{
			errs.New(errs.NotFound, "bench", "%s has no memory of %s to read and write; its largest has %s", at.addr, formatSize(need), formatSize(best.Length)),
			"start it with tideway serve --memory bench=" + strconv.FormatUint(need, 10) + ", or lower --size, --batch or --threads",
		}
	}
	return best.Name, nil
}

func (r *rig) openBuffer(ctx context.Context, e *tideway.Engine, at place) (*tideway.RemoteBuffer, error) {
	seg, err := e.OpenSegment(ctx, at.addr)
	if err != nil {
		return nil, err
	}
	r.closers = append(r.closers, seg.Close)
	b, err := findBuffer(ctx, seg, at.name)
	if err != nil {
		return nil, err
	}
	d := b.Desc()
	return b, errors.Join(may(seg, &d, segment.RemoteRead), may(seg, &d, segment.RemoteWrite))
}

// scratch returns n bytes, at most a slot, that are free until the next call.
func (r *rig) scratch(n int) []byte {
	if r.buf == nil {
		r.buf = make([]byte, slotSize)
	}
	return r.buf[:n]
}

// Close ends everything in the opposite order.
func (r *rig) Close() error {
	var err error
	for i := len(r.closers) - 1; i >= 0; i-- {
		err = errors.Join(err, r.closers[i]())
	}
	r.closers = nil
	return err
}

// blame adds to an error what this host can see of the target: that its process
// is stopped or has ended.
func (r *rig) blame(err error) error {
	if !isAny(err, errs.ErrUnreachable, errs.ErrStale) || r.pid == 0 {
		return err
	}
	switch processState(r.pid) {
	case 'T', 't':
		return &hinted{err, fmt.Sprintf("the target's process %d is stopped: kill -CONT %d lets it go on", r.pid, r.pid)}
	case 'Z', 'X', 0:
		return &hinted{err, fmt.Sprintf("the target's process %d has ended", r.pid)}
	}
	return err
}

// child is a target in a process of its own: this program serving memory. It
// ends when its standard input does, so also when this process is killed.
type child struct {
	cmd   *exec.Cmd
	stdin io.Closer
	addr  string
	errs  *tail
	stall time.Duration // that its end may take: it may be stopped
}

// childStart bounds the wait for the target to accept.
const childStart = 10 * time.Second

func startChild(ctx context.Context, name string, size uint64, stall time.Duration) (*child, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(exe, "serve", "--listen", "127.0.0.1:0", "--memory", name+"="+strconv.FormatUint(size, 10), "--until-eof", "-o", "json")
	cmd.Args[0] = os.Args[0]
	c := &child{cmd: cmd, errs: &tail{}, stall: stall}
	cmd.Stderr = c.errs
	if c.stdin, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true} // a ^C is for this process, which ends the other one
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start a second process: %w", err)
	}
	if c.addr, err = readAddr(ctx, out); err != nil {
		_ = c.Close() // what it said on its standard error is complete after that
		return nil, fmt.Errorf("start a second process: %w%s", err, c.errs)
	}
	return c, nil
}

// readAddr reads what serve prints once it accepts.
func readAddr(ctx context.Context, out io.ReadCloser) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, childStart)
	defer cancel()
	defer context.AfterFunc(ctx, func() { out.Close() })()
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	if err != nil {
		return "", err
	}
	var s serving
	if err := json.Unmarshal(line, &s); err != nil {
		return "", err
	}
	return s.Addr, nil
}

// Close ends the process: by the end of its input, and by force if that does
// not help, at once where it is stopped.
func (c *child) Close() error {
	c.stdin.Close()
	if processState(c.cmd.Process.Pid) == 'T' {
		_ = c.cmd.Process.Kill()
	}
	force := time.AfterFunc(c.stall, func() { _ = c.cmd.Process.Kill() })
	defer force.Stop()
	if err := c.cmd.Wait(); err != nil {
		return fmt.Errorf("second process: %w%s", err, c.errs)
	}
	return nil
}

// memoryAvailable returns what can be allocated without swapping.
func memoryAvailable() (uint64, error) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) >= 2 && f[0] == "MemAvailable:" {
			kib, err := strconv.ParseUint(f[1], 10, 64)
			return kib << 10, err
		}
	}
	return 0, errors.New("/proc/meminfo does not say what is available")
}

// tail keeps the last bytes written to it.
type tail struct{ b []byte }

// maxTail is how much of a child's complaints is kept.
const maxTail = 4096

func (t *tail) Write(p []byte) (int, error) {
	t.b = append(t.b, p...)
	t.b = t.b[max(0, len(t.b)-maxTail):]
	return len(p), nil
}

// String returns what was kept, after a colon if there is any.
func (t *tail) String() string {
	if len(t.b) == 0 {
		return ""
	}
	return ": " + strings.TrimSpace(string(t.b))
}
