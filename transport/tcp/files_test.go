package tcp

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
)

// slowFile is a file in memory that can be held up or broken.
type slowFile struct {
	mu    sync.Mutex
	free  *sync.Cond
	data  []byte
	held  bool
	fails bool
}

func newSlowFile(n int) *slowFile {
	f := &slowFile{data: make([]byte, n)}
	f.free = sync.NewCond(&f.mu)
	return f
}

func (f *slowFile) hold(held bool) {
	f.mu.Lock()
	f.held = held
	f.free.Broadcast()
	f.mu.Unlock()
}

func (f *slowFile) do(move func()) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for f.held {
		f.free.Wait()
	}
	if f.fails {
		return errors.New("input/output error")
	}
	move()
	return nil
}

func (f *slowFile) WriteAt(p []byte, off int64) (n int, err error) {
	err = f.do(func() { n = copy(f.data[off:], p) })
	return n, err
}

func (f *slowFile) ReadAt(p []byte, off int64) (n int, err error) {
	err = f.do(func() { n = copy(p, f.data[off:]) })
	return n, err
}

// TestFileWriteRead moves slices of every size to a real file and back.
func TestFileWriteRead(t *testing.T) {
	a, b := newHost(t, loopback{}, defaultLimits()), newHost(t, loopback{}, defaultLimits())
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const total = 16 << 20
	if err := f.Truncate(total); err != nil {
		t.Fatal(err)
	}
	buf := b.memory.addFile(f, total, segment.ReadWrite)
	ep := a.connect(t, b)
	local, back := make([]byte, total), make([]byte, total)
	pattern(local, 3)
	var writes, reads []transport.Slice
	at := 0
	for k := 0; at+sizes[k%len(sizes)] < total; k++ {
		n := sizes[k%len(sizes)]
		s := transport.Slice{Op: transport.Write, Class: transport.Class(k % 2), Local: local[at : at+n], Buffer: buf, Offset: uint64(at), Tag: transport.Tag(k)}
		writes = append(writes, s)
		s.Op, s.Local, s.Tag = transport.Read, back[at:at+n], s.Tag+10_000
		reads = append(reads, s)
		at += n
	}
	a.post(t, ep, writes)
	wantAll(t, a, writes)
	onDisk, err := os.ReadFile(f.Name())
	if err != nil || !bytes.Equal(onDisk[:at], local[:at]) {
		t.Fatalf("the file differs (%v)", err)
	}
	a.post(t, ep, reads)
	wantAll(t, a, reads)
	if !bytes.Equal(back[:at], local[:at]) {
		t.Fatal("what was read differs")
	}
	past := []transport.Slice{{Op: transport.Write, Local: local[:10], Buffer: buf, Offset: total - 9, Tag: 50_000}, {Op: transport.Read, Local: back[:10], Buffer: buf, Offset: total - 9, Tag: 50_001}}
	a.post(t, ep, past)
	for _, s := range past {
		if c := a.sink.wait(t, s.Tag); c.Code != errs.OutOfRange {
			t.Errorf("%v past the end: %v", s.Op, c.Code)
		}
	}
}

// TestSlowFile: while a file hangs, memory of the same peer moves on, the lane of
// the file is not taken for dead, and memory stays bounded; then all is done.
func TestSlowFile(t *testing.T) {
	bubble(t, 256<<10, func(t *testing.T, _ *memNet, a, b *host) {
		ep := a.connect(t, b)
		file := newSlowFile(32 << 20)
		buf := b.memory.addFile(file, 32<<20, segment.ReadWrite)
		mem := b.memory.add(make([]byte, 1<<20), segment.ReadWrite)
		ep.openLater(ep.bulk + int(forFiles) - 1)
		synctest.Wait()
		file.hold(true)
		var s []transport.Slice
		for k := range 24 { // far more than the lane's frame buffers
			w := write(buf, bytes.Repeat([]byte{byte(k + 1)}, 1<<20), transport.Tag(k))
			w.Offset = uint64(k) << 20
			s = append(s, w)
		}
		for k := range 8 {
			s = append(s, read(buf, make([]byte, 1<<20), transport.Tag(100+k)))
		}
		a.post(t, ep, s)
		time.Sleep(time.Minute)
		for k := range 10 {
			a.post(t, ep, []transport.Slice{write(mem, make([]byte, 100_000), transport.Tag(200+k)), read(mem, make([]byte, 4096), transport.Tag(300+k))})
			start := time.Now()
			if c, d := a.sink.wait(t, transport.Tag(200+k)), a.sink.wait(t, transport.Tag(300+k)); c.Code != errs.OK || d.Code != errs.OK || time.Since(start) > time.Second {
				t.Fatalf("memory beside a hanging file: %+v %+v after %v", c, d, time.Since(start))
			}
		}
		if n := b.tr.writePlaces.count() + b.tr.readPlaces.count(); n > 2*laneFiles {
			t.Errorf("%d frame buffers are held, %d are allowed per lane", n, laneFiles)
		}
		file.hold(false)
		wantAll(t, a, s)
		for k := range 24 {
			if !bytes.Equal(file.data[k<<20:(k+1)<<20], bytes.Repeat([]byte{byte(k + 1)}, 1<<20)) {
				t.Errorf("write %d is not what the file holds", k)
			}
		}
		b.wantNoHeld(t)
	})
}

