package tcp

import (
	"bytes"
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
)

// twoRails gives b a second address and lets a find two rails to it. It returns the
// addresses.
func twoRails(t *testing.T, nw *memNet, a, b *host) [2]string {
	t.Helper()
	l, err := nw.listen()
	if err != nil {
		t.Fatal(err)
	}
	b.wg.Go(func() { b.accept(l) })
	b.more = append(b.more, l)
	addrs := [2]string{b.desc.Addr, l.Addr().String()}
	a.tr.env.Ways = func(*segment.Desc) []transport.Way {
		return []transport.Way{{Interface: "eth0", Remote: addrs[0]}, {Interface: "eth1", Remote: addrs[1]}}
	}
	a.tr.env.DialWay = func(ctx context.Context, w transport.Way) (net.Conn, error) { return nw.dial(ctx, w.Remote) }
	return addrs
}

// on puts a slice of bulk on a rail.
func on(rail uint8, s transport.Slice) transport.Slice {
	s.Rail, s.Class = rail, 1
	return s
}

// sent returns the bytes that each rail has sent.
func sent(ep *Endpoint) (n [2]uint64) {
	for k, r := range ep.Observe() {
		n[k] = r.BytesOut
	}
	return n
}

// TestRails: slices travel on the rail that they name, on another one until that
// is open. One that was lost refuses them, and opens again after a rest.
func TestRails(t *testing.T) {
	bubble(t, 1<<20, func(t *testing.T, nw *memNet, a, b *host) {
		twoRails(t, nw, a, b)
		ep := a.connect(t, b)
		const n = 1 << 20
		remote := make([]byte, 8*n)
		buf := b.memory.add(remote, segment.ReadWrite)
		tag := transport.Tag(0)
		put := func(rail uint8) error {
			tag++
			s := on(rail, write(buf, bytes.Repeat([]byte{byte(tag)}, n), tag))
			s.Offset = uint64(tag) % 8 * n
			took, err := ep.Post([]transport.Slice{s})
			if err == nil {
				if c := a.sink.wait(t, tag); c.Code != errs.OK || remote[s.Offset] != byte(tag) || remote[s.Offset+n-1] != byte(tag) {
					t.Errorf("slice %d: %+v", tag, c)
				}
			} else if took != 0 {
				t.Errorf("took %d slices and %v", took, err)
			}
			synctest.Wait()
			return err
		}
		if len(ep.Rails()) != 2 {
			t.Fatalf("rails %v", ep.Rails())
		}
		if err := put(1); err != nil || sent(ep)[0] < n {
			t.Errorf("before rail 1 is open: %v, sent %v", err, sent(ep))
		}
		before := sent(ep)
		if err := put(1); err != nil || sent(ep)[1] < n || sent(ep)[0] > before[0]+1000 {
			t.Errorf("on rail 1: %v, sent %v after %v", err, sent(ep), before)
		}
		(*ep.table.Load())[ep.per].lane.fail(errs.New(errs.LaneLost, "test", "cut"))
		synctest.Wait()
		if err := put(1); errs.Of(err) != errs.LaneLost {
			t.Errorf("a rail that is lost: %v, want lane lost", err)
		}
		if err := put(0); err != nil {
			t.Errorf("the other rail: %v", err)
		}
		time.Sleep(2 * minRest)
		ep.attend() // or the watcher would look later
		time.Sleep(ep.tick())
		before = sent(ep)
		if err := put(1); err != nil || sent(ep)[1] < before[1]+n {
			t.Errorf("open again: %v, sent %v after %v", err, sent(ep), before)
		}
		if r := ep.Observe()[1]; r.Reconnects != 1 || r.Lanes != 1 || ep.Observe()[0].Reconnects != 0 {
			t.Errorf("observed %+v", ep.Observe())
		}
	})
}

