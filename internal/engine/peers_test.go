package engine

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/core"
	"github.com/tideway-io/tideway/internal/registry"
	"github.com/tideway-io/tideway/internal/testenv"
)

// TestSweepIsNotPutOff: whoever closes segments all the time, as each Probe does,
// does not keep the connections of others open.
func TestSweepIsNotPutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &Engine{remotes: registry.NewRemotes(0)}
		for i := range numShards {
			e.shards = append(e.shards, newShard(e, i, core.Config{}))
		}
		e.peers.init(e)
		d := peerDesc("b:1", 7)
		e.peers.get(registry.IdentityOf(d, d.Name), d)
		for range 10 {
			e.peers.sweepLater()
			time.Sleep(peerIdle / 2)
		}
		synctest.Wait()
		if n := len(e.peers.all()); n != 1 {
			t.Errorf("%d peers after a time in which nobody wanted one, want the engine itself", n)
		}
		e.peers.close()
		e.work.Wait()
	})
}

func TestSweepClosesTheOldLife(t *testing.T) {
	f, net := &fake{}, &network{}
	net.put(peerDesc("b:1", 7))
	e := openFake(t, f, net)
	s, old := lookUp(t, e, "b:1")
	b := e.NewBatch()
	add(t, b, writes(1, old)...)
	b.Seal()
	holding(t, f, 1)
	net.put(peerDesc("b:1", 8))
	if err := s.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	now, err := s.Buffer(t.Context(), "kv")
	if err != nil {
		t.Fatal(err)
	}
	next := e.NewBatch()
	add(t, next, writes(1, now)...)
	next.Seal()
	holding(t, f, 2)
	for range 3 {
		e.peers.sweep()
	}
	if n := f.connected(); n != 2 {
		t.Fatalf("%d endpoints are open while both carry something, want 2", n)
	}
	f.complete(errs.OK)
	if err := errors.Join(done(t, b), done(t, next)); err != nil {
		t.Fatal(err)
	}
	e.peers.sweep()
	e.peers.sweep()
	testenv.Eventually(t, testTime, func() bool { return f.connected() == 1 }, "the old life's endpoint stays open")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	e.peers.sweep()
	e.peers.sweep()
	testenv.Eventually(t, testTime, func() bool { return f.connected() == 0 }, "the endpoint of a closed segment stays open")
	if err := e.Do(t.Context(), Request{Op: 1, Remote: Remote{Segment: s, Found: now}}); err != nil {
		t.Errorf("a handle of the closed segment, used again: %v", err)
	}
}

// TestLyingDescriptor: a peer that pretends to be another one does not change
// what is known of that one.
func TestLyingDescriptor(t *testing.T) {
	f, net := &fake{}, &network{}
	net.put(peerDesc("b:1", 7))
	lie := peerDesc("b:1", 7)
	lie.Name, lie.Version, lie.Transports = "evil:1", 1000, nil
	net.put(lie)
	e := openFake(t, f, net)
	_, kv := lookUp(t, e, "b:1")
	lookUp(t, e, "evil:1")
	b := e.NewBatch()
	add(t, b, writes(1, kv)...)
	b.Seal()
	holding(t, f, 1)
	f.complete(errs.OK)
	if err := done(t, b); err != nil {
		t.Error(err)
	}
}
