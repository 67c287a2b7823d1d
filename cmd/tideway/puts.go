package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/tideway-io/tideway"
	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/topology"
	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"
)

// The bounds of the puts under way in one process.
const (
	maxPuts    = 8               // being written
	maxAnswers = 256             // ended, their answers not yet fetched
	answerLife = time.Minute     // of an answer nobody fetches
	putTick    = time.Second / 4 // between two looks at files and puts
)

// desk takes puts into the files that serve shares, and keeps these files
// offered as they change. One goroutine runs it and owns every field.
type desk struct {
	e       *tideway.Engine
	log     *slog.Logger
	files   []*shared
	idle    time.Duration // a put that writes nothing for so long is given up
	puts    map[string]*incoming
	fetched []*tideway.Buffer // answers of forgotten puts, withdrawn and perhaps still being read
	checked chan verdict
	wg      sync.WaitGroup // checks under way
}

// incoming is one put: open while temp is set, then an answer that waits.
type incoming struct {
	id      string
	into    *shared
	size    uint64
	temp    *os.File
	data    *tideway.Buffer // nil for an empty file
	answers []*tideway.Buffer
	checks  bool      // a commit is being checked
	touched time.Time // last sign of life
}

// verdict is what a check found.
type verdict struct {
	id  string
	err error
}

func newDesk(e *tideway.Engine, log *slog.Logger, files []*shared, idle time.Duration) *desk {
	return &desk{e: e, log: log, files: files, idle: idle, puts: map[string]*incoming{}, checked: make(chan verdict, maxPuts)}
}

// takesPuts reports whether any file may be written.
func (d *desk) takesPuts() bool {
	for _, f := range d.files {
		if f.access&segment.RemoteWrite != 0 {
			return true
		}
	}
	return false
}

// run works until ctx ends; then no temporary file is left.
func (d *desk) run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	mail := make(chan tideway.Notification)
	var reader sync.WaitGroup
	if d.takesPuts() {
		reader.Go(func() { d.receive(ctx, mail) })
	}
	tick := time.NewTicker(putTick)
	defer func() {
		tick.Stop()
		cancel()
		reader.Wait()
		d.wg.Wait()
		for _, p := range d.puts {
			d.drop(p)
		}
	}()
	for {
		select {
		case n := <-mail:
			d.handle(ctx, n)
		case v := <-d.checked:
			d.finish(v)
		case now := <-tick.C:
			d.look(now)
		case <-ctx.Done():
			return
		}
	}
}

// receive passes on the notifications of the put protocol and drops others.
func (d *desk) receive(ctx context.Context, mail chan<- tideway.Notification) {
	for {
		n, err := d.e.Receive(ctx)
		if err != nil {
			return
		}
		select {
		case mail <- n:
		case <-ctx.Done():
			return
		}
	}
}

func (d *desk) handle(ctx context.Context, n tideway.Notification) {
	m, err := decodePut(n.Body)
	if err != nil {
		d.log.Warn("put message refused", "from", n.From, "name", n.Name, "err", err)
		return
	}
	p := d.puts[m.ID]
	switch {
	case n.Name == putBegin && p == nil:
		p = &incoming{id: m.ID, size: m.Size, touched: time.Now()}
		err := d.begin(p, m.Name)
		d.log.Info("put begins", "from", n.From, "name", m.Name, "size", m.Size, "err", err)
		d.room()
		d.puts[m.ID] = p
		d.answer(p, begunBuffer, err)
	case n.Name == putCommit && p != nil && p.temp != nil && !p.checks:
		d.check(ctx, p, m.Hash)
	case n.Name == putEnd && p != nil && !p.checks:
		d.drop(p)
	}
}

// live counts the puts that are being written.
func (d *desk) live() int {
	n := 0
	for _, p := range d.puts {
		if p.temp != nil {
			n++
		}
	}
	return n
}

