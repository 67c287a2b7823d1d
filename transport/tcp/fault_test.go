package tcp

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
)

// bubble runs f with two hosts on a network in memory, on virtual time.
func bubble(t *testing.T, room int, f func(t *testing.T, nw *memNet, a, b *host)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		nw := newMemNet(room)
		a, b := newHost(t, nw, defaultLimits()), newHost(t, nw, defaultLimits())
		f(t, nw, a, b)
		nw.freeze(b.desc.Addr, false)
		a.close()
		b.close()
		if n := a.memory.pinned() + b.memory.pinned(); n != 0 {
			t.Errorf("%d pins are left", n)
		}
		if d := a.sink.doubles(); len(d) > 0 {
			t.Errorf("slices %v completed twice", d)
		}
		if n := nw.open(); n != 0 {
			t.Errorf("%d connections are left", n)
		}
	})
}

func write(buf *segment.Buffer, local []byte, tag transport.Tag) transport.Slice {
	return transport.Slice{Op: transport.Write, Class: 1, Local: local, Buffer: buf, Tag: tag}
}

func read(buf *segment.Buffer, local []byte, tag transport.Tag) transport.Slice {
	return transport.Slice{Op: transport.Read, Class: 1, Local: local, Buffer: buf, Tag: tag}
}

// TestStopped: a peer that is stopped is unresponsive within StallTimeout; a
// Read ends without doubt, a Write in doubt, and nothing completes before.
func TestStopped(t *testing.T) {
	bubble(t, 64<<10, func(t *testing.T, nw *memNet, a, b *host) {
		ep := a.connect(t, b)
		buf := b.memory.add(make([]byte, 1<<20), segment.ReadWrite)
		time.Sleep(3 * time.Second) // idle before
		nw.freeze(b.desc.Addr, true)
		start := time.Now()
		a.post(t, ep, []transport.Slice{write(buf, make([]byte, 1<<20), 1), read(buf, make([]byte, 4096), 2), write(buf, make([]byte, 10), 3)})
		time.Sleep(8 * time.Second)
		synctest.Wait()
		if n := a.sink.count(); n != 0 {
			t.Errorf("%d slices completed while the peer was stopped for less than StallTimeout", n)
		}
		for tag := transport.Tag(1); tag <= 3; tag++ {
			c := a.sink.wait(t, tag)
			if c.Code != errs.Unresponsive || c.InDoubt != (tag == 1) {
				t.Errorf("slice %d: %+v, want unresponsive, in doubt only if it may have been sent", tag, c)
			}
		}
		if took := time.Since(start); took > 10*time.Second {
			t.Errorf("took %v, more than StallTimeout", took)
		}
		if n, err := ep.Post([]transport.Slice{write(buf, nil, 9)}); n != 0 || errs.Of(err) != errs.Unresponsive {
			t.Errorf("post on an endpoint without lanes: %d, %v", n, err)
		}
	})
}

// TestSlowIsNotDead: a peer that is silent for less than StallTimeout, again and
// again, loses nothing.
func TestSlowIsNotDead(t *testing.T) {
	bubble(t, 64<<10, func(t *testing.T, nw *memNet, a, b *host) {
		ep := a.connect(t, b)
		remote, local := make([]byte, 1<<20), make([]byte, 1<<20)
		pattern(local, 1)
		buf := b.memory.add(remote, segment.ReadWrite)
		a.post(t, ep, []transport.Slice{write(buf, local, 1)})
		for range 5 {
			nw.freeze(b.desc.Addr, true)
			a.post(t, ep, []transport.Slice{read(buf, make([]byte, 1<<20), transport.Tag(100+a.sink.count()))})
			time.Sleep(6 * time.Second)
			nw.freeze(b.desc.Addr, false)
			time.Sleep(time.Second)
		}
		if c := a.sink.wait(t, 1); c.Code != errs.OK || !bytes.Equal(remote, local) {
			t.Errorf("write: %+v", c)
		}
	})
}

