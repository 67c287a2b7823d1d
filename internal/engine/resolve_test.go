package engine

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/testenv"
	"github.com/tideway-io/tideway/segment"
)

// unknownAddr is in no buffer of peerDesc, so that the descriptor is fetched.
const unknownAddr = 0x900000

// stopped makes every fetch after the ones of now wait until the test lets it
// go, or its context ends.
func (n *network) stop() (letGo func()) {
	gate := make(chan struct{})
	n.mu.Lock()
	defer n.mu.Unlock()
	n.wait = func(ctx context.Context, _ string) error {
		select {
		case <-gate:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return sync.OnceFunc(func() { close(gate) })
}

func (n *network) fetches() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.asked
}

// startResolving submits requests whose descriptor is being fetched.
func startResolving(t *testing.T, change func(*Request), n int) (*Engine, *fake, *network, *Batch, func()) {
	t.Helper()
	f, net := &fake{}, &network{}
	net.put(peerDesc("b:1", 7))
	e := openFake(t, f, net)
	s, _ := lookUp(t, e, "b:1")
	letGo := net.stop()
	t.Cleanup(letGo)
	before := net.fetches()
	reqs := make([]Request, n)
	for i := range reqs {
		reqs[i] = byAddr(s, unknownAddr)
		change(&reqs[i])
	}
	b := e.NewBatch()
	add(t, b, reqs...)
	b.Seal()
	testenv.Eventually(t, testTime, func() bool { return net.fetches() == before+1 }, "nothing is fetched")
	return e, f, net, b, letGo
}

func TestResolveFindsLateBuffer(t *testing.T) {
	const n = 1000
	before := runtime.NumGoroutine()
	_, f, net, b, letGo := startResolving(t, func(*Request) {}, n)
	if now := runtime.NumGoroutine(); now-before > 20 {
		t.Errorf("%d goroutines wait for one descriptor", now-before)
	}
	d := peerDesc("b:1", 7)
	d.Version++
	d.Buffers = append(d.Buffers, segment.Buffer{Name: "late", Addr: unknownAddr, Length: 100, Location: "cpu:0", Access: segment.ReadWrite, Key: 2})
	net.put(d)
	letGo()
	holding(t, f, n)
	f.complete(errs.OK)
	if err := done(t, b); err != nil {
		t.Error(err)
	}
}

// TestCancelBeforeScheduled: a Cancel that finds a transfer on its way to the
// scheduler is not lost.
func TestCancelBeforeScheduled(t *testing.T) {
	f, net := &fake{}, &network{}
	net.put(peerDesc("b:1", 7))
	e := openFake(t, f, net)
	s, kv := lookUp(t, e, "b:1")
	t.Cleanup(net.stop())
	for name, r := range map[string]Request{"routed": writes(1, kv)[0], "to be resolved": byAddr(s, unknownAddr)} {
		if err := e.admission.take(t.Context(), one(1, 10)); err != nil {
			t.Fatal(err)
		}
		b := e.NewBatch()
		ts, err := b.take([]Request{r})
		if err != nil {
			t.Fatal(err)
		}
		b.Seal()
		b.Cancel()
		e.start(ts)
		if err := done(t, b); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v, want canceled", name, err)
		}
	}
}

func TestCancelWhileResolving(t *testing.T) {
	_, _, _, b, letGo := startResolving(t, func(*Request) {}, 3)
	for range 20 { // the batch is used again while fetches of its last lives come to their ends
		b.Cancel()
		if err := done(t, b); !errors.Is(err, context.Canceled) {
			t.Fatalf("err = %v, want canceled", err)
		}
		s := b.mu.transfers[0].remote.Segment
		if err := b.Reset(); err != nil {
			t.Fatal(err)
		}
		add(t, b, byAddr(s, unknownAddr), byAddr(s, unknownAddr))
		b.Seal()
	}
	letGo()
	if err := done(t, b); !errors.Is(err, errs.ErrNotFound) {
		t.Errorf("err = %v, want not found", err)
	}
}

func TestDeadlineWhileResolving(t *testing.T) {
	n := 0
	_, _, _, b, letGo := startResolving(t, func(r *Request) {
		if n++; n < 3 {
			r.Deadline = time.Now().Add(time.Duration(n) * 20 * time.Millisecond)
		}
	}, 3)
	var order []int
	for i, r := range b.Finished(t.Context()) {
		order = append(order, i)
		switch {
		case i < 2 && !errors.Is(r.Err, context.DeadlineExceeded):
			t.Errorf("request %d: %v, want its deadline", i, r.Err)
		case i == 1:
			letGo()
		case i == 2 && !errors.Is(r.Err, errs.ErrNotFound):
			t.Errorf("request 2: %v, want not found", r.Err)
		}
	}
	if len(order) != 3 {
		t.Errorf("ended %v, want all", order)
	}
}

func TestCloseWhileResolving(t *testing.T) {
	e, _, _, b, _ := startResolving(t, func(*Request) {}, 3)
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	if err := done(t, b); !errors.Is(err, errs.ErrClosed) {
		t.Errorf("err = %v, want closed", err)
	}
}

// TestRestartUnderAbsoluteAddresses lets the peer restart again and again, while
// requests name its memory by address: each must go to the life whose buffer it
// was checked against.
func TestRestartUnderAbsoluteAddresses(t *testing.T) {
	f, net := &fake{}, &network{}
	var mu sync.Mutex
	lives := map[segment.Key]segment.Incarnation{}
	desc := func(i int) *segment.Desc {
		d := peerDesc("b:1", segment.Incarnation(100+i))
		d.Buffers[0].Key = segment.Key(i + 1)
		mu.Lock()
		defer mu.Unlock()
		lives[d.Buffers[0].Key] = d.Incarnation
		return d
	}
	net.put(desc(0))
	e := openFake(t, f, net)
	s, _ := lookUp(t, e, "b:1")
	var wg sync.WaitGroup
	stop := make(chan struct{})
	wg.Go(func() {
		for i := 1; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			net.put(desc(i))
			if err := s.Refresh(t.Context()); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for range 300 {
		b := e.NewBatch()
		add(t, b, byAddr(s, 0x10000), byAddr(s, 0x10000), byAddr(s, 0x10000), byAddr(s, 0x10000))
		b.Seal()
		for !b.Satisfied() {
			f.mu.Lock()
			for _, h := range f.mu.held {
				mu.Lock()
				if want := lives[h.slice.Buffer.Key]; want != h.end.to.Incarnation {
					t.Errorf("a slice for life %v was posted to %v", want, h.end.to.Incarnation)
				}
				mu.Unlock()
			}
			f.mu.Unlock()
			f.complete(errs.OK)
			runtime.Gosched()
		}
		if t.Failed() {
			break
		}
	}
	close(stop)
	wg.Wait()
}