// room makes room for one more put by dropping the answer that waited longest.
func (d *desk) room() {
	if len(d.puts) < maxPuts+maxAnswers {
		return
	}
	var oldest *incoming
	for _, p := range d.puts {
		if p.temp == nil && (oldest == nil || p.touched.Before(oldest.touched)) {
			oldest = p
		}
	}
	d.drop(oldest)
}

// begin makes the temporary file and offers it.
func (d *desk) begin(p *incoming, name string) error {
	for _, f := range d.files {
		if f.name == name {
			p.into = f
		}
	}
	switch {
	case p.into == nil:
		return errs.New(errs.NotFound, "put", "no file is served as %q", name)
	case p.into.access&segment.RemoteWrite == 0:
		return errs.New(errs.Denied, "put", "%s is served ro; serve it with --access rw", name)
	case d.live() >= maxPuts:
		return errs.New(errs.Overloaded, "put", "%d puts are under way, which is the limit; try again later", maxPuts)
	case len(p.into.retired) > 0:
		return errs.New(errs.Busy, "put", "earlier contents of %s are still in use; try again later", name)
	}
	return d.makeTemp(p)
}

func (d *desk) makeTemp(p *incoming) (err error) {
	p.temp, err = os.OpenFile(p.tempName(), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			d.discard(p)
		}
	}()
	if err := unix.Flock(int(p.temp.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return err
	}
	if free, err := freeSpace(p.temp); err == nil && free < p.size {
		return fmt.Errorf("%s are needed and %s are free beside %s: %w", formatSize(p.size), formatSize(free), p.into.path, unix.ENOSPC)
	}
	if err := p.temp.Truncate(int64(p.size)); err != nil || p.size == 0 {
		return err
	}
	p.data, err = d.e.RegisterFile(p.temp, tideway.BufferOptions{
		Name: putBuffer(p.id, dataBuffer), Location: topology.File, Access: segment.RemoteWrite,
	})
	return err
}

// tempName is beside the path, so that a rename can put it in place.
func (p *incoming) tempName() string { return tempPrefix(p.into.path) + p.id }

func tempPrefix(path string) string {
	return filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".tideway-put-")
}

// answer offers what came of a message, for the client to fetch.
func (d *desk) answer(p *incoming, what string, failed error) {
	text, err := json.Marshal(outcomeOf(failed))
	if err == nil {
		var b *tideway.Buffer // what it holds is there before anybody can see it
		if b, err = d.e.Register(text, tideway.BufferOptions{Name: putBuffer(p.id, what), Access: segment.RemoteRead}); err == nil {
			p.answers = append(p.answers, b)
		}
	}
	if err != nil {
		d.log.Error("put not answered", "id", p.id, "err", err)
	}
	p.touched = time.Now()
}

// check takes the data away from its writers and compares it, outside the
// desk's goroutine: that takes as long as reading it.
func (d *desk) check(ctx context.Context, p *incoming, hash string) {
	p.checks = true
	d.wg.Go(func() {
		err := p.verify(ctx, hash)
		d.checked <- verdict{p.id, err} // has room for every put that can be open
	})
}

func (p *incoming) verify(ctx context.Context, hash string) error {
	if p.data != nil {
		wait, cancel := context.WithTimeout(ctx, closeWait)
		defer cancel()
		if err := p.data.CloseContext(wait); err != nil {
			return err
		}
	}
	h, buf := xxh3.New(), make([]byte, blockSize)
	for at := int64(0); ; {
		if err := ctx.Err(); err != nil {
			return errs.New(errs.Draining, "put", "the server is shutting down")
		}
		n, err := p.temp.ReadAt(buf, at)
		h.Write(buf[:n])
		at += int64(n)
		if errors.Is(err, io.EOF) {
			if uint64(at) != p.size {
				return errs.New(errs.Checksum, "put", "%d bytes are there and %d were promised", at, p.size)
			}
			break
		}
		if err != nil {
			return err
		}
	}
	if got := hashText(h.Sum64()); got != hash {
		return errs.New(errs.Checksum, "put", "the content hashes to %s and should to %s", got, hash)
	}
	return p.temp.Sync()
}

func hashText(h uint64) string { return fmt.Sprintf("%016x", h) }

