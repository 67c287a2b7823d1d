package shm

import (
	"bytes"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/mem"
	"github.com/tideway-io/tideway/internal/testenv"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
)

// posted has e post a WRITE that the fake target is to pull, and returns its tag
// and what the target was asked.
func (f *fakeTarget) posted(e *testEngine, ep *endpoint) (transport.Tag, request) {
	f.Helper()
	b := f.publish(entry{key: 9, access: segment.ReadWrite, addr: 1, length: 1 << 20})
	tag := e.post(ep, transport.Slice{Op: transport.Write, Local: make([]byte, 1<<20), Buffer: b})[0]
	m, _ := receive(f, f.p)
	if m.kind != kindPull || m.count != 1 {
		f.Fatalf("%+v, want one pull", m)
	}
	return tag, m.request(0)
}

// ended is the target's answer.
func (f *fakeTarget) ended(r request, code errs.Code) {
	f.Helper()
	b := appendResult(appendHead(nil, head{kind: kindPulled, count: 1}), result{r.slot, r.seq, code})
	send(f, f.p, b, -1)
}

// endCase is what the target may be doing when a slice is to end early, and what
// then becomes of it.
type endCase struct {
	name          string
	claimed, done bool
	act           func(e *testEngine, ep *endpoint, f *fakeTarget, tag transport.Tag, r request)
	code          errs.Code
	doubt         bool
}

func endCases() []endCase {
	const claimed, done = true, true
	return []endCase{
		{"cancelled before it is claimed", false, false, func(_ *testEngine, ep *endpoint, _ *fakeTarget, tag transport.Tag, _ request) {
			ep.Cancel([]transport.Tag{tag})
		}, errs.Canceled, false},
		{"cancelled, and the target stops", claimed, false, func(e *testEngine, ep *endpoint, f *fakeTarget, tag transport.Tag, r request) {
			ep.Cancel([]transport.Tag{tag, 99})
			if e.open(tag) == 0 || f.desk.state(r.slot, r.seq) != slotAborted {
				e.Error("a claimed slice ended while the target may be reading")
			}
			f.ended(r, errs.Canceled)
		}, errs.Canceled, false},
		{"cancelled when the target has done it", claimed, done, func(_ *testEngine, ep *endpoint, f *fakeTarget, tag transport.Tag, r request) {
			ep.Cancel([]transport.Tag{tag})
			f.ended(r, errs.OK)
		}, errs.OK, false},
		{"cancelled, and the target says nothing", claimed, false, func(e *testEngine, ep *endpoint, _ *fakeTarget, tag transport.Tag, _ request) {
			ep.Cancel([]transport.Tag{tag})
			e.skew.Add(int64(grace))
		}, errs.Canceled, true},
		{"cancelled, and the target did it and says nothing", claimed, done, func(e *testEngine, ep *endpoint, _ *fakeTarget, tag transport.Tag, _ request) {
			ep.Cancel([]transport.Tag{tag})
			e.skew.Add(int64(grace))
		}, errs.Canceled, false},
		{"the target dies", claimed, false, func(_ *testEngine, _ *endpoint, f *fakeTarget, _ transport.Tag, _ request) {
			f.hangUp()
		}, errs.LaneLost, false},
		{"the target falls silent", claimed, false, func(e *testEngine, _ *endpoint, _ *fakeTarget, _ transport.Tag, _ request) {
			e.skew.Add(int64(time.Hour))
		}, errs.Unresponsive, true},
		{"the target falls silent before it claims", false, false, func(e *testEngine, _ *endpoint, _ *fakeTarget, _ transport.Tag, _ request) {
			e.skew.Add(int64(time.Hour))
		}, errs.Unresponsive, false},
		{"the endpoint closes", claimed, false, func(e *testEngine, ep *endpoint, _ *fakeTarget, _ transport.Tag, _ request) {
			e.skew.Store(0)
			go func() { e.skew.Add(int64(grace)) }()
			_ = ep.Close()
		}, errs.Closed, true},
		{"the endpoint closes before it is claimed", false, false, func(_ *testEngine, ep *endpoint, _ *fakeTarget, _ transport.Tag, _ request) {
			_ = ep.Close()
		}, errs.Closed, false},
		{"the target says cancelled of itself", claimed, done, func(_ *testEngine, _ *endpoint, f *fakeTarget, _ transport.Tag, r request) {
			f.ended(r, errs.Canceled)
		}, errs.LaneLost, false},
	}
}

