package registry

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/mem"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
)

// history is a registry whose hooks note what happens to its one buffer.
type history struct {
	*Registry
	mu struct {
		sync.Mutex
		events []string
	}
}

func (h *history) note(what string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.events = append(h.mu.events, what)
}

func (h *history) expect(t *testing.T, want string) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	if got := strings.Join(h.mu.events, " "); got != want {
		t.Errorf("what happened: %q, want %q", got, want)
	}
}

func newHistory() *history {
	h := &history{}
	h.Registry = New(Options{
		Attach: func(context.Context, *segment.Buffer) (map[string][]byte, error) { h.note("attach"); return nil, nil },
		Detach: func(*segment.Buffer) error { h.note("detach"); return nil },
	})
	return h
}

func (h *history) buffer(t *testing.T) *Buffer {
	return register(t, h.Registry, Registration{Bytes: make([]byte, 100), Access: segment.ReadWrite, Free: func() error { h.note("free"); return nil }})
}

// TestCloseWaitsForWhoIsInside covers a peer's pin and an own transfer.
func TestCloseWaitsForWhoIsInside(t *testing.T) {
	for name, enter := range map[string]func(t *testing.T, h *history, b *Buffer) (leave func()){
		"pin": func(t *testing.T, h *history, b *Buffer) func() {
			p, code := h.Pin(transport.Read, b.Desc().Key, 0, 1)
			if code != errs.OK {
				t.Fatal(code)
			}
			return p.Unpin
		},
		"use": func(t *testing.T, _ *history, b *Buffer) func() {
			if !b.Use(1) {
				t.Fatal("an open buffer cannot be used")
			}
			return func() { b.Done(1) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHistory()
				b := h.buffer(t)
				leave := enter(t, h, b)
				version := h.Version()
				if err := b.TryClose(); !errors.Is(err, errs.ErrBusy) || h.Version() != version {
					t.Errorf("TryClose: %v, version %d; want ErrBusy and %d", err, h.Version(), version)
				}
				if !b.Use(1) {
					t.Error("TryClose that was busy closed the buffer")
				}
				b.Done(1)

				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if err := b.Close(ctx); !errors.Is(err, errs.ErrBusy) || !strings.Contains(err.Error(), "1 ") {
					t.Errorf("Close while somebody is inside: %v, want ErrBusy with a count of 1", err)
				}
				h.expect(t, "attach detach")
				if _, code := h.Pin(transport.Read, b.Desc().Key, 0, 1); code != errs.Revoked || b.Use(1) || len(h.Published().Buffers) != 0 {
					t.Error("a closing buffer can still be entered or is published")
				}
				if err := b.TryClose(); !errors.Is(err, errs.ErrBusy) {
					t.Errorf("TryClose after that: %v, want ErrBusy", err)
				}
				if _, err := h.Register(t.Context(), Registration{Bytes: b.Bytes(), Access: segment.ReadWrite}); errs.Of(err) != errs.Busy {
					t.Errorf("registering the range that is being closed: %v, want busy", err)
				}

				done := make(chan error, 2)
				go func() { done <- b.Close(t.Context()) }()
				go func() { done <- b.Close(t.Context()) }()
				synctest.Wait()
				h.expect(t, "attach detach")
				leave()
				synctest.Wait()
				h.expect(t, "attach detach free")
				for range 2 {
					if err := <-done; err != nil {
						t.Errorf("Close: %v", err)
					}
				}
			})
		})
	}
}

func TestCloseWithAnEndedContextWorksWhenQuiet(t *testing.T) {
	h := newHistory()
	b := h.buffer(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.Close(ctx); err != nil {
		t.Errorf("Close: %v", err)
	}
	h.expect(t, "attach detach free")
}

func TestCloseReportsWhatCannotBeGivenBack(t *testing.T) {
	broken := errors.New("device on fire")
	r := New(Options{Detach: func(*segment.Buffer) error { return broken }})
	b := register(t, r, Registration{Bytes: make([]byte, 1), Free: func() error { return errors.New("no such mapping") }})
	err := b.Close(t.Context())
	if !errors.Is(err, broken) || !strings.Contains(err.Error(), "no such mapping") {
		t.Errorf("Close: %v, want both causes", err)
	}
	if r.Len() != 0 || b.Close(t.Context()) != nil {
		t.Error("the buffer is still there")
	}
}

func TestAttachFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := errs.New(errs.Unsupported, "pin pages", "locked memory limit")
		enter, leave := make(chan bool), make(chan bool)
		var detached, freed atomic.Int32
		r := New(Options{
			Attach: func(context.Context, *segment.Buffer) (map[string][]byte, error) {
				enter <- true
				<-leave
				return nil, broken
			},
			Detach: func(*segment.Buffer) error { detached.Add(1); return nil },
		})
		mem := make([]byte, 10)
		failed := make(chan error, 3)
		ask := func(ctx context.Context, g Registration) {
			_, err := r.Register(ctx, g)
			failed <- err
		}
		go ask(t.Context(), Registration{Bytes: mem, Free: func() error { freed.Add(1); return nil }})
		<-enter
		go ask(t.Context(), Registration{Bytes: mem})
		gone, cancel := context.WithCancel(t.Context())
		go ask(gone, Registration{Bytes: mem})
		synctest.Wait()
		cancel()
		if err := <-failed; !errors.Is(err, context.Canceled) {
			t.Errorf("one who waits for the first and gives up: %v", err)
		}
		leave <- true
		for range 2 {
			if err := <-failed; !errors.Is(err, errs.ErrUnsupported) || !strings.Contains(err.Error(), "locked memory limit") {
				t.Errorf("register: %v, want the transport's reason", err)
			}
		}
		if detached.Load() != 0 || freed.Load() != 0 || r.Len() != 0 {
			t.Errorf("detached %d times, freed %d times, %d left; want none", detached.Load(), freed.Load(), r.Len())
		}
	})
}