// finish puts a checked file in its place and answers.
func (d *desk) finish(v verdict) {
	p := d.puts[v.id]
	err := v.err
	if err == nil {
		err = d.replace(p)
	}
	d.log.Info("put ends", "id", p.id, "path", p.into.path, "size", p.size, "err", err)
	p.checks = false
	d.discard(p)
	d.answer(p, endedBuffer, err)
}

func (d *desk) replace(p *incoming) error {
	mode := os.FileMode(0o644)
	if info, err := os.Stat(p.into.path); err == nil {
		mode = info.Mode().Perm()
	}
	if err := p.temp.Chmod(mode); err != nil {
		return err
	}
	if err := os.Rename(p.tempName(), p.into.path); err != nil {
		return err
	}
	if err := syncDir(filepath.Dir(p.into.path)); err != nil {
		return err
	}
	if err := p.into.reopen(d.e); !errors.Is(err, errs.ErrBusy) {
		return err
	}
	return nil // it is in place, and will be offered
}

// discard lets go of a put's data: it is in place, or removed here.
func (d *desk) discard(p *incoming) {
	if p.temp == nil {
		return
	}
	if p.data != nil {
		p.into.retired = append(p.into.retired, closing{p.temp, p.data})
		p.into.reap(closeWait)
	} else {
		p.temp.Close()
	}
	if err := os.Remove(p.tempName()); err != nil && !errors.Is(err, os.ErrNotExist) {
		d.log.Error("temporary file stays", "path", p.tempName(), "err", err)
	}
	p.temp, p.data = nil, nil
}

// drop forgets a put and its answers.
func (d *desk) drop(p *incoming) {
	d.discard(p)
	delete(d.puts, p.id)
	d.fetched = append(d.fetched, p.answers...)
	d.reap()
}

// reap closes the answers of forgotten puts that nobody is reading any more.
func (d *desk) reap() {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	d.fetched = slices.DeleteFunc(d.fetched, func(b *tideway.Buffer) bool { return !errors.Is(b.CloseContext(ended), errs.ErrBusy) })
}

// look follows the files and gives up the puts that nobody goes on with.
func (d *desk) look(now time.Time) {
	d.reap()
	for _, f := range d.files {
		d.report(f, f.follow(d.e, now))
	}
	for _, p := range d.puts {
		switch {
		case p.checks:
		case p.temp == nil && now.Sub(p.touched) > answerLife:
			d.drop(p)
		case p.temp != nil && now.Sub(p.lastWrite()) > d.idle:
			d.log.Warn("put given up", "id", p.id, "path", p.into.path, "idle", d.idle)
			d.drop(p)
		}
	}
}

// report logs what keeps a file from being offered, once.
func (d *desk) report(f *shared, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && text != f.trouble {
		d.log.Warn("file not followed", "name", f.name, "path", f.path, "err", err)
	}
	f.trouble = text
}

// lastWrite is the last sign of life of an open put: its writes go past this
// process's eyes, but the file system sees them.
func (p *incoming) lastWrite() time.Time {
	info, err := p.temp.Stat()
	if err != nil || info.ModTime().Before(p.touched) {
		return p.touched
	}
	return info.ModTime()
}

// sweep removes what puts into path left behind when an earlier server was
// killed; what a running one holds is locked and stays.
func sweep(path string) error {
	left, err := filepath.Glob(globQuote(tempPrefix(path)) + "*")
	if err != nil {
		return err
	}
	for _, name := range left {
		if _, err := strconv.ParseUint(name[len(tempPrefix(path)):], 16, 64); err != nil {
			continue
		}
		f, err := os.OpenFile(name, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			err = os.Remove(name)
		}
		if err = errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	return nil
}

// globQuote makes a path match itself only.
func globQuote(s string) string {
	var out []byte
	for i := range len(s) {
		if s[i] == '*' || s[i] == '?' || s[i] == '[' || s[i] == '\\' {
			out = append(out, '\\')
		}
		out = append(out, s[i])
	}
	return string(out)
}