// TestIdlePeerDies: a peer that dies silently while nothing is outstanding is
// noticed, so that the next slice does not wait for StallTimeout.
func TestIdlePeerDies(t *testing.T) {
	bubble(t, 64<<10, func(t *testing.T, nw *memNet, a, b *host) {
		ep := a.connect(t, b)
		time.Sleep(time.Minute) // alive and idle
		if n, err := ep.Post([]transport.Slice{write(b.memory.add(make([]byte, 1), segment.ReadWrite), make([]byte, 1), 1)}); n != 1 {
			t.Fatal(err)
		}
		a.sink.wait(t, 1)
		nw.freeze(b.desc.Addr, true)
		time.Sleep(40 * time.Second)
		if _, err := ep.Post([]transport.Slice{write(&segment.Buffer{Key: 1}, nil, 2)}); errs.Of(err) != errs.Unresponsive {
			t.Errorf("post 40 s after the peer stopped: %v", err)
		}
	})
}

// TestInitiatorDies: a target drops an initiator that is silent.
func TestInitiatorDies(t *testing.T) {
	bubble(t, 64<<10, func(t *testing.T, nw *memNet, a, b *host) {
		ep := b.connect(t, a) // b initiates, and is frozen
		nw.pair(ep, b)
		nw.freeze(b.desc.Addr, true)
		time.Sleep(minIdle + minIdle/2)
		a.tr.in.Lock()
		n := len(a.tr.in.lanes)
		a.tr.in.Unlock()
		if n != 0 {
			t.Errorf("%d inbound lanes are open after %v of silence", n, minIdle+minIdle/2)
		}
	})
}

// TestFence: when a connection dies under a Write but the peer lives, the lane
// is fenced on another one; the Write is not in doubt, and whatever the target's
// memory holds then, it holds for good.
func TestFence(t *testing.T) {
	for _, spare := range []bool{false, true} {
		bubble(t, 8<<10, func(t *testing.T, nw *memNet, a, b *host) {
			ep := a.connect(t, b)
			remote := make([]byte, 4<<20)
			buf := b.memory.add(remote, segment.ReadWrite)
			if spare {
				ep.openLater(ep.bulk)
				synctest.Wait()
			}
			nw.freeze(b.desc.Addr, true)
			s := []transport.Slice{write(buf, bytes.Repeat([]byte{1}, 1<<20), 1), write(buf, bytes.Repeat([]byte{1}, 1<<20), 2), read(buf, make([]byte, 1<<20), 3)}
			for k := range s {
				s[k].Class = 1
			}
			a.post(t, ep, s)
			(*ep.table.Load())[0].lane.fail(errs.New(errs.LaneLost, "test", "cut"))
			synctest.Wait()
			if c := a.sink.wait(t, 3); c.Code != errs.LaneLost || c.InDoubt {
				t.Errorf("read: %+v", c)
			}
			nw.freeze(b.desc.Addr, false)
			for tag := transport.Tag(1); tag <= 2; tag++ {
				if c := a.sink.wait(t, tag); c.Code != errs.LaneLost || c.InDoubt {
					t.Errorf("write: %+v, want lane lost without doubt", c)
				}
			}
			for k := range remote {
				remote[k] = 2
			}
			time.Sleep(time.Minute)
			if bytes.IndexByte(remote, 1) >= 0 || bytes.IndexByte(remote, 0) >= 0 {
				t.Error("memory changed after the fence")
			}
		})
	}
}

// TestFenceRefused: without anybody to ask, Writes are in doubt at once.
func TestFenceRefused(t *testing.T) {
	bubble(t, 8<<10, func(t *testing.T, nw *memNet, a, b *host) {
		ep := a.connect(t, b)
		buf := b.memory.add(make([]byte, 1<<20), segment.ReadWrite)
		nw.freeze(b.desc.Addr, true)
		a.post(t, ep, []transport.Slice{write(buf, make([]byte, 1<<20), 1)})
		start := time.Now()
		_ = b.l.Close()
		nw.reset()
		c := a.sink.wait(t, 1)
		if c.Code != errs.Refused || !c.InDoubt || time.Since(start) > 0 {
			t.Errorf("%+v after %v, want refused, in doubt, at once", c, time.Since(start))
		}
	})
}

