package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/tideway-io/tideway"
	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/topology"
)

// settled is how long a file must have been left alone before a change to it is
// published, so that a file being written is not registered anew all the time.
const settled = time.Second

// shared is one file that serve offers under a name. The name stands for the
// path: when another file takes the path, or the file changes, it is registered
// anew and what was read of the old one becomes stale. One goroutine uses it.
type shared struct {
	name    string
	path    string
	access  segment.Access
	file    *os.File        // nil while nothing is at path
	buf     *tideway.Buffer // nil while file is
	source  segment.Source  // of what is registered
	retired []closing
	trouble string // the error last logged
}

// closing is a former content that transfers may still use.
type closing struct {
	file *os.File
	buf  *tideway.Buffer
}

// open registers what is at the path. With write access there may be nothing.
func (s *shared) open(e *tideway.Engine) error {
	flag := os.O_RDONLY
	if s.access&segment.RemoteWrite != 0 {
		flag = os.O_RDWR
	}
	f, err := os.OpenFile(s.path, flag|syscall.O_NONBLOCK, 0)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) && flag == os.O_RDWR {
			return nil
		}
		return err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errs.New(errs.Invalid, "serve "+s.path, "it is not a regular file")
	}
	if err == nil {
		s.buf, err = e.RegisterFile(f, tideway.BufferOptions{Name: s.name, Location: topology.File, Access: s.access, Fixed: true})
	}
	if err != nil {
		f.Close()
		return err
	}
	s.file, s.source = f, sourceOf(info)
	return nil
}

// sourceOf is the identity of a file's content.
func sourceOf(info os.FileInfo) segment.Source {
	src := segment.Source{Size: uint64(info.Size()), ModTime: info.ModTime().UnixNano()}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		src.Inode, src.Device = st.Ino, st.Dev
		src.ModTime = max(src.ModTime, syscall.TimespecToNsec(st.Ctim)) // a modification time can be set back
	}
	return src
}

// follow registers the file anew if it is no longer what was registered. A
// missing file stays offered as it was: its bytes are still there.
func (s *shared) follow(e *tideway.Engine, now time.Time) error {
	if s.reap(0); s.buf == nil && len(s.retired) > 0 {
		return nil // not yet
	}
	info, err := os.Stat(s.path)
	if err != nil {
		return nil
	}
	src := sourceOf(info)
	sameInode := src.Inode == s.source.Inode && src.Device == s.source.Device
	if src == s.source || sameInode && now.Sub(time.Unix(0, src.ModTime)) < settled {
		return nil
	}
	return s.reopen(e)
}

// reopen withdraws what is registered and registers what is at the path now.
// When transfers are inside the old one for too long the error is errs.ErrBusy
// and follow offers the new one later: the name is taken until then.
func (s *shared) reopen(e *tideway.Engine) error {
	if s.withdraw(); len(s.retired) > 0 {
		return errs.New(errs.Busy, "serve "+s.name, "transfers are still inside the earlier content of %s", s.path)
	}
	if err := s.open(e); err != nil {
		return fmt.Errorf("offer %s again: %w", s.name, err)
	}
	return nil
}

// closeWait bounds the wait for transfers that are inside a buffer when it is
// withdrawn: each is there for one system call.
const closeWait = 2 * time.Second

// withdraw takes the buffer away from new requests and closes it when the last
// transfer has left it.
func (s *shared) withdraw() {
	if s.buf != nil {
		s.retired = append(s.retired, closing{s.file, s.buf})
		s.file, s.buf, s.source = nil, nil, segment.Source{}
	}
	s.reap(closeWait)
}

// reap closes the retired buffers, waiting a while for those that are in use.
func (s *shared) reap(wait time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	s.retired = slices.DeleteFunc(s.retired, func(c closing) bool {
		if errors.Is(c.buf.CloseContext(ctx), errs.ErrBusy) {
			return false
		}
		c.file.Close()
		return true
	})
}

// release closes the files, after the engine is closed.
func (s *shared) release() {
	for _, c := range append(s.retired, closing{s.file, s.buf}) {
		if c.file != nil {
			c.file.Close()
		}
	}
	s.retired, s.file, s.buf = nil, nil, nil
}

// splitNamed cuts NAME=VALUE as --memory and --file take it.
func splitNamed(flag, s string) (name, value string, err error) {
	name, value, ok := strings.Cut(s, "=")
	if !ok || value == "" {
		return "", "", usagef("%s %q: want NAME=%s", flag, s, map[string]string{"--memory": "SIZE", "--file": "PATH"}[flag])
	}
	if err := checkName(name); err != nil {
		return "", "", usagef("%s %q: %v", flag, s, err)
	}
	if internalName(name) {
		return "", "", usagef("%s %q: names that start with %s are taken", flag, s, putMarker)
	}
	return name, value, nil
}
