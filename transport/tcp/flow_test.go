package tcp

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestOverloaded: a slow consumer bounds what is accepted; the refusal says
// later, and after a completion there is room again.
func TestOverloaded(t *testing.T) {
	bubble(t, 64<<10, func(t *testing.T, nw *memNet, a, b *host) {
		ep := a.connect(t, b)
		buf := b.memory.add(make([]byte, 1<<20), segment.ReadWrite)
		nw.freeze(b.desc.Addr, true)
		mib := make([]byte, 1<<20)
		var s []transport.Slice
		for k := range 100 {
			s = append(s, write(buf, mib, transport.Tag(k)))
		}
		n, err := ep.Post(s)
		if n != windowBytes>>20 || errs.Of(err) != errs.Overloaded {
			t.Fatalf("accepted %d MiB, %v; want the window of %d and overloaded", n, err, windowBytes>>20)
		}
		if m, err := ep.Post(s[n:]); m != 0 || errs.Of(err) != errs.Overloaded {
			t.Fatalf("accepted %d more, %v", m, err)
		}
		nw.freeze(b.desc.Addr, false)
		a.sink.wait(t, 0)
		a.post(t, ep, s[n:])
		wantAll(t, a, s)

		nw.freeze(b.desc.Addr, true)
		s = s[:0]
		for k := range windowSlots + 10 {
			s = append(s, read(buf, mib[:1], transport.Tag(1000+k)))
		}
		if n, err := ep.Post(s); n != windowSlots || errs.Of(err) != errs.Overloaded {
			t.Fatalf("accepted %d reads, %v; want %d and overloaded", n, err, windowSlots)
		}
		nw.freeze(b.desc.Addr, false)
		wantAll(t, a, s[:windowSlots])
	})
}

// TestLaterHasSomethingToWaitFor: cancelled slices may fill the lane of a stopped
// peer; nothing would ever complete again there, so a new slice is accepted.
func TestLaterHasSomethingToWaitFor(t *testing.T) {
	bubble(t, 64<<10, func(t *testing.T, nw *memNet, a, b *host) {
		ep := a.connect(t, b)
		buf := b.memory.add(make([]byte, 1<<20), segment.ReadWrite)
		nw.freeze(b.desc.Addr, true)
		var s []transport.Slice
		var tags []transport.Tag
		for k := range windowSlots {
			s, tags = append(s, read(buf, make([]byte, 1), transport.Tag(k))), append(tags, transport.Tag(k))
		}
		a.post(t, ep, s)
		ep.Cancel(tags)
		if n := a.sink.count(); n != windowSlots {
			t.Fatalf("%d of %d completed", n, windowSlots)
		}
		for k := range 100 {
			tag := transport.Tag(10_000 + k)
			if n, err := ep.Post([]transport.Slice{read(buf, make([]byte, 1), tag)}); n != 1 {
				t.Fatalf("slice %d on a lane full of cancelled ones: %v", k, err)
			}
			ep.Cancel([]transport.Tag{tag})
		}
		o := (*ep.table.Load())[0]
		if o.init.mu.slots > windowSlots+1 {
			t.Errorf("%d slices are kept", o.init.mu.slots)
		}
	})
}

