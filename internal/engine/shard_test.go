package engine

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/testenv"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
)

// TestManyPathsGoWhileTheRunnerIsHeld removes more paths than the shard keeps
// for their names while what it was told about them waits to be carried out.
func TestManyPathsGoWhileTheRunnerIsHeld(t *testing.T) {
	var hold atomic.Bool
	entered, gate := make(chan struct{}, numShards), make(chan struct{})
	f := &fake{post: func([]transport.Slice) (int, error, bool) {
		if hold.Load() {
			entered <- struct{}{}
			<-gate
		}
		return 0, nil, false
	}}
	net := &network{}
	e := openFake(t, f, net)
	const peers = numShards * (maxRemoved + 10)
	bs := make([]*Batch, peers)
	var kv *Found
	for i := range bs {
		name := fmt.Sprintf("p%d:1", i)
		net.put(peerDesc(name, segment.Incarnation(i+1)))
		_, kv = lookUp(t, e, name)
		bs[i] = e.NewBatch()
		add(t, bs[i], writes(1, kv)...)
		bs[i].Seal()
	}
	holding(t, f, peers)
	hold.Store(true)
	last := e.NewBatch()
	var wg sync.WaitGroup
	wg.Go(func() { add(t, last, writes(1, kv)...); last.Seal() })
	<-entered
	e.peers.close()
	close(gate)
	wg.Wait()
	for _, b := range append(bs, last) {
		if err := done(t, b); !errors.Is(err, errs.ErrClosed) {
			t.Fatalf("err = %v, want closed", err)
		}
	}
}

func TestForeignTagPoisons(t *testing.T) {
	e, h, b := startHeld(t)
	h.env.Sink.Complete([]transport.Completion{{Tag: ^transport.Tag(0)}}) // of a shard that there is not
	_ = done(t, b)
	if err := e.usable("test"); !errors.Is(err, errs.ErrInternal) {
		t.Errorf("err = %v, want internal", err)
	}
	testenv.Eventually(t, testTime, func() bool { return h.connected() == 0 }, "endpoints stay open")
}

// TestRunnerHandsOver: a submitter carries out only so much of what follows from
// its call.
func TestRunnerHandsOver(t *testing.T) {
	added := make(chan struct{})
	var posts atomic.Int32
	f, net := &fake{window: 64 << 10}, &network{}
	f.post = func(s []transport.Slice) (int, error, bool) {
		if posts.Add(1) == rounds+2 { // one of them connects
			<-added
		}
		var over []transport.Completion
		for i := range s {
			over = append(over, transport.Completion{Tag: s[i].Tag})
		}
		f.env.Sink.Complete(over) // from inside Post: the runner has more to do
		return len(s), nil, true
	}
	net.put(peerDesc("b:1", 7))
	e := openFake(t, f, net)
	_, kv := lookUp(t, e, "b:1")
	if err := e.Warm(t.Context(), "b:1"); err != nil {
		t.Fatal(err)
	}
	const n = 1 << 20
	var reqs []Request
	for range 8 {
		reqs = append(reqs, Request{Op: transport.Write, Local: Range{Bytes: make([]byte, n), Length: n}, Remote: Remote{Segment: kv.Segment, Found: kv}})
	}
	b := e.NewBatch()
	go func() {
		defer close(added)
		add(t, b, reqs...)
	}()
	select {
	case <-added:
	case <-time.After(testTime):
		t.Fatalf("the submitter is held after %d rounds", posts.Load())
	}
	b.Seal()
	if err := done(t, b); err != nil {
		t.Error(err)
	}
	if posts.Load() < rounds+2 {
		t.Errorf("%d posts show nothing", posts.Load())
	}
}