// TestFenceBound: a peer that does not answer the fence leaves Writes in doubt
// after two seconds.
func TestFenceBound(t *testing.T) {
	bubble(t, 8<<10, func(t *testing.T, nw *memNet, a, b *host) {
		ep := a.connect(t, b)
		buf := b.memory.add(make([]byte, 1<<20), segment.ReadWrite)
		nw.freeze(b.desc.Addr, true)
		a.post(t, ep, []transport.Slice{write(buf, make([]byte, 1<<20), 1)})
		start := time.Now()
		nw.reset()
		c := a.sink.wait(t, 1)
		if took := time.Since(start); c.Code != errs.Unresponsive || !c.InDoubt || took != 2*time.Second {
			t.Errorf("%+v after %v, want unresponsive, in doubt, after 2 s", c, took)
		}
	})
}

// TestCancelStuck: with the peer stopped, cancelled slices end at once; their
// local ranges are not read or written any more when the peer goes on.
func TestCancelStuck(t *testing.T) {
	bubble(t, 64<<10, func(t *testing.T, nw *memNet, a, b *host) {
		ep := a.connect(t, b)
		remote := make([]byte, 8<<20)
		buf := b.memory.add(remote, segment.ReadWrite)
		source := bytes.Repeat([]byte{7}, 1<<20)
		sink := make([]byte, 1<<20)
		small := bytes.Repeat([]byte{7}, 3000)
		kept := bytes.Repeat([]byte{9}, 3000)
		nw.freeze(b.desc.Addr, true)
		var s []transport.Slice
		var tags []transport.Tag
		add := func(x transport.Slice, off int) {
			x.Offset, x.Tag = uint64(off), transport.Tag(len(s)+1)
			s = append(s, x)
			if &x.Local[0] != &kept[0] {
				tags = append(tags, x.Tag)
			}
		}
		add(write(buf, source, 0), 0)
		add(write(buf, small, 0), 1<<20)
		add(write(buf, kept, 0), 2<<20)
		add(write(buf, small, 0), 3<<20)
		add(read(buf, sink, 0), 4<<20)
		for k := range 70 { // more than one plan
			add(write(buf, source[:100_000], 0), 4<<20+k)
		}
		a.post(t, ep, s)
		start := time.Now()
		ep.Cancel(tags)
		if n := a.sink.count(); n != len(tags) || time.Since(start) != 0 {
			t.Errorf("%d of %d completed within %v", n, len(tags), time.Since(start))
		}
		scribble := func(b []byte) {
			for k := range b {
				b[k] = 0xEE
			}
		}
		scribble(source)
		scribble(small)
		scribble(sink)
		nw.freeze(b.desc.Addr, false)
		if c := a.sink.wait(t, 3); c.Code != errs.OK || !bytes.Equal(remote[2<<20:2<<20+3000], kept) {
			t.Errorf("the slice that was not cancelled: %+v", c)
		}
		time.Sleep(time.Second)
		if bytes.IndexByte(remote, 0xEE) >= 0 {
			t.Error("a cancelled write's source was read after its completion")
		}
		if !bytes.Equal(sink, bytes.Repeat([]byte{0xEE}, len(sink))) {
			t.Error("a cancelled read's destination was written after its completion")
		}
		for _, tag := range tags {
			if c := a.sink.wait(t, tag); c.Code != errs.Canceled || c.InDoubt && s[tag-1].Op == transport.Read {
				t.Errorf("slice %d: %+v", tag, c)
			}
		}
	})
}

