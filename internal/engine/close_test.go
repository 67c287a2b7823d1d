package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/testenv"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
)

// TestCloseWhileConnecting: what Close cuts short has ended when it returns, with
// ErrClosed, also where a connection attempt was told to stop first.
func TestCloseWhileConnecting(t *testing.T) {
	f, net := &fake{}, &network{}
	f.connect = func(ctx context.Context, _ *segment.Desc) error { <-ctx.Done(); return ctx.Err() }
	net.put(peerDesc("b:1", 7))
	e := openFake(t, f, net)
	_, kv := lookUp(t, e, "b:1")
	b := e.NewBatch()
	add(t, b, writes(3, kv)...)
	b.Seal()
	e.stop() // the first thing that Close does to whoever connects
	if err := done(t, b); !errors.Is(err, errs.ErrClosed) {
		t.Errorf("err = %v, want closed", err)
	}
}

// TestCloseWaitsForForeignRunners: a submitter that carries out the shard's
// actions may be slow. Close does not return before it is through.
func TestCloseWaitsForForeignRunners(t *testing.T) {
	entered, gate := make(chan struct{}, 1), make(chan struct{})
	f, net := &fake{}, &network{}
	f.post = func([]transport.Slice) (int, error, bool) {
		entered <- struct{}{}
		<-gate
		return 0, nil, false
	}
	net.put(peerDesc("b:1", 7))
	e := openFake(t, f, net)
	_, kv := lookUp(t, e, "b:1")
	b := e.NewBatch()
	submitted := make(chan error, 1)
	// The first one connects; posting is then done by whoever brings the event.
	go func() {
		err := b.Add(t.Context(), writes(1, kv))
		b.Seal()
		submitted <- err
	}()
	<-entered
	closed := make(chan struct{})
	go func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
		close(closed)
	}()
	testenv.Eventually(t, testTime, func() bool { return e.ctx.Err() != nil }, "Close does not begin")
	select {
	case <-closed:
		t.Error("Close returned while slices were being posted")
	case <-time.After(50 * time.Millisecond): // real time, for what must not happen
	}
	close(gate)
	if err := <-submitted; err != nil {
		t.Error(err)
	}
	<-closed
	select {
	case <-b.Done():
	default:
		t.Error("Close returned before the batch was done")
	}
}

// TestCloseWhileSubmitting closes engines that many goroutines submit to: each
// batch ends, well or with ErrClosed.
func TestCloseWhileSubmitting(t *testing.T) {
	for range 20 {
		f, net := &fake{}, &network{}
		net.put(peerDesc("b:1", 7))
		e, err := Open(t.Context(), Config{Drivers: []transport.Driver{f}, Discover: net.discover, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		s, kv := lookUp(t, e, "b:1")
		ends := make(chan error, 4)
		for i := range cap(ends) {
			go func() {
				for {
					r := writes(2, kv)
					if i == 0 {
						r = append(r, byAddr(s, unknownAddr))
					}
					err := e.Do(t.Context(), r...)
					if err != nil && !errors.Is(err, errs.ErrNotFound) {
						ends <- err
						return
					}
				}
			}()
		}
		go func() {
			for e.usable("test") == nil {
				f.complete(errs.OK)
			}
		}()
		holding := func() bool { return e.counts.requests.Load() > 20 }
		testenv.Eventually(t, testTime, holding, "nothing is submitted")
		if err := e.Close(); err != nil {
			t.Error(err)
		}
		for range cap(ends) {
			if err := <-ends; !errors.Is(err, errs.ErrClosed) {
				t.Errorf("err = %v, want closed", err)
			}
		}
	}
}

// TestShutdownDeliversNotifications: what follows the bytes of a batch that was
// in flight goes out, too.
func TestShutdownDeliversNotifications(t *testing.T) {
	n := &network{}
	to := openFake(t, &fake{}, n)
	d := *to.ownDesc()
	d.Name = "to"
	n.put(&d)
	n.put(peerDesc("b:1", 7))
	f := &fake{}
	e := openFake(t, f, n)
	_, kv := lookUp(t, e, "b:1")
	s, err := e.OpenSegment(t.Context(), "to")
	if err != nil {
		t.Fatal(err)
	}
	own, err := e.OpenSegment(t.Context(), e.Name())
	if err != nil {
		t.Fatal(err)
	}
	b := e.NewBatch()
	add(t, b, writes(1, kv)...)
	body := []byte("arrived")
	if err := errors.Join(b.NotifyOnSuccess(s, Notification{Name: "kv", Body: body}), b.NotifyOnSuccess(own, Notification{})); err != nil {
		t.Fatal(err)
	}
	copy(body, "changed") // the caller's again
	b.Seal()
	holding(t, f, 1)
	ended := make(chan error, 1)
	go func() { ended <- e.Shutdown(t.Context()) }()
	testenv.Eventually(t, testTime, func() bool { return e.state.Load() == stateDraining }, "not draining")
	f.complete(errs.OK)
	if err := errors.Join(done(t, b), <-ended); err != nil {
		t.Error(err)
	}
	got, err := to.Receive(t.Context())
	if err != nil || string(got.Body) != "arrived" {
		t.Errorf("notification %+v, %v", got, err)
	}
}

func TestNotificationsAreChecked(t *testing.T) {
	f, net := &fake{}, &network{}
	net.put(peerDesc("b:1", 7))
	e, other := openFake(t, f, net), openFake(t, &fake{}, net)
	s, _ := lookUp(t, other, "b:1")
	b := e.NewBatch()
	for what, err := range map[string]error{
		"attach, another engine's segment": b.NotifyOnSuccess(s, Notification{}),
		"attach, none":                     b.NotifyOnSuccess(nil, Notification{}),
		"send, another engine's segment":   e.Notify(t.Context(), s, Notification{}),
	} {
		if !errors.Is(err, errs.ErrInvalid) {
			t.Errorf("%s: %v, want invalid", what, err)
		}
	}
	b.Seal()
}

func TestReceiveOnPoisonedEngine(t *testing.T) {
	e, h, b := startHeld(t)
	got := make(chan error, 1)
	go func() {
		_, err := e.Receive(t.Context())
		got <- err
	}()
	h.env.Sink.Complete([]transport.Completion{{Tag: 12345}})
	if err := <-got; !errors.Is(err, errs.ErrInternal) {
		t.Errorf("err = %v, want internal", err)
	}
	_ = done(t, b)
}

// TestB49 opens and closes many engines, each of which moves something.
func TestB49(t *testing.T) {
	testenv.Leak(t)
	n := 1000
	if testing.Short() {
		n = 50
	}
	for i := range n {
		f, net := &fake{}, &network{}
		net.put(peerDesc("b:1", 7))
		e, err := Open(t.Context(), Config{Drivers: []transport.Driver{f}, Discover: net.discover, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		_, kv := lookUp(t, e, "b:1")
		if _, err := e.Alloc(4096, Registration{Name: fmt.Sprint(i)}); err != nil {
			t.Fatal(err)
		}
		b := e.NewBatch()
		add(t, b, writes(1, kv)...)
		b.Seal()
		holding(t, f, 1)
		end := e.Close
		if i%2 == 0 {
			f.complete(errs.OK)
			end = func() error { return e.Shutdown(t.Context()) }
		}
		if err := end(); err != nil {
			t.Fatal(err)
		}
		if err := done(t, b); err != nil && i%2 == 0 || err == nil && i%2 == 1 {
			t.Fatalf("engine %d: %v", i, err)
		}
	}
}
