package memory

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/mem"
	"github.com/tideway-io/tideway/internal/registry"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestReadAndWriteEverySize(t *testing.T) {
	hub := NewHub()
	own := open(t, New(), nil)
	for name, p := range map[string][2]*engine{"own": {own, own}, "hub": {open(t, hub.Driver(), nil), open(t, hub.Driver(), nil)}} {
		t.Run(name, func(t *testing.T) {
			const most = 3*mem.Step + 7
			from, to := p[0], p[1]
			ep := from.connect(to)
			target := make([]byte, most+8)
			held := to.enrol(target, segment.ReadWrite)
			buf, n := held.Desc(), from.count()
			for i, size := range []int{0, 1, 4095, 4096, inlineSlice, inlineSlice + 1, mem.Step, mem.Step + 1, most} {
				data := random(size, byte(i))
				back := make([]byte, size)
				for _, s := range []transport.Slice{{Op: transport.Write, Local: data}, {Op: transport.Read, Local: back}} {
					n++
					s.Buffer, s.Offset, s.Tag = buf, 8, transport.Tag(n)
					if took, err := ep.Post([]transport.Slice{s}); took != 1 || err != nil {
						t.Fatalf("Post of %d bytes: %d, %v", size, took, err)
					}
					if c := from.await(n)[s.Tag]; c.Code != errs.OK {
						t.Fatalf("%v of %d bytes: %v, %v", s.Op, size, c.Code, c.Err)
					}
				}
				if !bytes.Equal(target[8:8+size], data) || !bytes.Equal(back, data) {
					t.Errorf("%d bytes differ", size)
				}
			}
			if pins, uses := held.Held(); pins != 0 || uses != 0 {
				t.Errorf("%d pins and %d uses are left", pins, uses)
			}
			if err := ep.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestOverlappingRangesOfOneBuffer(t *testing.T) {
	const n = 3*mem.Step + 5
	e := open(t, New(), nil)
	whole := make([]byte, 3*n)
	buf := e.register(whole, segment.ReadWrite)
	ep := e.connect(e)
	tag := 0
	for _, size := range []int{1000, n} {
		for _, shift := range []int{-mem.Step - 1, -1, 0, 1, mem.Step, 2*mem.Step + 3} {
			for _, op := range []transport.Op{transport.Read, transport.Write} {
				shift := shift % size
				copy(whole, random(len(whole), byte(tag)))
				local := whole[n:][:size]
				remote := n + shift
				dst, want := local, bytes.Clone(whole[remote:remote+size])
				if op == transport.Write {
					dst, want = whole[remote:remote+size], bytes.Clone(local)
				}
				tag++
				if _, err := ep.Post([]transport.Slice{{Op: op, Local: local, Buffer: buf, Offset: uint64(remote), Tag: transport.Tag(tag)}}); err != nil {
					t.Fatal(err)
				}
				if c := e.await(tag)[transport.Tag(tag)]; c.Code != errs.OK || !bytes.Equal(dst, want) {
					t.Errorf("%v of %d bytes onto themselves, shifted by %d, is no memmove (%v)", op, size, shift, c.Code)
				}
			}
		}
	}
}

func TestNothingMovesUnlessAllIsAllowed(t *testing.T) {
	const n = 2*mem.Step + 100
	e := open(t, New(), nil)
	rw, ro, lo := make([]byte, n), make([]byte, n), make([]byte, n)
	bufs := map[*segment.Buffer][]byte{e.register(rw, segment.ReadWrite): rw, e.register(ro, segment.RemoteRead): ro, e.register(lo, 0): lo}
	ep := e.connect(e)
	tag := transport.Tag(0)
	for buf, bytesOf := range bufs {
		for _, c := range []struct {
			off  uint64
			size int
			want errs.Code
		}{{1, n, errs.OutOfRange}, {n, 1, errs.OutOfRange}, {n + 1, 0, errs.OutOfRange}, {^uint64(0), 2, errs.OutOfRange}, {0, n, errs.OK}} {
			if buf.Access != segment.ReadWrite {
				c.want = errs.Denied
			}
			tag++
			s := transport.Slice{Op: transport.Write, Local: bytes.Repeat([]byte{1}, c.size), Buffer: buf, Offset: c.off, Tag: tag}
			code := errs.OK
			if _, err := ep.Post([]transport.Slice{s}); err != nil {
				t.Fatal(err)
			}
			if code = e.await(int(tag))[tag].Code; code != c.want {
				t.Errorf("%d bytes at %d of a buffer with access %v: %v, want %v", c.size, c.off, buf.Access, code, c.want)
			}
			if c.want != errs.OK && bytes.IndexByte(bytesOf, 1) >= 0 {
				t.Errorf("%d bytes at %d: something was written", c.size, c.off)
			}
		}
	}
	if got := e.reg.Refused(); got.Denied != 10 || got.OutOfRange != 4 {
		t.Errorf("the registry counted %+v, want 10 denied and 4 out of range", got)
	}
}

func TestFiles(t *testing.T) {
	const n = 2*mem.Step + 3
	f, err := os.Create(filepath.Join(t.TempDir(), "data"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(n); err != nil {
		t.Fatal(err)
	}
	e := open(t, New(), nil)
	b, err := e.reg.Register(t.Context(), registry.Registration{File: f, Length: n, Access: segment.ReadWrite})
	if err != nil {
		t.Fatal(err)
	}
	ep := e.connect(e)
	data, back := random(n, 1), make([]byte, n)
	one := func(op transport.Op, local []byte, off uint64) transport.Completion {
		t.Helper()
		tag := transport.Tag(e.count() + 1)
		if _, err := ep.Post([]transport.Slice{{Op: op, Local: local, Buffer: b.Desc(), Offset: off, Tag: tag}}); err != nil {
			t.Fatal(err)
		}
		return e.await(int(tag))[tag]
	}
	if c := one(transport.Write, data, 0); c.Code != errs.OK {
		t.Fatal(c)
	}
	if c := one(transport.Read, back, 0); c.Code != errs.OK || !bytes.Equal(back, data) {
		t.Fatalf("read back: %v, or other bytes", c)
	}
	if c := one(transport.Read, back[:0], n); c.Code != errs.OK {
		t.Errorf("nothing, from the end: %v", c)
	}
	if err := f.Truncate(n - 1); err != nil {
		t.Fatal(err)
	}
	if c := one(transport.Read, back[:10], n-10); c.Code != errs.Stale || errs.Of(c.Err) != errs.Stale {
		t.Errorf("the end of a file that was cut: %v, %v; want stale", c.Code, c.Err)
	}
	_ = f.Close()
	if c := one(transport.Write, back[:10], 0); c.Code != errs.Revoked || !errors.Is(c.Err, os.ErrClosed) {
		t.Errorf("a file closed under us: %v, %v; want revoked", c.Code, c.Err)
	}
}

// hungFile is a file whose server is gone: it answers when it is let go.
type hungFile struct{ let chan struct{} }

func (f hungFile) ReadAt(p []byte, _ int64) (int, error)  { <-f.let; return len(p), nil }
func (f hungFile) WriteAt(p []byte, _ int64) (int, error) { <-f.let; return len(p), nil }

func TestAFileThatHangsHoldsUpOnlyFiles(t *testing.T) {
	e := open(t, New(), nil)
	f := hungFile{make(chan struct{})}
	file, err := e.reg.Register(t.Context(), registry.Registration{File: f, Length: 1 << 30, Access: segment.ReadWrite})
	if err != nil {
		t.Fatal(err)
	}
	buf := e.register(make([]byte, 4*mem.Step), segment.ReadWrite)
	ep := e.connect(e)
	s := make([]transport.Slice, 100)
	for i := range s {
		s[i] = transport.Slice{Op: transport.Read, Local: make([]byte, 10), Buffer: file.Desc(), Tag: transport.Tag(1000 + i)}
	}
	if n, err := ep.Post(s); n != len(s) || err != nil { // does not wait for the file
		t.Fatal(n, err)
	}
	if n, err := ep.Post([]transport.Slice{{Op: transport.Read, Local: make([]byte, 4*mem.Step), Buffer: buf, Tag: 1}}); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if c := e.await(1)[1]; c.Code != errs.OK || e.count() != 1 {
		t.Errorf("memory beside a hung file: %v, %d completions, want the memory's alone", c.Code, e.count())
	}
	close(f.let)
	e.await(len(s) + 1)
}

func TestConnectNamesWhoIsNotThere(t *testing.T) {
	hub := NewHub()
	from, to := open(t, hub.Driver(), nil), open(t, hub.Driver(), nil)
	old := *to.desc()
	old.Incarnation++
	stranger := open(t, NewHub().Driver(), nil)
	own := open(t, New(), nil)
	gone := open(t, hub.Driver(), nil)
	_ = gone.tr.Close()
	for _, c := range []struct {
		from *engine
		to   *segment.Desc
		want errs.Code
	}{{from, &old, errs.Restarted}, {from, stranger.desc(), errs.Refused}, {own, to.desc(), errs.Refused}, {from, gone.desc(), errs.Refused}, {from, &segment.Desc{}, errs.Refused}} {
		if _, err := c.from.tr.Connect(t.Context(), c.to); errs.Of(err) != c.want {
			t.Errorf("Connect: %v, want %v", err, c.want)
		}
	}
}

func TestCancelEndsSlicesBetweenSteps(t *testing.T) {
	st := newStopper()
	e := open(t, New(), st.wrap)
	const n = 4 * mem.Step
	target := make([]byte, n)
	buf := e.register(target, segment.ReadWrite)
	ep := e.connect(e)
	local := bytes.Repeat([]byte{1}, n)
	if _, err := ep.Post([]transport.Slice{{Op: transport.Write, Local: local, Buffer: buf, Tag: 1}}); err != nil {
		t.Fatal(err)
	}
	<-st.entered // asks about the whole range
	st.pass <- struct{}{}
	<-st.entered // first step
	ep.(transport.Canceler).Cancel([]transport.Tag{7, 1})
	close(st.pass)
	if c := e.await(1)[1]; c.Code != errs.Canceled || c.InDoubt {
		t.Errorf("a cancelled slice ended with %+v, want canceled and no doubt", c)
	}
	if target[0] != 1 || target[mem.Step] != 0 {
		t.Error("the step under way did not end, or another was begun")
	}
	if _, err := ep.Post([]transport.Slice{{Op: transport.Write, Local: local, Buffer: buf, Tag: 2}}); err != nil {
		t.Fatal(err)
	}
	if c := e.await(2)[2]; c.Code != errs.OK {
		t.Errorf("the slice after a cancelled one: %v", c.Code)
	}
}

func TestCloseFlushesEverySlice(t *testing.T) {
	st := newStopper()
	e := open(t, New(), st.wrap)
	const n = 2 * mem.Step
	buf := e.register(make([]byte, n), segment.ReadWrite)
	ep := e.connect(e)
	s := make([]transport.Slice, 100)
	for i := range s {
		s[i] = transport.Slice{Op: transport.Read, Local: make([]byte, n), Buffer: buf, Tag: transport.Tag(i)}
	}
	if took, err := ep.Post(s); took != len(s) || err != nil {
		t.Fatal(took, err)
	}
	<-st.entered
	closed := make(chan struct{})
	go func() { _ = ep.Close(); close(closed) }()
	for {
		if _, err := ep.Post(nil); errors.Is(err, errs.ErrClosed) {
			break
		}
	}
	select {
	case <-closed:
		t.Fatal("Close returned while a worker was inside the target's memory")
	default:
	}
	close(st.pass)
	<-closed
	if got := e.count(); got != len(s) {
		t.Fatalf("%d of %d slices had completed when Close returned", got, len(s))
	}
	ended := 0
	for _, c := range e.await(len(s)) {
		if c.Code == errs.Closed {
			ended++
		} else if c.Code != errs.OK {
			t.Errorf("slice %d ended with %v, want ok or closed", c.Tag, c.Code)
		}
	}
	if ended < len(s)-8 {
		t.Errorf("only %d of %d slices were flushed, so Close waited for the work", ended, len(s))
	}
	if took, err := ep.Post(s[:1]); took != 0 || !errors.Is(err, errs.ErrClosed) {
		t.Errorf("Post after Close: %d, %v", took, err)
	}
}

func TestOverloadRefusesTheRest(t *testing.T) {
	st := newStopper()
	e := open(t, New(), st.wrap)
	buf := e.register(make([]byte, 2*inlineSlice), segment.ReadWrite)
	ep := e.connect(e)
	s := make([]transport.Slice, maxQueued+10)
	for i := range s {
		s[i] = transport.Slice{Op: transport.Read, Local: make([]byte, inlineSlice+1), Buffer: buf, Tag: transport.Tag(i)}
	}
	took, err := ep.Post(s)
	if took != maxQueued || !errors.Is(err, errs.ErrOverloaded) {
		t.Fatalf("Post of %d long slices: %d, %v; want the first %d and ErrOverloaded", len(s), took, err, maxQueued)
	}
	close(st.pass)
	e.await(took)
	if again, err := ep.Post(s[took:]); again != 10 || err != nil {
		t.Errorf("Post of the rest once there is room: %d, %v", again, err)
	}
	for _, c := range e.await(len(s)) {
		if c.Code != errs.OK {
			t.Errorf("slice %d: %v", c.Tag, c.Code)
		}
	}
	_ = ep.Close()
	if state := ep.(transport.Observer).Observe()[0]; state.InFlight != 0 || state.BytesIn != uint64(len(s)*(inlineSlice+1)) || state.BytesOut != 0 {
		t.Errorf("at the end %+v, want %d bytes in and none in flight", state, len(s)*(inlineSlice+1))
	}
	if n := len(ep.(*endpoint).mu.live); n != 0 {
		t.Errorf("%d slices are still listed", n)
	}
}

func TestUrgentSlicesOvertakeBulk(t *testing.T) {
	st := newStopper()
	e := open(t, New(), st.wrap)
	e.tr.(*Transport).large.max = 1
	buf := e.register(make([]byte, mem.Step), segment.ReadWrite)
	ep := e.connect(e)
	s := make([]transport.Slice, 20)
	for i := range s {
		s[i] = transport.Slice{Op: transport.Read, Class: 2, Local: make([]byte, mem.Step), Buffer: buf, Tag: transport.Tag(i)}
	}
	s[19].Class = 0
	if _, err := ep.Post(s); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the one under way, then the urgent one
		<-st.entered
		st.pass <- struct{}{}
	}
	<-st.entered
	if e.mu.Lock(); e.mu.done[19].Code != errs.OK || len(e.mu.done) != 2 {
		t.Errorf("of %v the urgent slice is not the second", e.mu.done)
	}
	e.mu.Unlock()
	close(st.pass)
	e.await(len(s))
}

// TestNeighboursShareAPin: slices of one buffer are moved under two pins, also
// where one of them must be refused, which then is refused alone.
func TestNeighboursShareAPin(t *testing.T) {
	var pins counter
	e := open(t, New(), func(m transport.Memory) transport.Memory { pins.Memory = m; return &pins })
	target := make([]byte, 4096)
	buf := e.register(target, segment.ReadWrite)
	ep := e.connect(e)
	post := func(offsets ...uint64) map[transport.Tag]transport.Completion {
		t.Helper()
		n := e.count()
		var s []transport.Slice
		for i, off := range offsets {
			s = append(s, transport.Slice{Op: transport.Write, Local: []byte{byte(i + 1)}, Buffer: buf, Offset: off, Tag: transport.Tag(n + i)})
		}
		pins.n = 0
		if took, err := ep.Post(s); took != len(s) || err != nil {
			t.Fatal(took, err)
		}
		return e.await(n + len(s))
	}
	post(5, 4095, 0, 7, 7)
	if pins.n != 2 || target[5] != 1 || target[4095] != 2 || target[0] != 3 || target[7] != 5 {
		t.Errorf("%d pins, want 2; the bytes are %d %d %d %d", pins.n, target[5], target[4095], target[0], target[7])
	}
	n := transport.Tag(e.count())
	done := post(1, 2, 4096, ^uint64(0), 3)
	for i, want := range []errs.Code{errs.OK, errs.OK, errs.OutOfRange, errs.OutOfRange, errs.OK} {
		if got := done[n+transport.Tag(i)].Code; got != want {
			t.Errorf("slice %d: %v, want %v", i, got, want)
		}
	}
	if target[1] != 1 || target[2] != 2 || target[3] != 5 {
		t.Errorf("the bytes are %v", target[1:4])
	}
}

// counter is a Memory that counts its pins. They come from one goroutine.
type counter struct {
	transport.Memory
	n int
}

func (c *counter) Pin(op transport.Op, key segment.Key, off, n uint64) (transport.Pin, errs.Code) {
	c.n++
	return c.Memory.Pin(op, key, off, n)
}