// TestRegistryClosesDuringAttach: the transports finish, then it is undone.
func TestRegistryClosesDuringAttach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		enter, leave := make(chan bool), make(chan bool)
		var detached atomic.Int32
		r := New(Options{
			Attach: func(context.Context, *segment.Buffer) (map[string][]byte, error) {
				enter <- true
				<-leave
				return nil, nil
			},
			Detach: func(*segment.Buffer) error { detached.Add(1); return nil },
		})
		failed, closed := make(chan error), make(chan error)
		go func() {
			_, err := r.Register(context.Background(), Registration{Bytes: make([]byte, 10), Access: segment.ReadWrite})
			failed <- err
		}()
		<-enter
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := r.Close(ctx); !errors.Is(err, errs.ErrBusy) {
			t.Errorf("Close while transports prepare: %v, want ErrBusy", err)
		}
		go func() { closed <- r.Close(context.Background()) }()
		synctest.Wait()
		if detached.Load() != 0 {
			t.Error("detached before Attach had returned")
		}
		leave <- true
		if err := <-failed; !errors.Is(err, errs.ErrClosed) {
			t.Errorf("Register: %v, want ErrClosed", err)
		}
		if err := <-closed; err != nil || detached.Load() != 1 || r.Len() != 0 || r.Version() != 1 {
			t.Errorf("Close: %v; detached %d times, %d left, version %d; want once, none and 1", err, detached.Load(), r.Len(), r.Version())
		}
		if _, err := r.Register(t.Context(), Registration{Bytes: make([]byte, 10)}); !errors.Is(err, errs.ErrClosed) {
			t.Errorf("Register after Close: %v", err)
		}
	})
}

func TestRegistryCloseIgnoresReferencesAndWaits(t *testing.T) {
	h := newHistory()
	b := h.buffer(t)
	register(t, h.Registry, Registration{Bytes: b.Bytes(), Access: segment.ReadWrite})
	p, _ := h.Pin(transport.Read, b.Desc().Key, 0, 1)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := h.Close(ctx); !errors.Is(err, errs.ErrBusy) {
		t.Errorf("Close with a pin: %v", err)
	}
	p.Unpin()
	if err := h.Close(ctx); err != nil {
		t.Errorf("Close again: %v", err)
	}
	h.expect(t, "attach detach free")
}

// TestNoPinOutlivesItsMemory pins, writes and unpins from several goroutines
// while the buffer is closed and its memory is unmapped. A pin that gets through
// too late kills the process.
func TestNoPinOutlivesItsMemory(t *testing.T) {
	const size = 64 << 10
	r := New(Options{})
	var key atomic.Uint32
	var stop atomic.Bool
	var wg sync.WaitGroup
	inside := make(chan segment.Key, 2) // who got in, now and then
	var revoked atomic.Int64
	for range 2 {
		wg.Go(func() {
			for !stop.Load() {
				runtime.Gosched()
				now := segment.Key(key.Load())
				p, code := r.Pin(transport.Write, now, 0, size)
				if code != errs.OK {
					revoked.Add(1)
					continue
				}
				clear(p.Bytes[:64])
				clear(p.Bytes[size-64:])
				p.Unpin()
				select {
				case inside <- now:
				default:
				}
			}
		})
	}
	for round := 0; round < 300 || revoked.Load() == 0; round++ {
		b, free, err := mem.Alloc(size, mem.Options{})
		if err != nil {
			t.Fatal(err)
		}
		buf := register(t, r, Registration{Bytes: b, Access: segment.RemoteWrite, Free: free})
		key.Store(uint32(buf.Desc().Key))
		for <-inside != buf.Desc().Key {
		}
		closed(t, buf)
	}
	stop.Store(true)
	wg.Wait()
}

// TestRegisterByAddress covers memory that is no Go slice.
func TestRegisterByAddress(t *testing.T) {
	b, free, err := mem.Alloc(4096, mem.Options{})
	if err != nil {
		t.Fatal(err)
	}
	r := New(Options{})
	buf := register(t, r, Registration{Addr: mem.Addr(b), Length: 4096, Access: segment.ReadWrite, Free: free})
	if r.find(b) != buf || buf.Desc().Addr != uint64(mem.Addr(b)) {
		t.Error("the memory is registered elsewhere")
	}
	p, code := r.Pin(transport.Write, buf.Desc().Key, 10, 4)
	if code != errs.OK {
		t.Fatal(code)
	}
	copy(p.Bytes, "wave")
	p.Unpin()
	if !bytes.Equal(b[10:14], []byte("wave")) {
		t.Error("the pin is of other memory")
	}
	closed(t, buf)
}
