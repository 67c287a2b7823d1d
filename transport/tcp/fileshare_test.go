package tcp

import (
	"bytes"
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/wire"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
)

// besieged runs n lanes that take as many frame buffers of b as they get and
// give none back: each greets as from says, sends the attack and then moves one byte now
// and then, and comes back when it is dropped.
type besieged struct {
	stop chan struct{}
	wg   sync.WaitGroup
	mu   sync.Mutex
	lost int // lanes that b has dropped
}

func besiege(nw *memNet, b *host, n int, from func(k int) segment.Incarnation, attack []byte, drip func(*memConn) (int, error)) *besieged {
	s := &besieged{stop: make(chan struct{})}
	for k := range n {
		s.wg.Go(func() {
			for s.once(nw, b, wire.Greeting{From: from(k), Session: random()}, attack, drip) {
				s.mu.Lock()
				s.lost++
				s.mu.Unlock()
			}
		})
	}
	return s
}

// once attacks on one lane and reports whether it was dropped.
func (s *besieged) once(nw *memNet, b *host, g wire.Greeting, attack []byte, drip func(*memConn) (int, error)) bool {
	c, err := nw.dial(context.Background(), b.desc.Addr)
	if err != nil {
		return false
	}
	defer c.Close()
	g.MinVersion, g.MaxVersion, g.To, g.Lane, g.MaxFrame, g.Features = 1, 1, b.desc.Incarnation, 1, wire.MaxFrame, uint64(wire.FeatureSums)
	if sendGreeting(c, wire.Hello, errs.OK, &g) != nil {
		return false
	}
	if status, _, err := receiveGreeting(c, wire.Welcome); err != nil || status != errs.OK {
		return false
	}
	if _, err := c.Write(attack); err != nil {
		return true
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-s.stop:
			return false
		case <-tick.C:
		}
		if _, err := drip(c.(*memConn)); err != nil && err != errAgain {
			return true
		}
	}
}

// sends and takes move one byte if that needs no waiting.
func sends(c *memConn) (int, error) { return c.writev([][]byte{{0}}) }
func takes(c *memConn) (int, error) { return c.readv([][]byte{{0}}) }

// end stops the attack and returns how many lanes were dropped during it.
func (s *besieged) end() int {
	close(s.stop)
	s.wg.Wait()
	return s.lost
}

// halfWrite is a Write of 1 MiB to a file of which the last half is missing.
func halfWrite(key segment.Key) []byte {
	return rawFrame(wire.Header{Type: wire.Write, Flags: wire.FlagSums, Stream: wire.MakeStream(false, wire.ToFile, 1), Count: 1, Payload: 1 << 20},
		rawDescs(wire.Desc{Length: 1 << 20, Key: uint32(key)}), make([]byte, 1000), nil)
}

// untaken are Reads of a file whose answers are not taken.
func untaken(key segment.Key) []byte {
	return rawFrame(wire.Header{Type: wire.Read, Stream: wire.MakeStream(true, wire.ToFile, 1), Count: 32},
		bytes.Repeat(rawDescs(wire.Desc{Length: 1 << 20, Key: uint32(key)}), 32), nil, nil)
}

// TestFileSiege: peers that half-send Writes to files, or do not take what they
// read from them, hold all frame buffers they can get, under one name or under
// many. Everybody else's files take no second, or little more for who is new.
func TestFileSiege(t *testing.T) {
	one := func(int) segment.Incarnation { return 99 }
	many := func(k int) segment.Incarnation { return segment.Incarnation(1000 + k) }
	fresh := func(int) segment.Incarnation { return segment.Incarnation(random()) }
	for name, from := range map[string]func(int) segment.Incarnation{"one peer": one, "many peers": many, "new peers": fresh} {
		t.Run(name, func(t *testing.T) {
			limits := defaultLimits()
			limits.MaxInbound = 200
			synctest.Test(t, func(t *testing.T) {
				nw := newMemNet(256 << 10)
				a, b := newHost(t, nw, limits), newHost(t, nw, limits)
				buf := b.memory.addFile(newSlowFile(32<<20), 32<<20, segment.ReadWrite)
				writers := besiege(nw, b, 64, from, halfWrite(buf.Key), sends)
				readers := besiege(nw, b, 64, from, untaken(buf.Key), takes)
				time.Sleep(3 * time.Second)
				ep := a.connect(t, b)
				for round := range 5 {
					start := time.Now()
					tag := transport.Tag(100 * round)
					var s []transport.Slice
					for k := range 8 {
						w, r := write(buf, make([]byte, 1<<20), tag+transport.Tag(k)), read(buf, make([]byte, 1<<20), tag+transport.Tag(50+k))
						w.Offset, r.Offset = uint64(k)<<20, uint64(k)<<20
						s = append(s, w, r)
					}
					a.post(t, ep, s)
					wantAll(t, a, s)
					if took := time.Since(start); took > time.Second && (round > 0 || took > 3*time.Second/2) {
						t.Errorf("round %d: 8 MiB each way took %v", round, took)
					}
					time.Sleep(time.Second)
				}
				if n := writers.end() + readers.end(); name == "one peer" && n > 0 {
					t.Errorf("%d lanes of a peer that holds no more than its share were dropped", n)
				}
				a.close()
				b.close()
				b.wantNoPlaces(t)
			})
		})
	}
}