// TestCancelWhileFencing: Writes that wait for a fence end at once when they are
// cancelled.
func TestCancelWhileFencing(t *testing.T) {
	bubble(t, 8<<10, func(t *testing.T, nw *memNet, a, b *host) {
		ep := a.connect(t, b)
		buf := b.memory.add(make([]byte, 1<<20), segment.ReadWrite)
		nw.freeze(b.desc.Addr, true)
		a.post(t, ep, []transport.Slice{write(buf, make([]byte, 400_000), 1), write(buf, make([]byte, 500_000), 2)})
		nw.reset()
		time.Sleep(100 * time.Millisecond)
		start := time.Now()
		ep.Cancel([]transport.Tag{1})
		if c := a.sink.wait(t, 1); c.Code != errs.Canceled || !c.InDoubt || time.Since(start) != 0 {
			t.Errorf("%+v after %v, want canceled, in doubt, at once", c, time.Since(start))
		}
		if c := a.sink.wait(t, 2); c.Code != errs.Unresponsive || !c.InDoubt {
			t.Errorf("the one that was not cancelled: %+v", c)
		}
	})
}

// TestCancelSavesBytes: Reads that are cancelled before the target began them are
// not sent.
func TestCancelSavesBytes(t *testing.T) {
	bubble(t, 64<<10, func(t *testing.T, nw *memNet, a, b *host) {
		ep := a.connect(t, b)
		buf := b.memory.add(make([]byte, 1<<20), segment.ReadWrite)
		nw.freeze(b.desc.Addr, true)
		var s []transport.Slice
		var tags []transport.Tag
		for k := range 50 {
			s, tags = append(s, read(buf, make([]byte, 1<<20), transport.Tag(k))), append(tags, transport.Tag(k))
		}
		a.post(t, ep, s)
		ep.Cancel(tags[:49])
		nw.freeze(b.desc.Addr, false)
		wantAll(t, a, s[49:])
		if n := ep.Observe()[0].BytesIn; n > 3<<20 {
			t.Errorf("%d bytes came for one read of 1 MiB", n)
		}
	})
}

// TestOwnStop: when this process itself was stopped, its peers are not blamed for
// their silence in that time, on neither side.
func TestOwnStop(t *testing.T) {
	bubble(t, 64<<10, func(t *testing.T, nw *memNet, a, b *host) {
		ep := a.connect(t, b)
		buf := b.memory.add(make([]byte, 1<<20), segment.ReadWrite)
		nw.freeze(b.desc.Addr, true)
		a.post(t, ep, []transport.Slice{read(buf, make([]byte, 1<<20), 1)})
		time.Sleep(time.Second)
		a.skew.Add(int64(time.Hour))
		b.skew.Add(int64(time.Hour))
		time.Sleep(2 * time.Second)
		nw.freeze(b.desc.Addr, false)
		if c := a.sink.wait(t, 1); c.Code != errs.OK {
			t.Errorf("after an hour's stop: %+v", c)
		}
		time.Sleep(2 * minIdle)
		if n := ep.Observe()[0]; n.Lanes != 1 || n.Reconnects != 0 {
			t.Errorf("%+v", n)
		}
	})
}

// TestSlowSink: while the sink keeps the receiver, silence is not the peer's.
func TestSlowSink(t *testing.T) {
	bubble(t, 64<<10, func(t *testing.T, nw *memNet, a, b *host) {
		ep := a.connect(t, b)
		buf := b.memory.add(make([]byte, 1<<20), segment.ReadWrite)
		a.sink.hook = func(c transport.Completion) {
			if c.Tag == 1 {
				time.Sleep(40 * time.Second)
			}
		}
		a.post(t, ep, []transport.Slice{read(buf, make([]byte, 10), 1)})
		synctest.Wait()
		a.post(t, ep, []transport.Slice{read(buf, make([]byte, 10_000), 2)})
		if c := a.sink.wait(t, 2); c.Code != errs.OK {
			t.Errorf("the read behind a slow sink: %+v", c)
		}
	})
}