// TestRailSilent: a rail that carries nothing any more is given up long before
// StallTimeout if the peer is heard on another one, which also fences it.
func TestRailSilent(t *testing.T) {
	bubble(t, 64<<10, func(t *testing.T, nw *memNet, a, b *host) {
		addrs := twoRails(t, nw, a, b)
		ep := a.connect(t, b)
		buf := b.memory.add(make([]byte, 4<<20), segment.ReadWrite)
		a.post(t, ep, []transport.Slice{on(1, write(buf, make([]byte, 1<<20), 1))})
		a.sink.wait(t, 1)
		synctest.Wait()
		nw.freeze(addrs[1], true)
		start := time.Now()
		a.post(t, ep, []transport.Slice{on(1, write(buf, make([]byte, 1<<20), 2)), on(1, read(buf, make([]byte, 1<<20), 3))})
		if c := a.sink.wait(t, 3); c.Code != errs.LaneLost || c.InDoubt {
			t.Errorf("read: %+v", c)
		}
		if took := time.Since(start); took < ep.railStall()-ep.tick() || took > ep.railStall()+4*ep.tick() {
			t.Errorf("noticed after %v, want about %v", took, ep.railStall())
		}
		// The fence cannot be answered before the target has let go of the lane, which
		// this network freezes with it.
		nw.freeze(addrs[1], false)
		if c := a.sink.wait(t, 2); c.Code != errs.LaneLost || c.InDoubt {
			t.Errorf("write: %+v, want lane lost without doubt", c)
		}
		a.post(t, ep, []transport.Slice{on(0, read(buf, make([]byte, 1<<20), 4))})
		if c := a.sink.wait(t, 4); c.Code != errs.OK {
			t.Errorf("on the other rail: %+v", c)
		}
	})
}

// TestRailSilentPeer: a peer that is silent on both rails has StallTimeout.
func TestRailSilentPeer(t *testing.T) {
	bubble(t, 64<<10, func(t *testing.T, nw *memNet, a, b *host) {
		addrs := twoRails(t, nw, a, b)
		ep := a.connect(t, b)
		buf := b.memory.add(make([]byte, 4<<20), segment.ReadWrite)
		a.post(t, ep, []transport.Slice{on(1, read(buf, make([]byte, 1<<20), 1))})
		a.sink.wait(t, 1)
		synctest.Wait()
		for _, at := range addrs {
			nw.freeze(at, true)
		}
		start, stall := time.Now(), a.tr.env.Limits.StallTimeout
		a.post(t, ep, []transport.Slice{on(0, read(buf, make([]byte, 1<<20), 2)), on(1, read(buf, make([]byte, 1<<20), 3))})
		for tag := transport.Tag(2); tag <= 3; tag++ {
			if c := a.sink.wait(t, tag); c.Code != errs.Unresponsive || time.Since(start) < stall*8/10 || time.Since(start) > stall+ep.tick() {
				t.Errorf("%+v after %v, want unresponsive after about %v", c, time.Since(start), stall)
			}
		}
		for _, at := range addrs {
			nw.freeze(at, false)
		}
	})
}

// TestRailConnect: a first rail that does not answer delays the endpoint by no
// more than the stagger, and one that refuses by nothing.
func TestRailConnect(t *testing.T) {
	for _, silent := range []bool{true, false} {
		bubble(t, 64<<10, func(t *testing.T, nw *memNet, a, b *host) {
			addrs := twoRails(t, nw, a, b)
			want := time.Duration(0)
			if silent {
				nw.freeze(addrs[0], true)
				want = stagger
			} else {
				b.l.Close()
			}
			start := time.Now()
			ep := a.connect(t, b)
			if took := time.Since(start); took != want {
				t.Errorf("connected after %v, want %v", took, want)
			}
			buf := b.memory.add(make([]byte, 1<<20), segment.ReadWrite)
			a.post(t, ep, []transport.Slice{on(1, read(buf, make([]byte, 1<<20), 1))})
			if c := a.sink.wait(t, 1); c.Code != errs.OK {
				t.Errorf("%+v", c)
			}
			if silent {
				nw.freeze(addrs[0], false)
			}
		})
	}
}