// TestRevokedWhileSending: the owner of memory takes it back in the middle of a
// large read: it does not wait for the initiator, which gets revoked, and never
// the bytes that replaced it.
func TestRevokedWhileSending(t *testing.T) {
	for _, sums := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			nw := newMemNet(64 << 10)
			limits := defaultLimits()
			limits.Checksum = sums
			a, b := newHost(t, nw, limits), newHost(t, nw, limits)
			ep := a.connect(t, b)
			remote := bytes.Repeat([]byte{7}, 1<<20)
			buf := b.memory.add(remote, segment.ReadWrite)
			other := b.memory.add(bytes.Repeat([]byte{8}, 100), segment.ReadWrite)
			nw.freeze(b.desc.Addr, true)
			a.post(t, ep, []transport.Slice{read(buf, make([]byte, 1<<20), 1), read(other, make([]byte, 100), 2)})
			nw.pair(ep, a)
			nw.freeze(a.desc.Addr, true) // the initiator receives nothing
			nw.freeze(b.desc.Addr, false)
			synctest.Wait()
			b.memory.revoke(buf.Key)
			for k := range remote {
				remote[k] = 9
			}
			nw.freeze(a.desc.Addr, false)
			if c := a.sink.wait(t, 1); c.Code != errs.Revoked {
				t.Errorf("sums %t: %+v, want revoked", sums, c)
			}
			if c := a.sink.wait(t, 2); c.Code != errs.OK {
				t.Errorf("sums %t: the read behind it: %+v", sums, c)
			}
			a.close()
			b.close()
		})
	}
}

// TestRevokedWhileReceiving is the same for a write.
func TestRevokedWhileReceiving(t *testing.T) {
	bubble(t, 64<<10, func(t *testing.T, nw *memNet, a, b *host) {
		ep := a.connect(t, b)
		remote := make([]byte, 1<<20)
		buf := b.memory.add(remote, segment.ReadWrite)
		nw.mu.Lock()
		nw.room = 100_000
		nw.mu.Unlock()
		nw.freeze(b.desc.Addr, true)
		a.post(t, ep, []transport.Slice{write(buf, bytes.Repeat([]byte{7}, 1<<20), 1), write(buf, make([]byte, 10), 2)})
		nw.pair(ep, a)
		nw.freeze(a.desc.Addr, true) // the sender, with what is on its way
		nw.freeze(b.desc.Addr, false)
		synctest.Wait()
		if bytes.IndexByte(remote, 7) < 0 {
			t.Fatal("nothing arrived")
		}
		b.memory.revoke(buf.Key)
		clear(remote)
		nw.freeze(a.desc.Addr, false)
		for tag := transport.Tag(1); tag <= 2; tag++ {
			if c := a.sink.wait(t, tag); c.Code != errs.Revoked {
				t.Errorf("write %d: %+v, want revoked", tag, c)
			}
		}
		if bytes.IndexByte(remote, 7) >= 0 {
			t.Error("memory was written after it was taken back")
		}
	})
}