// TestFileSlowPeers: peers that take what they read from files slowly, but take
// it, keep their lanes, and keep nobody waiting, although they want more buffers
// than there are.
func TestFileSlowPeers(t *testing.T) {
	limits := defaultLimits()
	limits.MaxInbound = 200
	synctest.Test(t, func(t *testing.T) {
		nw := newMemNet(512 << 10)
		a, b := newHost(t, nw, limits), newHost(t, nw, limits)
		buf := b.memory.addFile(newSlowFile(32<<20), 32<<20, segment.ReadWrite)
		slow := func(c *memConn) (n int, err error) { // 2 MiB a second
			for sink := make([]byte, 32<<10); n < 200<<10 && err == nil; {
				var k int
				k, err = c.readv([][]byte{sink})
				n += k
			}
			return n, err
		}
		readers := besiege(nw, b, 20, func(k int) segment.Incarnation { return segment.Incarnation(1000 + k) }, untaken(buf.Key), slow)
		time.Sleep(2 * time.Second)
		ep := a.connect(t, b)
		for round := range 5 {
			start := time.Now()
			a.post(t, ep, []transport.Slice{read(buf, make([]byte, 1<<20), transport.Tag(round))})
			if a.sink.wait(t, transport.Tag(round)); time.Since(start) > time.Second {
				t.Errorf("round %d: 1 MiB took %v", round, time.Since(start))
			}
		}
		if n := readers.end(); n > 0 {
			t.Errorf("%d lanes were dropped", n)
		}
		a.close()
		b.close()
		b.wantNoPlaces(t)
	})
}

// TestFileRangeFirst: what no file backs takes no buffer: a wrong key, a range
// past the end, access that is not given.
func TestFileRangeFirst(t *testing.T) {
	bubble(t, 256<<10, func(t *testing.T, nw *memNet, _, b *host) {
		buf := b.memory.addFile(newSlowFile(1<<20), 1<<20, segment.RemoteRead)
		for _, d := range []wire.Desc{{Length: 1 << 20, Key: 77}, {Offset: 1, Length: 1 << 20, Key: uint32(buf.Key)}, {Length: 1 << 20, Key: uint32(buf.Key)}} {
			p, _, _ := dialRaw(t, nw, b, nil)
			h := wire.Header{Type: wire.Write, Flags: wire.FlagSums, Stream: wire.MakeStream(false, wire.ToFile, 1), Count: 1, Payload: 1 << 20}
			if _, err := p.Write(rawFrame(h, rawDescs(d), make([]byte, 1000), nil)); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if n := b.tr.writePlaces.count(); n != 0 {
				t.Errorf("%+v: %d buffers are held", d, n)
			}
			if _, err := p.Write(append(make([]byte, 1<<20-1000), rawTrailer(make([]byte, 1<<20))...)); err != nil {
				t.Fatal(err)
			}
			ack, meta := p.frame(t)
			if ack.Type == wire.Credit {
				ack, meta = p.frame(t)
			}
			if ack.Type != wire.Ack || ack.Count != 1 || wire.ParseException(meta).Code == errs.OK {
				t.Errorf("%+v: answered with %+v %x", d, ack, meta)
			}
			_ = p.Close()
		}
		time.Sleep(time.Second)
		b.wantNoHeld(t)
	})
}

// wantNoPlaces checks that nobody holds a frame buffer for files or waits for one.
func (h *host) wantNoPlaces(t testing.TB) {
	t.Helper()
	for _, p := range []*places{h.tr.writePlaces, h.tr.readPlaces} {
		p.mu.Lock()
		if n := len(p.mu.held) + len(p.mu.queue) + len(p.mu.peers); n != 0 {
			t.Errorf("at the end %d frame buffers are held, %d lanes wait, %d peers are known", len(p.mu.held), len(p.mu.queue), len(p.mu.peers))
		}
		p.mu.Unlock()
	}
}

// wantNoHeld is wantNoPlaces for a host whose lanes live.
func (h *host) wantNoHeld(t testing.TB) {
	t.Helper()
	if n := h.tr.writePlaces.count() + h.tr.readPlaces.count(); n != 0 {
		t.Errorf("%d frame buffers are held at the end", n)
	}
}