// TestFileErrors: the peer is told what it can act on.
func TestFileErrors(t *testing.T) {
	for _, c := range []struct {
		fails error
		want  errs.Code
	}{
		{io.EOF, errs.Stale},
		{&os.PathError{Op: "read", Path: "x", Err: os.ErrClosed}, errs.Revoked},
		{&os.PathError{Op: "write", Path: "x", Err: unix.EPERM}, errs.Denied},
		{&os.PathError{Op: "write", Path: "x", Err: unix.ENOSPC}, errs.Overloaded},
		{&os.PathError{Op: "write", Path: "x", Err: unix.EDQUOT}, errs.Overloaded},
		{&os.PathError{Op: "read", Path: "x", Err: unix.EIO}, errs.Internal},
	} {
		if got := fileCode(c.fails); got != c.want {
			t.Errorf("%v: %v, want %v", c.fails, got, c.want)
		}
	}
}

// TestFileShrank: a Read of what the file no longer has is stale, not an accident.
func TestFileShrank(t *testing.T) {
	bubble(t, 256<<10, func(t *testing.T, _ *memNet, a, b *host) {
		f, err := os.Create(filepath.Join(t.TempDir(), "f"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.Write(make([]byte, 10)); err != nil {
			t.Fatal(err)
		}
		buf := b.memory.addFile(f, 1<<20, segment.ReadWrite)
		a.post(t, a.connect(t, b), []transport.Slice{read(buf, make([]byte, 20), 1)})
		if c := a.sink.wait(t, 1); c.Code != errs.Stale {
			t.Errorf("%+v, want %v", c, errs.Stale)
		}
	})
}

// TestFileFails: an I/O error fails its own request with internal.
func TestFileFails(t *testing.T) {
	bubble(t, 256<<10, func(t *testing.T, _ *memNet, a, b *host) {
		ep := a.connect(t, b)
		file := newSlowFile(1 << 20)
		file.fails = true
		buf := b.memory.addFile(file, 1<<20, segment.ReadWrite)
		mem := b.memory.add(make([]byte, 1<<20), segment.ReadWrite)
		a.post(t, ep, []transport.Slice{write(buf, make([]byte, 9), 1), read(buf, make([]byte, 9), 2), write(mem, make([]byte, 9), 3)})
		for tag, want := range map[transport.Tag]errs.Code{1: errs.Internal, 2: errs.Internal, 3: errs.OK} {
			if c := a.sink.wait(t, tag); c.Code != want {
				t.Errorf("slice %d: %+v, want %v", tag, c, want)
			}
		}
	})
}

// TestFileLaneCut: a lane that ends while its file hangs gives all frame buffers
// back once the file returns, and is quiet before it is fenced.
func TestFileLaneCut(t *testing.T) {
	bubble(t, 256<<10, func(t *testing.T, nw *memNet, a, b *host) {
		ep := a.connect(t, b)
		file := newSlowFile(32 << 20)
		buf := b.memory.addFile(file, 32<<20, segment.ReadWrite)
		file.hold(true)
		for k := range 16 {
			a.post(t, ep, []transport.Slice{write(buf, bytes.Repeat([]byte{1}, 1<<20), transport.Tag(k)), read(buf, make([]byte, 1<<20), transport.Tag(100+k))})
		}
		time.Sleep(time.Second)
		nw.reset()
		synctest.Wait()
		for k := range 16 {
			if c := a.sink.wait(t, transport.Tag(k)); c.Code == errs.OK || c.Code == errs.LaneLost && c.InDoubt {
				t.Errorf("write %d while its file hangs: %+v", k, c)
			}
			if c := a.sink.wait(t, transport.Tag(100+k)); c.Code != errs.LaneLost {
				t.Errorf("read %d: %+v", k, c)
			}
		}
		file.hold(false)
		time.Sleep(time.Second)
		b.wantNoHeld(t)
	})
}