// TestEndings goes through all of endCases.
func TestEndings(t *testing.T) {
	for _, c := range endCases() {
		t.Run(c.name, func(t *testing.T) {
			testenv.Leak(t)
			e, f := start(t, options{}), newFakeTarget(t)
			ep := f.connect(e)
			tag, r := f.posted(e, ep)
			if c.claimed && !f.desk.change(r.slot, r.seq, slotPosted, slotClaimed) || c.done && !f.desk.change(r.slot, r.seq, slotClaimed, slotDone) {
				t.Fatalf("the slot is in state %d", f.desk.state(r.slot, r.seq))
			}
			c.act(e, ep, f, tag, r)
			got := e.await(tag)[0]
			if got.Code != c.code || got.InDoubt != c.doubt {
				t.Errorf("ended with %v, in doubt: %v; want %v, %v", got.Code, got.InDoubt, c.code, c.doubt)
			}
			if f.p != nil && !f.gone() { // a late answer changes nothing
				f.ended(r, errs.OK)
			}
		})
	}
}

// gone reports whether the initiator has hung up.
func (f *fakeTarget) gone() bool {
	return f.p.TrySend(appendHead(nil, head{kind: kindPulled}), -1) != nil
}

// TestProgressIsLife: a target that makes steps is not silent, however long one
// slice takes.
func TestProgressIsLife(t *testing.T) {
	e, f := start(t, options{stall: 400 * time.Millisecond}), newFakeTarget(t)
	ep := f.connect(e)
	tag, r := f.posted(e, ep)
	f.desk.change(r.slot, r.seq, slotPosted, slotClaimed)
	for range 20 {
		f.desk.progress().Add(1)
		seen := ep.heard.Load()
		testenv.Eventually(t, 5*time.Second, func() bool { return ep.heard.Load() != seen }, "progress is seen")
	}
	if e.open(tag) != 1 {
		t.Error("the slice ended")
	}
	f.ended(r, errs.OK)
	e.ok(e.await(tag)[0])
}

// hook is a Memory that calls a function in front of each Pin for writing.
type hook struct {
	transport.Memory
	before atomic.Value // of func(key segment.Key, offset uint64)
}

func (h *hook) Pin(op transport.Op, key segment.Key, off, n uint64) (transport.Pin, errs.Code) {
	if f, ok := h.before.Load().(func(segment.Key, uint64)); ok && op == transport.Write {
		f(key, off)
	}
	return h.Memory.Pin(op, key, off, n)
}

// TestTargetStopsAndClears: what the initiator takes back the target does not
// read, and what it reads of a slice that was given up meanwhile it clears.
func TestTargetStopsAndClears(t *testing.T) {
	h := &hook{}
	e := start(t, options{wrap: func(m transport.Memory) transport.Memory { h.Memory = m; return h }})
	const cell = 64 << 10
	b := e.must(e.heap("b", 5*cell, segment.ReadWrite))
	testenv.Poison(b.Bytes())
	f := newFakeInitiator(t, e.engine)
	source := bytes.Repeat([]byte{7}, cell)
	rs := make([]request, 5)
	for i := range rs {
		rs[i] = request{key: b.Desc().Key, offset: uint64(i * cell), size: cell, addr: uint64(mem.Addr(source))}
	}
	h.before.Store(func(_ segment.Key, off uint64) {
		switch off {
		case 2 * cell: // slots 0 and 1 are claimed, nothing is read
			f.desk.change(0, 1, slotClaimed, slotAborted)
			f.desk.slot(1).Store(0) // given up
		case 3 * cell: // slot 3 is not claimed yet
			f.desk.change(3, 4, slotPosted, slotFree)
		case 4 * cell: // slot 4 is used for something else
			f.desk.slot(4).Store(99<<32 | slotPosted)
		}
	})
	f.pull(1, rs...)
	got := f.codes(3)
	if got[0] != errs.Canceled || got[1] != errs.Canceled || got[2] != errs.OK {
		t.Errorf("the slots ended with %v", got)
	}
	for i, want := range []byte{7, 0, 7, testenv.PoisonByte, testenv.PoisonByte} {
		if p := b.Bytes()[i*cell : (i+1)*cell]; !bytes.Equal(p, bytes.Repeat([]byte{want}, cell)) {
			t.Errorf("cell %d begins with %x, want all %x", i, p[:4], want)
		}
	}
	h.before.Store(func(segment.Key, uint64) {})
	f.pull(0, rs[4])
	if got := f.codes(1); got[0] != errs.OK {
		t.Errorf("afterwards: %v", got)
	}
}

