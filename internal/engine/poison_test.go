package engine

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/testenv"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
)

// testTime is long enough for anything that does happen.
const testTime = 10 * time.Second

// held is a driver whose endpoints take every slice and complete it when the
// test says so, or when they are closed. It joins an engine with itself.
type held struct {
	env transport.Env
	mu  struct {
		sync.Mutex
		tags []transport.Tag
	}
}

func (h *held) Name() string                { return "held" }
func (h *held) Probe(context.Context) error { return nil }
func (h *held) Open(_ context.Context, env transport.Env) (transport.Transport, error) {
	h.env = env
	return h, nil
}
func (h *held) Caps() transport.Caps                                               { return transport.Caps{OwnOnly: true} }
func (h *held) Register(context.Context, *segment.Buffer) ([]byte, error)          { return nil, nil }
func (h *held) Unregister(*segment.Buffer) error                                   { return nil }
func (h *held) Connect(context.Context, *segment.Desc) (transport.Endpoint, error) { return h, nil }
func (h *held) Rails() []transport.Rail                                            { return []transport.Rail{{}} }

func (h *held) Post(s []transport.Slice) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range s {
		h.mu.tags = append(h.mu.tags, s[i].Tag)
	}
	return len(s), nil
}

// Close is the end of the endpoint, and then of the transport.
func (h *held) Close() error {
	h.complete(errs.Closed)
	return nil
}

// complete ends what was posted with code.
func (h *held) complete(code errs.Code) {
	h.mu.Lock()
	tags := h.mu.tags
	h.mu.tags = nil
	h.mu.Unlock()
	for _, tag := range tags {
		h.env.Sink.Complete([]transport.Completion{{Tag: tag, Code: code}})
	}
}

// startHeld opens an engine over a held transport and submits one write.
func startHeld(t *testing.T) (*Engine, *held, *Batch) {
	t.Helper()
	testenv.Leak(t)
	h := &held{}
	e, err := Open(t.Context(), Config{Drivers: []transport.Driver{h}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	if _, err := e.Alloc(4096, Registration{Name: "kv", Access: segment.ReadWrite}); err != nil {
		t.Fatal(err)
	}
	s, err := e.OpenSegment(t.Context(), e.Name())
	if err != nil {
		t.Fatal(err)
	}
	kv, err := s.Buffer(t.Context(), "kv")
	if err != nil {
		t.Fatal(err)
	}
	b := e.NewBatch()
	if err := b.Add(t.Context(), []Request{{Op: transport.Write, Local: Range{Bytes: make([]byte, 10), Length: 10}, Remote: Remote{Segment: s, Found: kv}}}); err != nil {
		t.Fatal(err)
	}
	b.Seal()
	testenv.Eventually(t, testTime, func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return len(h.mu.tags) == 1
	}, "the slice was not posted")
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
	tag := h.mu.tags[0]
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
	s, _ := e.OpenSegment(t.Context(), e.Name())
	kv, _ := s.Buffer(t.Context(), "kv")
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
