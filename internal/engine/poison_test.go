package engine

import (
	"context"
	"errors"
	"testing"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/testenv"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
)

// startHeld opens an engine over a fake transport and submits one write.
func startHeld(t *testing.T) (*Engine, *fake, *Batch) {
	t.Helper()
	h := &fake{caps: transport.Caps{OwnOnly: true}}
	e := openFake(t, h, &network{})
	if _, err := e.Alloc(4096, Registration{Name: "kv", Access: segment.ReadWrite}); err != nil {
		t.Fatal(err)
	}
	_, kv := lookUp(t, e, string(e.Name()))
	b := e.NewBatch()
	add(t, b, writes(1, kv)...)
	b.Seal()
	holding(t, h, 1)
	return e, h, b
}

func TestBrokenInvariantPoisons(t *testing.T) {
	e, h, b := startHeld(t)
	h.env.Sink.Complete([]transport.Completion{{Tag: 12345}})
	<-b.Done() // what was in flight ends
	if b.Err() == nil {
		t.Error("the transfer of a poisoned engine ended well")
	}
	if _, err := e.OpenSegment(t.Context(), e.Name()); !errors.Is(err, errs.ErrInternal) {
		t.Errorf("open on a poisoned engine: %v", err)
	}
	if err := e.NewBatch().Add(t.Context(), []Request{{}}); !errors.Is(err, errs.ErrInternal) {
		t.Errorf("submit on a poisoned engine: %v", err)
	}
	if s := e.Inspect(); s.State != "poisoned" || len(s.Conditions) == 0 {
		t.Errorf("inspection does not tell: %+v", s)
	}
}

func TestDoubleCompletionPoisons(t *testing.T) {
	e, h, b := startHeld(t)
	h.mu.Lock()
	tag := h.mu.held[0].slice.Tag
	h.mu.Unlock()
	h.complete(errs.OK)
	if err := b.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	h.env.Sink.Complete([]transport.Completion{{Tag: tag}})
	if err := e.usable("test"); !errors.Is(err, errs.ErrInternal) {
		t.Errorf("a second completion of one slice: %v", err)
	}
}

func TestShutdownWaitsForWhatIsInFlight(t *testing.T) {
	e, h, b := startHeld(t)
	ended := make(chan error)
	go func() { ended <- e.Shutdown(t.Context()) }()
	testenv.Eventually(t, testTime, func() bool { return e.state.Load() == stateDraining }, "not draining")
	if err := e.NewBatch().Add(t.Context(), []Request{{}}); !errors.Is(err, errs.ErrClosed) || errs.Of(err) != errs.Draining {
		t.Errorf("submit while draining: %v", err)
	}
	select {
	case err := <-ended:
		t.Fatalf("Shutdown returned with a transfer in flight: %v", err)
	default:
	}
	h.complete(errs.OK)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if err := b.Err(); err != nil {
		t.Errorf("the transfer that was in flight: %v", err)
	}
}

func TestShutdownCutsShortAfterTheGrace(t *testing.T) {
	e, _, b := startHeld(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	deadline, stop := context.WithTimeout(ctx, testTime)
	defer stop()
	if err := e.Shutdown(deadline); errs.Of(err) != errs.Draining {
		t.Errorf("err = %v, want what was cut short", err)
	}
	if err := b.Err(); !errors.Is(err, errs.ErrClosed) {
		t.Errorf("the transfer: %v, want closed", err)
	}
}

func TestBusyBuffer(t *testing.T) {
	e, h, b := startHeld(t)
	local, err := e.Alloc(4096, Registration{})
	if err != nil {
		t.Fatal(err)
	}
	s, kv := lookUp(t, e, string(e.Name()))
	use := e.NewBatch()
	if err := use.Add(t.Context(), []Request{{Op: transport.Read, Local: Range{Buffer: local, Length: 10}, Remote: Remote{Segment: s, Found: kv}}}); err != nil {
		t.Fatal(err)
	}
	if err := local.Close(); !errors.Is(err, errs.ErrBusy) {
		t.Errorf("close of a buffer in use: %v", err)
	}
	h.complete(errs.OK)
	if err := errors.Join(use.Wait(t.Context()), b.Wait(t.Context())); err != nil {
		t.Fatal(err)
	}
	if err := local.Close(); err != nil {
		t.Error(err)
	}
	if err := use.Add(t.Context(), []Request{{Op: transport.Read, Local: Range{Buffer: local, Length: 10}, Remote: Remote{Segment: s, Found: kv}}}); err == nil {
		t.Error("a closed local buffer was taken")
	}
}
