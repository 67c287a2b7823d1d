package engine

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/tideway-io/tideway/segment"
)

// fixedFile is a file whose content is promised to be what it was when it was
// registered, but for what peers write to it: when it is no longer, reads fail.
type fixedFile struct {
	*os.File
	mu struct {
		sync.RWMutex
		source segment.Source // what it should be
	}
}

// clockTick is more than the time that a file system may take for one instant: a
// change that soon after another one does not show.
const clockTick = 15 * time.Millisecond

// fixFile returns f as a file that must not change, and what it is now.
func fixFile(f *os.File) (*fixedFile, segment.Source, error) {
	s, err := fileSource(f)
	if age := time.Since(time.Unix(0, s.ModTime)); err == nil && age >= 0 && age < clockTick {
		time.Sleep(clockTick - age)
		s, err = fileSource(f)
	}
	x := &fixedFile{File: f}
	x.mu.source = s
	return x, s, err
}

// ReadAt reads, and then makes sure that what it read is what was promised.
func (x *fixedFile) ReadAt(p []byte, off int64) (int, error) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	n, err := x.File.ReadAt(p, off)
	if err != nil && err != io.EOF {
		return n, err
	}
	if now, serr := fileSource(x.File); serr != nil || now != x.mu.source {
		return 0, fmt.Errorf("%s changed since it was registered: %w", x.Name(), io.ErrUnexpectedEOF)
	}
	return n, err
}

// WriteAt writes for a peer: what the file is then is what it should be. A change
// by somebody else that was there before stays one.
func (x *fixedFile) WriteAt(p []byte, off int64) (int, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	before, serr := fileSource(x.File)
	n, err := x.File.WriteAt(p, off)
	if after, aerr := fileSource(x.File); serr == nil && aerr == nil && before == x.mu.source {
		x.mu.source = after
	}
	return n, err
}
