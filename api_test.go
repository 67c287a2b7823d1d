package tideway_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/tideway-io/tideway"
	offheap "github.com/tideway-io/tideway/internal/mem"
	"github.com/tideway-io/tideway/internal/testenv"
	"github.com/tideway-io/tideway/metadata/memory"
	"github.com/tideway-io/tideway/segment"
)

// pair returns an engine that offers a buffer "kv" of n bytes, and another one's
// handle on it.
func pair(t testing.TB, n uint64) (owner *tideway.Engine, kv *tideway.Buffer, user *tideway.Engine, s *tideway.Segment, remote *tideway.RemoteBuffer) {
	t.Helper()
	owner = open(t, tideway.Config{})
	kv = alloc(t, owner, "kv", n, segment.ReadWrite)
	user = open(t, tideway.Config{})
	s, remote = find(t, user, owner.Addr(), "kv")
	return
}

func TestBatch(t *testing.T) {
	_, kv, e, _, remote := pair(t, 1<<20)
	local := alloc(t, e, "", 1<<20, segment.LocalOnly)
	testenv.Fill(local.Bytes(), testenv.KeyOf(100, 0), 0)
	b := e.NewBatch()
	for round := range 3 {
		for off := uint64(0); off < 1<<20; off += 64 << 10 {
			if err := b.Add(t.Context(), tideway.Request{Op: tideway.Write, Local: local.Range(off, 64<<10), Remote: remote.At(off)}); err != nil {
				t.Fatal(err)
			}
		}
		select {
		case <-b.Done():
			t.Fatal("done before it is sealed")
		default:
		}
		b.Seal()
		seen := map[int]bool{}
		for i, r := range b.Finished(t.Context()) {
			if r.Err != nil || r.Bytes != 64<<10 || r.Transport != "tcp" || seen[i] {
				t.Errorf("round %d request %d: %+v", round, i, r)
			}
			seen[i] = true
		}
		if len(seen) != 16 || b.Len() != 16 {
			t.Errorf("%d requests finished of %d, want 16", len(seen), b.Len())
		}
		<-b.Done()
		if err := b.Add(t.Context(), tideway.Request{Op: tideway.Read, Remote: remote.At(0)}); !errors.Is(err, tideway.ErrClosed) {
			t.Errorf("Add after Seal: %v", err)
		}
		if err := b.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := b.Reset(); err != nil {
			t.Fatal(err)
		}
	}
	b.Seal()
	if !bytes.Equal(kv.Bytes(), local.Bytes()) {
		t.Error("the bytes did not arrive")
	}
	if err := local.Close(); err != nil {
		t.Errorf("nothing uses the local buffer any more: %v", err)
	}
}

// TestTypesAreReadable: an alias of an internal type has no fields in go doc.
func TestTypesAreReadable(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if strings.HasPrefix(line, "type ") && strings.Contains(line, " = engine.") {
				t.Errorf("%s: %s", f, line)
			}
		}
	}
}