// TestDrain: a draining target finishes what it has; its initiator refuses new
// slices as draining and lets go of the connection.
func TestDrain(t *testing.T) {
	bubble(t, 64<<10, func(t *testing.T, nw *memNet, a, b *host) {
		ep, idle := a.connect(t, b), a.connect(t, b)
		file := newSlowFile(100)
		file.hold(true)
		buf := b.memory.addFile(file, 100, segment.ReadWrite)
		a.post(t, ep, []transport.Slice{write(buf, make([]byte, 100), 1)})
		synctest.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := b.tr.Drain(ctx); errs.Of(err) != errs.Draining {
			t.Errorf("drain with a slice under way: %v", err)
		}
		for _, e := range []*Endpoint{ep, idle} {
			if n, err := e.Post([]transport.Slice{write(buf, nil, 2)}); n != 0 || errs.Of(err) != errs.Draining || strings.Count(err.Error(), "draining") != 1 {
				t.Errorf("post to a draining peer: %d, %v", n, err)
			}
		}
		if _, err := a.tr.Connect(context.Background(), &b.desc); errs.Of(err) != errs.Draining {
			t.Errorf("connect to a draining peer: %v", err)
		}
		b.connect(t, a) // for what its engine has accepted
		file.hold(false)
		if c := a.sink.wait(t, 1); c.Code != errs.OK {
			t.Errorf("the slice under way: %+v", c)
		}
		if err := b.tr.Drain(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

// TestProbeAndObserve measures a round trip and looks at the rail.
func TestProbeAndObserve(t *testing.T) {
	bubble(t, 64<<10, func(t *testing.T, nw *memNet, a, b *host) {
		ep := a.connect(t, b)
		if d, err := ep.Probe(context.Background()); err != nil || d < 0 {
			t.Errorf("probe: %v, %v", d, err)
		}
		nw.freeze(b.desc.Addr, true)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if _, err := ep.Probe(ctx); errs.Of(err) != errs.Deadline {
			t.Errorf("probe of a stopped peer: %v", err)
		}
		for range maxProbes {
			go func() { _, _ = ep.Probe(context.Background()) }()
		}
		synctest.Wait()
		if _, err := ep.Probe(ctx); errs.Of(err) != errs.Overloaded {
			t.Errorf("probe beyond the limit: %v", err)
		}
		nw.freeze(b.desc.Addr, false)
		buf := b.memory.add(make([]byte, 1<<20), segment.ReadWrite)
		a.post(t, ep, []transport.Slice{write(buf, make([]byte, 1<<20), 1), read(buf, make([]byte, 1<<20), 2)})
		a.sink.wait(t, 1)
		a.sink.wait(t, 2)
		time.Sleep(time.Second)
		s := ep.Observe()[0]
		if s.BytesOut < 1<<20 || s.BytesIn < 1<<20 || s.InFlight != 0 || s.Lanes < 1 || s.LastReceive.IsZero() || s.Remote != b.desc.Addr {
			t.Errorf("%+v", s)
		}
	})
}

// TestMoreLanes: bulk opens the lanes that Limits allow and no more, small
// slices get their own when there is bulk, and a lane lost is opened again.
func TestMoreLanes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nw := newMemNet(64 << 10)
		limits := defaultLimits()
		limits.Lanes = 3
		a, b := newHost(t, nw, limits), newHost(t, nw, limits)
		ep := a.connect(t, b)
		buf := b.memory.add(make([]byte, 1<<20), segment.ReadWrite)
		bulk := make([]byte, 1<<20)
		tag := transport.Tag(0)
		load := func() {
			for range 20 {
				var s []transport.Slice
				for range 30 {
					tag++
					s = append(s, write(buf, bulk, tag))
				}
				tag++
				s = append(s, read(buf, bulk[:10], tag))
				a.post(t, ep, s)
				a.sink.wait(t, tag)
			}
		}
		load()
		synctest.Wait() // for lanes that are being opened
		if n := ep.Observe()[0].Lanes; n != 4 {
			t.Errorf("%d lanes, want 3 for bulk and one for small", n)
		}
		nw.mu.Lock()
		for c := range nw.conns {
			c.wire.reset = true
			break
		}
		nw.changed.Broadcast()
		nw.mu.Unlock()
		time.Sleep(2 * time.Second)
		load()
		synctest.Wait()
		if s := ep.Observe()[0]; s.Lanes != 4 || s.Reconnects != 1 {
			t.Errorf("after one loss: %+v", s)
		}
		a.close()
		b.close()
	})
}

// TestConnectFails: each way has its own code.
func TestConnectFails(t *testing.T) {
	bubble(t, 64<<10, func(t *testing.T, nw *memNet, a, b *host) {
		start := time.Now()
		for want, desc := range map[errs.Code]segment.Desc{
			errs.Refused:     {Addr: "mem:99"},
			errs.Restarted:   {Addr: b.desc.Addr, Incarnation: b.desc.Incarnation + 1},
			errs.Unsupported: {},
		} {
			if _, err := a.tr.Connect(context.Background(), &desc); errs.Of(err) != want {
				t.Errorf("connect to %+v: %v, want %v", desc, err, want)
			}
		}
		nw.freeze(b.desc.Addr, true)
		if _, err := a.tr.Connect(context.Background(), &b.desc); errs.Of(err) != errs.Unresponsive || time.Since(start) != helloTimeout {
			t.Errorf("connect to a stopped peer: %v after %v", err, time.Since(start))
		}
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(time.Second, cancel)
		if _, err := a.tr.Connect(ctx, &b.desc); errs.Of(err) != errs.Canceled {
			t.Errorf("connect that is given up: %v", err)
		}
	})
}
