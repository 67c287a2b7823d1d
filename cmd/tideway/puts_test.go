package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tideway-io/tideway"
	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/testenv"
	"github.com/tideway-io/tideway/segment"
	"github.com/zeebo/xxh3"
)

// deskCase is a desk with one rw and one ro file, and a client of it that says
// what it likes.
type deskCase struct {
	t    *testing.T
	dir  string
	path string
	desk *desk
	seg  *tideway.Segment
	e    *tideway.Engine
}

func newDeskCase(t *testing.T, idle time.Duration) *deskCase {
	t.Helper()
	testenv.Leak(t)
	ctx := t.Context()
	quiet := slog.New(slog.DiscardHandler)
	owner, err := tideway.Open(ctx, tideway.Config{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	c := &deskCase{t: t, dir: t.TempDir()}
	c.path = filepath.Join(c.dir, "data")
	var files []*shared
	for name, access := range map[string]segment.Access{"data": segment.ReadWrite, "ro": segment.RemoteRead} {
		f := &shared{name: name, path: filepath.Join(c.dir, name), access: access}
		if err := os.WriteFile(f.path, []byte("old "+name), 0o640); err != nil {
			t.Fatal(err)
		}
		if err := f.open(owner); err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	c.desk = newDesk(owner, quiet, files, idle)
	run, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() { defer close(ended); c.desk.run(run) }()
	if c.e, err = tideway.Open(ctx, tideway.Config{Logger: quiet}); err != nil {
		t.Fatal(err)
	}
	if c.seg, err = c.e.OpenSegment(ctx, owner.Name()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stop()
		<-ended
		c.seg.Close()
		c.e.Close()
		owner.Close()
		for _, f := range files {
			f.release()
		}
		holds(t, c.dir, "data", "ro")
	})
	return c
}

func (c *deskCase) session(id int, name string) *session {
	return &session{e: c.e, seg: c.seg, id: fmt.Sprintf("%016x", id), to: place{addr: c.seg.Name(), name: name}}
}

// write writes the whole content of a put.
func (c *deskCase) write(s *session, content string) {
	c.t.Helper()
	r, err := c.seg.Buffer(c.t.Context(), putBuffer(s.id, dataBuffer))
	if err != nil {
		c.t.Fatal(err)
	}
	if _, err := r.WriteAt(c.t.Context(), []byte(content), 0); err != nil {
		c.t.Fatal(err)
	}
}

func (c *deskCase) want(content string) {
	c.t.Helper()
	got, err := os.ReadFile(c.path)
	if err != nil || string(got) != content {
		c.t.Errorf("the file holds %q, %v; want %q", got, err, content)
	}
}

// begin begins a put and fails the test unless the answer is of kind.
func (c *deskCase) begin(s *session, size uint64, kind error) {
	c.t.Helper()
	if err := s.begin(c.t.Context(), size); !errors.Is(err, kind) {
		c.t.Fatalf("begin: %v; want %v", err, kind)
	}
}

func TestPutReplaces(t *testing.T) {
	c := newDeskCase(t, time.Minute)
	s := c.session(1, "data")
	c.begin(s, 5, nil)
	c.write(s, "fresh")
	c.want("old data")
	if err := s.commit(t.Context(), xxh3.HashString("fresh"), 5); err != nil {
		t.Fatal(err)
	}
	c.want("fresh")
	if info, err := os.Stat(c.path); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	r, err := c.seg.Buffer(t.Context(), "data")
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(io.NewSectionReader(r.ReaderAt(t.Context()), 0, int64(r.Len())))
	for errors.Is(err, errs.ErrStale) { // the descriptor known here may be the one from before
		if err = c.seg.Refresh(t.Context()); err == nil {
			r, err = c.seg.Buffer(t.Context(), "data")
		}
		if err == nil {
			got, err = io.ReadAll(io.NewSectionReader(r.ReaderAt(t.Context()), 0, int64(r.Len())))
		}
	}
	if err != nil || string(got) != "fresh" {
		t.Errorf("offered is %q, %v", got, err)
	}
	s.end(t.Context())
}

// What is wrong with a put is said with its kind, and the file stays.
func TestPutRefused(t *testing.T) {
	c := newDeskCase(t, time.Minute)
	c.begin(c.session(1, "nothing"), 5, errs.ErrNotFound)
	c.begin(c.session(2, "ro"), 5, errs.ErrDenied)
	if err := c.session(3, "data").begin(t.Context(), 1<<60); err == nil || !strings.Contains(err.Error(), "1 EiB are needed") {
		t.Errorf("an exbibyte: %v", err)
	}
	s := c.session(4, "data")
	c.begin(s, 5, nil)
	c.write(s, "wrong")
	if err := s.commit(t.Context(), xxh3.HashString("right"), 5); !errors.Is(err, errs.ErrChecksum) {
		t.Errorf("wrong bytes: %v", err)
	}
	c.want("old data")
}

// Puts at a time are bounded, and so are answers that nobody fetches.
func TestPutsAreBounded(t *testing.T) {
	c := newDeskCase(t, time.Minute)
	var open []*session
	for i := range maxPuts {
		s := c.session(i, "data")
		c.begin(s, 10, nil)
		open = append(open, s)
	}
	for i := range maxAnswers + 10 {
		c.begin(c.session(1000+i, "data"), 10, errs.ErrOverloaded)
	}
	if err := c.seg.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := len(c.seg.Buffers()); n > 2+2*maxPuts+maxAnswers {
		t.Errorf("%d buffers are offered", n)
	}
	open[0].end(t.Context())
	testenv.Eventually(t, patience, func() bool {
		s := c.session(int(time.Now().UnixNano()), "data")
		return s.begin(t.Context(), 10) == nil
	}, "room for another put")
}

// A put that nobody goes on with is given up.
func TestPutGivenUp(t *testing.T) {
	c := newDeskCase(t, 10*time.Millisecond)
	c.begin(c.session(1, "data"), 10, nil)
	testenv.Eventually(t, patience, func() bool {
		list, _ := filepath.Glob(tempPrefix(c.path) + "*")
		return len(list) == 0
	}, "the temporary file is gone")
	testenv.Eventually(t, patience, func() bool {
		if err := c.seg.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		return len(c.seg.Buffers()) == 2
	}, "its buffers are gone")
}

// Messages out of order, twice, or made up change nothing.
func TestPutHostileMessages(t *testing.T) {
	c := newDeskCase(t, time.Minute)
	s := c.session(1, "data")
	tell := func(name, body string) {
		t.Helper()
		if err := c.e.Notify(t.Context(), c.seg, tideway.Notification{Name: name, Body: []byte(body)}); err != nil {
			t.Fatal(err)
		}
	}
	tell("something/else", "{}")
	tell(putBegin, "")
	tell(putBegin, `{"id":"../../../../x","name":"data"}`)
	tell(putBegin, `{"id":"0000000000000009","name":"../data","size":1}`)
	tell(putCommit, `{"id":"0000000000000001","hash":"0"}`)
	tell(putEnd, `{"id":"0000000000000001"}`)
	c.begin(s, 5, nil)
	c.begin(s, 500, nil) // again: the first one stands
	c.write(s, "fresh")
	if err := s.commit(t.Context(), xxh3.HashString("fresh"), 5); err != nil {
		t.Fatal(err)
	}
	tell(putCommit, `{"id":"0000000000000001","hash":"0"}`)
	tell(putEnd, `{"id":"0000000000000001"}`)
	tell(putEnd, `{"id":"0000000000000001"}`)
	c.want("fresh")
}

// After a commit the writer cannot write any more, so that what was checked is
// what is in place.
func TestPutIsClosedByCommit(t *testing.T) {
	c := newDeskCase(t, time.Minute)
	s := c.session(1, "data")
	c.begin(s, 5, nil)
	r, err := c.seg.Buffer(t.Context(), putBuffer(s.id, dataBuffer))
	if err != nil {
		t.Fatal(err)
	}
	c.write(s, "fresh")
	if err := s.commit(t.Context(), xxh3.HashString("fresh"), 5); err != nil {
		t.Fatal(err)
	}
	if _, err := r.WriteAt(t.Context(), []byte("ghost"), 0); !errors.Is(err, errs.ErrStale) {
		t.Errorf("a late write: %v", err)
	}
	c.want("fresh")
}

// Leftovers of killed servers are removed, and nothing else is.
func TestSweep(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "[data]*")
	keep := []string{"[data]*", ".[data]*.tideway-put-xyz", ".other.tideway-put-0123456789abcdef", ".dataX.tideway-put-0123456789abcdef"}
	for _, name := range append(keep, ".[data]*.tideway-put-0123456789abcdef", ".[data]*.tideway-put-fedcba9876543210") {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	held, err := lockPart(filepath.Join(dir, ".[data]*.tideway-put-fedcba9876543210"))
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if err := sweep(path); err != nil {
		t.Fatal(err)
	}
	for _, name := range append(keep, ".[data]*.tideway-put-fedcba9876543210") {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, ".[data]*.tideway-put-0123456789abcdef")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the leftover: %v", err)
	}
}

// What has no kind on the other side is not called an internal error here, and
// what has one says what to do there.
func TestOutcome(t *testing.T) {
	for _, c := range []struct {
		err  error
		text string
		code int
		fix  string
	}{
		{fmt.Errorf("beside f: %w", syscall.EIO), "put b/f: the other side says: beside f: input/output error", exitError, ""},
		{fmt.Errorf("beside f: %w", syscall.ENOSPC), "put b/f: overloaded: the other side says: beside f: no space left on device", exitBusy, "make room"},
		{fmt.Errorf("beside f: %w", syscall.EDQUOT), "put b/f: overloaded: the other side says: beside f: disk quota exceeded", exitBusy, "quota"},
		{fmt.Errorf("beside f: %w", syscall.EROFS), "put b/f: denied: the other side says: beside f: read-only file system", exitDenied, "directory"},
		{fmt.Errorf("beside f: %w", syscall.EACCES), "put b/f: denied: the other side says: beside f: permission denied", exitDenied, "directory"},
	} {
		err := outcomeOf(c.err).error("b/f")
		if err.Error() != c.text || exitCode(t.Context(), err) != c.code || !strings.Contains(hint(err), c.fix) {
			t.Errorf("%q, exit code %d, hint %q; want %q, %d, %q", err, exitCode(t.Context(), err), hint(err), c.text, c.code, c.fix)
		}
	}
}

// A put larger than the room beside the file is refused before a byte moves, and
// says how much there is.
func TestPutWithoutRoom(t *testing.T) {
	c := newDeskCase(t, time.Minute)
	err := c.session(7, "data").begin(t.Context(), 1<<60)
	if !errors.Is(err, errs.ErrOverloaded) || !strings.Contains(err.Error(), "1 EiB are needed and") || !strings.Contains(err.Error(), c.path) {
		t.Errorf("%v", err)
	}
}