// Every call that takes a context says how it ended, and a context that has
// ended takes nothing in.
func TestEndedContext(t *testing.T) {
	owner, _, e, s, remote := pair(t, 4096)
	why := errors.New("nobody wants it any more")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	req := tideway.Request{Op: tideway.Write, Local: tideway.Bytes(make([]byte, 10)), Remote: remote.At(0)}
	waits := e.NewBatch()
	if err := waits.NotifyOnSuccess(s, tideway.Notification{Name: "never"}); err != nil {
		t.Fatal(err)
	}
	defer waits.Seal()
	for name, call := range map[string]func() error{
		"Submit":      func() error { _, err := e.Submit(ctx, req); return err },
		"Add":         func() error { return waits.Add(ctx, req) },
		"Do":          func() error { return e.Do(ctx, req) },
		"OpenSegment": func() error { _, err := e.OpenSegment(ctx, "127.0.0.1:1"); return err },
		"Receive":     func() error { _, err := owner.Receive(ctx); return err },
	} {
		var typed *tideway.Error
		if err := call(); !errors.Is(err, context.Canceled) || !errors.Is(err, why) || !errors.As(err, &typed) || errors.Is(err, tideway.ErrInternal) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := e.Inspect().Counts.RequestsTotal; n != 0 || waits.Len() != 0 {
		t.Errorf("%d requests were taken, %d into the batch", n, waits.Len())
	}
	if err := e.NewBatch().Wait(ctx); err != nil {
		t.Errorf("an empty batch is done whatever the context: %v", err)
	}
}

// TestErrorsSayWhatToDo has the failures that a request meets in an engine's
// life say more than their kind.
func TestErrorsSayWhatToDo(t *testing.T) {
	owner, kv, e, _, remote := pair(t, 4096)
	alloc(t, owner, "ro", 4096, segment.RemoteRead)
	_, ro := find(t, e, owner.Addr(), "ro")
	p := make([]byte, 10)
	write := func(r tideway.Request) func() error {
		return func() error { return e.Do(t.Context(), r) }
	}
	for _, c := range []struct {
		call func() error
		want string
	}{
		{write(tideway.Request{}), "submit (admit): invalid: op is 0, want Read or Write"},
		{write(tideway.Request{Op: tideway.Write, Local: tideway.Bytes(p), Remote: ro.At(0)}), "access is ro, which does not allow a write"},
		{write(tideway.Request{Op: tideway.Write, Local: tideway.Bytes(p), Remote: remote.At(0), Deadline: time.Now().Add(-time.Second)}), "the request's deadline passed"},
		{func() error {
			if err := kv.Close(); err != nil {
				return err
			}
			return e.Do(t.Context(), tideway.Request{Op: tideway.Write, Local: tideway.Bytes(p), Remote: remote.At(0)})
		}, "the owner has closed the buffer; look it up again"},
	} {
		if err := c.call(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
}

// TestWaitIsCutShort: the requests go on, and the next Wait says how they ended.
func TestWaitIsCutShort(t *testing.T) {
	px := testenv.NewProxy(t, "")
	tg := startTarget(t, spec{Config: targetConfig{Listen: freeAddr(t), Advertise: px.Addr}, Buffers: []targetBuffer{{Name: "kv", Size: 4096, Access: segment.ReadWrite}}})
	px.Target(tg.listen)
	e := open(t, tideway.Config{})
	_, kv := find(t, e, tg.Addr, "kv")
	px.BlackHole(true)
	b, err := e.Submit(t.Context(), tideway.Request{Op: tideway.Write, Local: tideway.Bytes(make([]byte, 10)), Remote: kv.At(0)})
	if err != nil {
		t.Fatal(err)
	}
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	var typed *tideway.Error
	if err := b.Wait(ctx); !errors.Is(err, context.Canceled) || !errors.Is(err, why) || !errors.As(err, &typed) || typed.Op != "wait" {
		t.Errorf("err = %v", err)
	}
	if err := b.Reset(); !errors.Is(err, tideway.ErrBusy) {
		t.Errorf("reset in flight: %v, want ErrBusy", err)
	}
	b.Cancel()
	if err := b.Wait(t.Context()); !errors.Is(err, context.Canceled) || errors.Is(err, why) {
		t.Errorf("err = %v, want the request's own end", err)
	}
}

// TestResetUnsealed: a batch with nothing in flight can be used again, whether
// it was waited on or not, and counts as one.
func TestResetUnsealed(t *testing.T) {
	_, _, e, s, remote := pair(t, 4096)
	req := tideway.Request{Op: tideway.Write, Local: tideway.Bytes(make([]byte, 10)), Remote: remote.At(0)}
	b := e.NewBatch()
	done := b.Done()
	for range 3 {
		if err := b.Reset(); err != nil {
			t.Fatalf("a fresh batch: %v", err)
		}
	}
	if err := b.NotifyOnSuccess(s, tideway.Notification{Name: "dropped by Reset"}); err != nil {
		t.Fatal(err)
	}
	if err := b.Add(t.Context(), req, req); err != nil {
		t.Fatal(err)
	}
	ends := 0
	for range b.Finished(t.Context()) {
		if ends++; ends == 2 {
			break
		}
	}
	if err := b.Reset(); err != nil || b.Len() != 0 {
		t.Fatalf("%v, %d requests in the batch", err, b.Len())
	}
	if n := e.Inspect().Counts.BatchesLive; n != 1 {
		t.Errorf("%d batches are live, want 1", n)
	}
	if err := b.Add(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	if err := b.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-done // the channel of a batch that was not done stays its channel
	if c := e.Inspect().Counts; c.BatchesLive != 0 || c.NotificationsSent != 0 {
		t.Errorf("%+v", c)
	}
}

func TestInvalidRequestsTakeNothing(t *testing.T) {
	_, _, e, s, remote := pair(t, 4096)
	local := alloc(t, e, "", 4096, segment.LocalOnly)
	good := tideway.Request{Op: tideway.Write, Local: local.Range(0, 10), Remote: remote.At(0)}
	for name, change := range map[string]func(*tideway.Request){
		"no op":           func(r *tideway.Request) { r.Op = 0 },
		"unknown op":      func(r *tideway.Request) { r.Op = 9 },
		"priority":        func(r *tideway.Request) { r.Priority = 5 },
		"no remote":       func(r *tideway.Request) { r.Remote = tideway.Remote{} },
		"local range":     func(r *tideway.Request) { r.Local = local.Range(4090, 7) },
		"local offset":    func(r *tideway.Request) { r.Local = local.Range(1<<63, 1) },
		"remote overflow": func(r *tideway.Request) { r.Remote = s.At(1<<64 - 5) },
	} {
		bad := good
		change(&bad)
		if _, err := e.Submit(t.Context(), good, bad); !errors.Is(err, tideway.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
	bad := good
	bad.Transport = "carrier-pigeon"
	if _, err := e.Submit(t.Context(), good, bad); !errors.Is(err, tideway.ErrUnsupported) {
		t.Errorf("unknown transport: %v", err)
	}
	if c := e.Inspect().Counts; c.RequestsTotal != 0 || c.QueuedRequests != 0 {
		t.Errorf("a refused call left something behind: %+v", c)
	}
	if err := local.Close(); err != nil {
		t.Errorf("a refused call holds the local buffer: %v", err)
	}
}

func TestOverloadTakesNothing(t *testing.T) {
	px := testenv.NewProxy(t, "")
	tg := startTarget(t, spec{Config: targetConfig{Listen: freeAddr(t), Advertise: px.Addr}, Buffers: []targetBuffer{{Name: "kv", Size: 4096, Access: segment.ReadWrite}}})
	px.Target(tg.listen)
	e := open(t, tideway.Config{MaxRequests: 4})
	_, kv := find(t, e, tg.Addr, "kv")
	px.BlackHole(true)
	req := tideway.Request{Op: tideway.Write, Local: tideway.Bytes(make([]byte, 10)), Remote: kv.At(0)}
	b, err := e.Submit(t.Context(), req, req, req)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := e.Submit(ctx, req, req); !errors.Is(err, tideway.ErrOverloaded) {
		t.Errorf("err = %v, want ErrOverloaded", err)
	}
	if n := e.Inspect().Counts.QueuedRequests; n != 3 {
		t.Errorf("%d requests are inside, want 3", n)
	}
	b.Cancel()
	if err := b.Wait(t.Context()); !errors.Is(err, context.Canceled) {
		t.Errorf("err = %v, want Canceled", err)
	}
}

func TestAbsoluteAddresses(t *testing.T) {
	owner, kv, e, s, _ := pair(t, 1<<20)
	mem, err := syscall.Mmap(-1, 0, 1<<16, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	late, err := owner.RegisterAddr(offheap.Addr(mem), 1<<16, tideway.BufferOptions{Access: segment.ReadWrite})
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range []*tideway.Buffer{kv, late} {
		p := pattern(1000, testenv.KeyOf(101, b.Addr()), 0)
		if err := e.Do(t.Context(), tideway.Request{Op: tideway.Write, Local: tideway.Bytes(p), Remote: s.At(b.Addr() + 99)}); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(b.Bytes()[99:1099], p) {
			t.Error("the bytes did not arrive at the address")
		}
	}
	if err := late.Close(); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Munmap(mem); err != nil {
		t.Fatal(err)
	}
}

func TestFileBuffer(t *testing.T) {
	name := filepath.Join(t.TempDir(), "weights")
	want := pattern(3<<20+17, testenv.KeyOf(102, 0), 0)
	if err := os.WriteFile(name, want, 0o600); err != nil {
		t.Fatal(err)
	}
	f := must(os.OpenFile(name, os.O_RDWR, 0))(t)
	defer f.Close()
	owner := open(t, tideway.Config{})
	b := must(owner.RegisterFile(f, tideway.BufferOptions{Name: "w", Access: segment.ReadWrite}))(t)
	e := open(t, tideway.Config{})
	_, w := find(t, e, owner.Addr(), "w")
	if w.Desc().Source.Size != uint64(len(want)) || w.Desc().Source.Inode == 0 {
		t.Errorf("the source is not identified: %+v", w.Desc().Source)
	}
	got := must(io.ReadAll(w.Reader(t.Context())))(t)
	if !bytes.Equal(got, want) {
		t.Error("the file reads differently")
	}
	if _, err := w.WriteAt(t.Context(), []byte("new"), 1<<20); err != nil {
		t.Fatal(err)
	}
	if got := must(os.ReadFile(name))(t); string(got[1<<20:1<<20+3]) != "new" || len(got) != len(want) {
		t.Error("the write did not reach the file")
	}
	if err := b.CloseContext(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestReaders(t *testing.T) {
	_, kv, _, _, remote := pair(t, 70_001)
	testenv.Fill(kv.Bytes(), testenv.KeyOf(103, 0), 0)
	if err := iotest.TestReader(remote.Reader(t.Context()), kv.Bytes()); err != nil {
		t.Error(err)
	}
	section := io.NewSectionReader(remote.ReaderAt(t.Context()), 100, 1000)
	if err := iotest.TestReader(section, kv.Bytes()[100:1100]); err != nil {
		t.Error(err)
	}
	var out bytes.Buffer
	if n, err := io.Copy(&out, remote.Reader(t.Context())); err != nil || n != 70_001 || !bytes.Equal(out.Bytes(), kv.Bytes()) {
		t.Errorf("copied %d bytes, %v", n, err)
	}
	w := io.NewOffsetWriter(remote.WriterAt(t.Context()), 5)
	if _, err := w.Write([]byte("hello")); err != nil || string(kv.Bytes()[5:10]) != "hello" {
		t.Errorf("write: %v", err)
	}
}

func TestNotifications(t *testing.T) {
	owner, _, e, s, _ := pair(t, 4096)
	for i := range 10 {
		if err := e.Notify(t.Context(), s, tideway.Notification{Name: "n", Body: []byte(fmt.Sprint(i))}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 10 {
		n, err := owner.Receive(t.Context())
		if err != nil || n.Name != "n" || string(n.Body) != fmt.Sprint(i) || n.From != e.Name() {
			t.Errorf("notification %d: %+v, %v", i, n, err)
		}
	}
	if err := e.Notify(t.Context(), s, tideway.Notification{Name: strings.Repeat("x", 300)}); !errors.Is(err, tideway.ErrInvalid) {
		t.Errorf("a long name: %v", err)
	}
	small := open(t, tideway.Config{MaxNotifications: 1})
	to := must(e.OpenSegment(t.Context(), small.Addr()))(t)
	if err := e.Notify(t.Context(), to, tideway.Notification{}); err != nil {
		t.Fatal(err)
	}
	if err := e.Notify(t.Context(), to, tideway.Notification{}); !errors.Is(err, tideway.ErrOverloaded) {
		t.Errorf("one more than the receiver keeps: %v", err)
	}
}

func TestWarmProbeExplain(t *testing.T) {
	owner, _, e, s, remote := pair(t, 4096)
	if err := e.Warm(t.Context(), owner.Name()); err != nil {
		t.Fatal(err)
	}
	if state := e.Inspect().Peers[0].Paths[0].State; state != "up" {
		t.Errorf("the path is %s after Warm", state)
	}
	if rtt, err := e.Probe(t.Context(), owner.Name()); err != nil || rtt <= 0 || rtt > time.Second {
		t.Errorf("probe: %v, %v", rtt, err)
	}
	x, err := e.Explain(t.Context(), tideway.Request{Op: tideway.Read, Local: tideway.Bytes(make([]byte, 10)), Remote: remote.At(0)})
	if err != nil || x.Err != nil || len(x.Chosen) != 1 || x.Chosen[0] != "tcp" || len(x.Candidates) != 2 {
		t.Errorf("explanation: %+v, %v", x, err)
	}
	x, err = e.Explain(t.Context(), tideway.Request{Op: tideway.Read, Remote: s.At(1)})
	if err != nil || !errors.Is(x.Err, tideway.ErrNotFound) {
		t.Errorf("explanation of a bad address: %+v, %v", x, err)
	}
	if err := e.Warm(t.Context(), freeAddr(t)); !errors.Is(err, tideway.ErrUnreachable) {
		t.Errorf("warm a peer that is not there: %v", err)
	}
}

func TestMetadataStore(t *testing.T) {
	store := memory.New()
	owner := open(t, tideway.Config{Name: "prefill-0", Metadata: store})
	alloc(t, owner, "kv", 4096, segment.ReadWrite)
	e := open(t, tideway.Config{Name: "decode-0", Metadata: store})
	s, err := e.OpenSegment(t.Context(), "prefill-0")
	if err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 5*time.Second, func() bool {
		kv, err := s.Buffer(t.Context(), "kv")
		if err != nil {
			return false
		}
		_, err = kv.WriteAt(t.Context(), []byte("x"), 0)
		return err == nil
	}, "the buffer was not published")
	if _, err := e.OpenSegment(t.Context(), "nobody"); !errors.Is(err, tideway.ErrNotFound) {
		t.Errorf("unknown name: %v", err)
	}
	if err := owner.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := open(t, tideway.Config{Name: "third", Metadata: store}).OpenSegment(t.Context(), "prefill-0"); !errors.Is(err, tideway.ErrNotFound) {
		t.Errorf("the name of a closed engine: %v", err)
	}
}

func TestConfigErrorsComeTogether(t *testing.T) {
	_, err := tideway.Open(t.Context(), tideway.Config{Lanes: 99, MaxBytes: -1, StallTimeout: -1, Name: "x", Transports: []string{"pigeon"}})
	if !errors.Is(err, tideway.ErrInvalid) {
		t.Fatal(err)
	}
	for _, word := range []string{"Lanes is 99", "MaxBytes", "StallTimeout", "Name", "pigeon"} {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("the error does not speak of %s: %v", word, err)
		}
	}
}

func TestCloseEndsEverything(t *testing.T) {
	testenv.Leak(t)
	px := testenv.NewProxy(t, "")
	tg := startTarget(t, spec{Config: targetConfig{Listen: freeAddr(t), Advertise: px.Addr}, Buffers: []targetBuffer{{Name: "kv", Size: 32 << 20, Access: segment.ReadWrite}}})
	px.Target(tg.listen)
	e, err := tideway.Open(t.Context(), tideway.Config{})
	if err != nil {
		t.Fatal(err)
	}
	_, kv := find(t, e, tg.Addr, "kv")
	p := make([]byte, 32<<20)
	b, err := e.Submit(t.Context(), tideway.Request{Op: tideway.Write, Local: tideway.Bytes(p), Remote: kv.At(0)})
	if err != nil {
		t.Fatal(err)
	}
	px.BlackHole(true)
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	select {
	case <-b.Done():
	default:
		t.Fatal("Close returned while a transfer was in flight")
	}
	if err := b.Err(); !errors.Is(err, tideway.ErrClosed) {
		t.Errorf("err = %v, want ErrClosed", err)
	}
	if _, err := e.Submit(t.Context(), tideway.Request{}); !errors.Is(err, tideway.ErrClosed) {
		t.Errorf("submit after Close: %v", err)
	}
	if _, err := e.Receive(t.Context()); !errors.Is(err, tideway.ErrClosed) {
		t.Errorf("receive after Close: %v", err)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}