// TestAbortedBetweenSteps aborts a long slice between two of its steps, and
// takes another one back there.
func TestAbortedBetweenSteps(t *testing.T) {
	h := &hook{}
	e := start(t, options{wrap: func(m transport.Memory) transport.Memory { h.Memory = m; return h }})
	b := e.must(e.heap("b", 8<<20, segment.ReadWrite))
	f := newFakeInitiator(t, e.engine)
	source := bytes.Repeat([]byte{7}, 4<<20)
	one := request{key: b.Desc().Key, size: 4 << 20, addr: uint64(mem.Addr(source))}
	two := one
	two.offset = 4 << 20
	pins := 0
	h.before.Store(func(_ segment.Key, off uint64) {
		if pins++; pins == 3 { // in front of the third step
			f.desk.slot(0).Store(1<<32 | slotAborted)
		}
	})
	f.pull(1, one, two)
	if got := f.codes(2); got[0] != errs.Canceled || got[1] != errs.OK {
		t.Errorf("ended with %v", got)
	}
	if n := bytes.Count(b.Bytes()[:4<<20], []byte{7}); n != 2<<20 {
		t.Errorf("%d bytes of the aborted slice arrived, want two steps", n)
	}
	again := 0
	h.before.Store(func(segment.Key, uint64) {
		if again++; again == 2 {
			f.desk.slot(0).Store(0)
		}
	})
	f.pull(1, one, two)
	if got := f.codes(1); got[1] != errs.OK {
		t.Errorf("ended with %v", got)
	}
}

