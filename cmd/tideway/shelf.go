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

// maxRetired bounds the earlier contents of one file that transfers still use.
const maxRetired = 8

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
		s.buf, err = e.RegisterFile(f, tideway.BufferOptions{Name: s.name, Location: topology.File, Access: s.access})
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
	}
	return src
}

// follow registers the file anew if it is no longer what was registered. A
// missing file stays offered as it was: its bytes are still there.
func (s *shared) follow(e *tideway.Engine, now time.Time) error {
	s.reap()
	info, err := os.Stat(s.path)
	if err != nil {
		return nil
	}
	src := sourceOf(info)
	sameInode := src.Inode == s.source.Inode && src.Device == s.source.Device
	if src == s.source || sameInode && now.Sub(info.ModTime()) < settled {
		return nil
	}
	return s.reopen(e)
}

// reopen withdraws what is registered and registers what is at the path now.
func (s *shared) reopen(e *tideway.Engine) error {
	if len(s.retired) >= maxRetired {
		return errs.New(errs.Busy, "serve "+s.name, "%d earlier contents of %s are still being read", len(s.retired), s.path)
	}
	s.withdraw()
	if err := s.open(e); err != nil {
		return fmt.Errorf("offer %s again: %w", s.name, err)
	}
	return nil
}

// withdraw takes the buffer away from new requests; it is closed when the last
// transfer has left it.
func (s *shared) withdraw() {
	if s.buf == nil {
		return
	}
	s.retired = append(s.retired, closing{s.file, s.buf})
	s.file, s.buf, s.source = nil, nil, segment.Source{}
	s.reap()
}

// reap closes the retired buffers that nobody uses any more.
func (s *shared) reap() {
	s.retired = slices.DeleteFunc(s.retired, func(c closing) bool {
		if !closeNow(c.buf) {
			return false
		}
		c.file.Close()
		return true
	})
}

// closeNow withdraws a buffer from new requests and reports whether it is
// closed: false while transfers still use it.
func closeNow(b *tideway.Buffer) bool {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	return !errors.Is(b.CloseContext(ended), errs.ErrBusy)
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