// TestPartialReads: memory that the initiator does not have costs only the slices
// that name it.
func TestPartialReads(t *testing.T) {
	e := start(t, options{})
	const cell = 8192
	b := e.must(e.heap("b", 4*cell, segment.ReadWrite))
	f := newFakeInitiator(t, e.engine)
	source, free, err := mem.Alloc(2*cell, mem.Options{})
	if err != nil {
		t.Fatal(err)
	}
	hole, unmap, err := mem.Alloc(2*cell, mem.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer free()
	defer unmap() // not before: something else might come to lie there
	testenv.Fill(source, testenv.KeyOf(1, 0), 0)
	nowhere := uint64(mem.Addr(hole))
	if err := unix.Mprotect(hole, unix.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	r := func(i int, addr uint64) request {
		return request{key: b.Desc().Key, offset: uint64(i * cell), size: cell, addr: addr}
	}
	f.pull(1, r(0, uint64(mem.Addr(source))), r(1, nowhere), r(2, 1<<63), r(3, uint64(mem.Addr(source[:cell]))))
	got := f.codes(4)
	if got[0] != errs.OK || got[1] != errs.Unsupported || got[2] != errs.Unsupported || got[3] != errs.OK {
		t.Errorf("ended with %v", got)
	}
	if err := verify(b.Bytes()[3*cell:], 1); err != nil {
		t.Error(err)
	}
}

// TestRevokedWhilePulled closes the buffer between two steps: Close does not wait
// for the rest.
func TestRevokedWhilePulled(t *testing.T) {
	h := &hook{}
	e := start(t, options{wrap: func(m transport.Memory) transport.Memory { h.Memory = m; return h }})
	other := start(t, options{})
	b := e.must(e.heap("b", 8<<20, segment.ReadWrite))
	ep := other.connect(e.card())
	at, goOn, pins := make(chan struct{}), make(chan struct{}), 0
	h.before.Store(func(segment.Key, uint64) {
		if pins++; pins == 3 {
			at <- struct{}{}
			<-goOn
		}
	})
	tags := other.post(ep, transport.Slice{Op: transport.Write, Local: make([]byte, 8<<20), Buffer: b.Desc()})
	<-at
	if err := b.Close(t.Context()); err != nil {
		t.Error(err)
	}
	close(goOn)
	if c := other.await(tags...)[0]; c.Code != errs.Revoked || c.InDoubt {
		t.Errorf("ended with %v, in doubt: %v", c.Code, c.InDoubt)
	}
}

// TestUrgentFirst: an urgent slice does not wait for a long one that came first.
func TestUrgentFirst(t *testing.T) {
	h := &hook{}
	e := start(t, options{wrap: func(m transport.Memory) transport.Memory { h.Memory = m; return h }})
	other := start(t, options{})
	b := e.must(e.heap("b", 64<<20, segment.ReadWrite))
	ep := other.connect(e.card())
	at, goOn, held := make(chan struct{}), make(chan struct{}), atomic.Bool{}
	h.before.Store(func(_ segment.Key, off uint64) {
		if held.CompareAndSwap(false, true) {
			at <- struct{}{}
			<-goOn
		}
	})
	long := other.post(ep, transport.Slice{Op: transport.Write, Class: 2, Local: make([]byte, 64<<20), Buffer: b.Desc()})
	<-at
	short := other.post(ep, transport.Slice{Op: transport.Write, Local: make([]byte, 10), Buffer: b.Desc()})
	testenv.Eventually(t, 5*time.Second, func() bool { return len(e.tr.pulls.urgent) > 0 || other.open(short...) == 0 }, "the urgent one is queued")
	close(goOn)
	other.ok(other.await(short...)[0])
	if other.open(long...) == 0 {
		t.Error("the long slice ended before the urgent one")
	}
	other.ok(other.await(long...)[0])
}

// TestMovesAreBounded: what the workers cannot take is refused as overloaded.
func TestMovesAreBounded(t *testing.T) {
	e := start(t, options{})
	f := newFakeTarget(t)
	ep := f.connect(e)
	free := make(chan struct{})
	for e.tr.moves.put(stuck{free}, 1, 1) {
	}
	memory := make([]byte, 1<<20)
	b := f.publish(entry{key: 9, access: segment.ReadWrite, addr: uint64(mem.Addr(memory)), length: 1 << 20})
	s := []transport.Slice{{Op: transport.Read, Local: make([]byte, 1<<20), Buffer: b, Tag: 1}}
	if n, err := ep.Post(s); n != 0 || !errors.Is(err, errs.ErrOverloaded) {
		t.Errorf("with %d tasks queued, Post took %d: %v", maxMoves, n, err)
	}
	close(free)
	testenv.Eventually(t, 5*time.Second, func() bool { n, _ := ep.Post(s); return n == 1 }, "there is room again")
	e.ok(e.await(1)[0])
	if ep.inFlight.Load() != 0 {
		t.Errorf("%d bytes in flight", ep.inFlight.Load())
	}
}

// stuck is a task that waits.
type stuck struct{ free chan struct{} }

func (s stuck) step() bool { <-s.free; return false }

// TestStuckWorkers: memory that keeps a worker waiting costs others a moment, and
// the workers are bounded.
func TestStuckWorkers(t *testing.T) {
	testenv.Leak(t)
	e, other := start(t, options{maxIn: 64}), start(t, options{})
	free := make(chan struct{})
	for range 3 {
		e.tr.pulls.put(stuck{free}, 1, usual())
		other.tr.moves.put(stuck{free}, 0, usual())
	}
	b := e.must(e.heap("b", 4096, segment.ReadWrite))
	ep := other.connect(e.card())
	for _, op := range []transport.Op{transport.Write, transport.Read} {
		other.ok(other.do(ep, op, make([]byte, 4096), b.Desc(), 0))
	}
	for range maxStuck {
		e.tr.pulls.put(stuck{free}, 1, usual())
	}
	testenv.Eventually(t, 30*time.Second, func() bool {
		e.tr.pulls.mu.Lock()
		defer e.tr.pulls.mu.Unlock()
		return e.tr.pulls.mu.workers == maxStuck && len(e.tr.pulls.rest) == 3
	}, "workers are added, and no more than that")
	close(free)
}
