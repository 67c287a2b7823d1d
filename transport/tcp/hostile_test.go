package tcp

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/wire"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
)

// rawFrame builds a frame with a correct check. trailer is appended as it is.
func rawFrame(h wire.Header, meta, payload, trailer []byte) []byte {
	h.Meta = uint32(len(meta))
	if h.Payload == 0 {
		h.Payload = uint32(len(payload))
	}
	p := make([]byte, wire.HeaderSize, wire.HeaderSize+len(meta)+len(payload)+len(trailer))
	h.Put(p)
	p = append(p, meta...)
	wire.Seal(p)
	return append(append(p, payload...), trailer...)
}

func rawDescs(d ...wire.Desc) []byte {
	p := make([]byte, len(d)*wire.DescSize)
	for k := range d {
		d[k].Put(p[k*wire.DescSize:])
	}
	return p
}

// rawTrailer is a correct trailer with sums of the payloads.
func rawTrailer(payloads ...[]byte) []byte {
	var p []byte
	for _, b := range payloads {
		p = binary.LittleEndian.AppendUint64(p, wire.Sum(b))
	}
	return binary.LittleEndian.AppendUint64(p, wire.EndWhole)
}

// rawPeer is an initiator under the test's control.
type rawPeer struct {
	net.Conn
	from segment.Incarnation
}

func dialRaw(t testing.TB, nw network, to *host, change func(*wire.Greeting)) (*rawPeer, errs.Code, wire.Greeting) {
	t.Helper()
	c, err := nw.dial(context.Background(), to.desc.Addr)
	if err != nil {
		t.Fatal(err)
	}
	hello := wire.Greeting{MinVersion: 1, MaxVersion: 1, From: 77, To: to.desc.Incarnation, Session: random(), Lane: 1, MaxFrame: wire.MaxFrame, Features: uint64(wire.FeatureSums)}
	if change != nil {
		change(&hello)
	}
	if err := sendGreeting(c, wire.Hello, errs.OK, &hello); err != nil {
		t.Fatal(err)
	}
	status, g, err := receiveGreeting(c, wire.Welcome)
	if err != nil {
		t.Fatal(err)
	}
	return &rawPeer{c, hello.From}, status, g
}

// frame reads one frame without payload.
func (p *rawPeer) frame(t testing.TB) (wire.Header, []byte) {
	t.Helper()
	head := make([]byte, wire.HeaderSize)
	if _, err := io.ReadFull(p, head); err != nil {
		t.Fatal(err)
	}
	h, err := wire.ParseHeader(head)
	if err != nil {
		t.Fatal(err)
	}
	head = append(head, make([]byte, h.Meta)...)
	if _, err := io.ReadFull(p, head[wire.HeaderSize:]); err != nil || !wire.Intact(head) {
		t.Fatal("frame is not intact", err)
	}
	return h, head[wire.HeaderSize:]
}

// closed reports whether the other side has closed the connection, rather than
// closing it some time later.
func (p *rawPeer) closed() bool {
	start := time.Now()
	_, err := io.Copy(io.Discard, p)
	return time.Since(start) == 0 && !errors.Is(err, net.ErrClosed)
}

// TestHostileFrames: what no honest initiator sends ends that connection alone,
// without touching memory; the other lanes go on.
func TestHostileFrames(t *testing.T) {
	w := wire.MakeStream(false, wire.ToMemory, 1)
	r := wire.MakeStream(true, wire.ToMemory, 1)
	ten := bytes.Repeat([]byte{0xBB}, 10)
	good := wire.Desc{Length: 10, Key: 1}
	sums := wire.FlagSums
	flip := func(p []byte, at int) []byte { p[at] ^= 1; return p }
	for name, frame := range map[string][]byte{
		"garbage":                bytes.Repeat([]byte{0xff}, 100),
		"flip in header":         flip(rawFrame(wire.Header{Type: wire.Write, Flags: sums, Stream: w, Count: 1}, rawDescs(good), ten, rawTrailer(ten)), 9),
		"flip in descriptor":     flip(rawFrame(wire.Header{Type: wire.Write, Flags: sums, Stream: w, Count: 1}, rawDescs(good), ten, rawTrailer(ten)), 32),
		"unknown type":           rawFrame(wire.Header{Type: 99}, nil, nil, nil),
		"hello again":            rawFrame(wire.Header{Type: wire.Hello}, nil, nil, nil),
		"data to a target":       rawFrame(wire.Header{Type: wire.Data, Stream: r, Count: 1, Flags: sums}, make([]byte, 8), nil, rawTrailer(nil)),
		"ack to a target":        rawFrame(wire.Header{Type: wire.Ack, Stream: w, Seq: 1}, nil, nil, nil),
		"no descriptors":         rawFrame(wire.Header{Type: wire.Write, Flags: sums, Stream: w}, nil, nil, rawTrailer()),
		"count without meta":     rawFrame(wire.Header{Type: wire.Write, Flags: sums, Stream: w, Count: 2}, rawDescs(good), ten, rawTrailer(ten, ten)),
		"write on a read's":      rawFrame(wire.Header{Type: wire.Write, Flags: sums, Stream: r, Count: 1}, rawDescs(good), ten, rawTrailer(ten)),
		"read on a write's":      rawFrame(wire.Header{Type: wire.Read, Stream: w, Count: 1}, rawDescs(good), nil, nil),
		"sequence ahead":         rawFrame(wire.Header{Type: wire.Write, Flags: sums, Stream: w, Count: 1, Seq: 1}, rawDescs(good), ten, rawTrailer(ten)),
		"sequence far":           rawFrame(wire.Header{Type: wire.Read, Stream: r, Count: 1, Seq: ^uint64(0)}, rawDescs(good), nil, nil),
		"payload too short":      rawFrame(wire.Header{Type: wire.Write, Flags: sums, Stream: w, Count: 1}, rawDescs(good), ten[:9], rawTrailer(ten)),
		"payload too long":       rawFrame(wire.Header{Type: wire.Write, Flags: sums, Stream: w, Count: 1}, rawDescs(good), append(ten, 1), rawTrailer(ten)),
		"file payload too short": rawFrame(wire.Header{Type: wire.Write, Flags: sums, Stream: wire.MakeStream(false, wire.ToFile, 1), Count: 1}, rawDescs(wire.Desc{Length: 50, Key: 1}), ten, rawTrailer(ten)),
		"range too long":         rawFrame(wire.Header{Type: wire.Read, Stream: r, Count: 1}, rawDescs(wire.Desc{Length: wire.MaxFrame + 1, Key: 1}), nil, nil),
		"payload on a ping":      rawFrame(wire.Header{Type: wire.Ping}, nil, ten, nil),
		"no sums though agreed":  rawFrame(wire.Header{Type: wire.Write, Stream: w, Count: 1}, rawDescs(good), ten, rawTrailer()),
		"bad end word":           rawFrame(wire.Header{Type: wire.Write, Flags: sums, Stream: w, Count: 1}, rawDescs(wire.Desc{Key: 99}), nil, bytes.Repeat([]byte{7}, 16)),
		"too much meta":          rawFrame(wire.Header{Type: 99, Flags: wire.FlagOptional}, make([]byte, maxMeta+1), nil, nil),
		"short fence":            rawFrame(wire.Header{Type: wire.Fence}, make([]byte, 7), nil, nil),
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, 64<<10, func(t *testing.T, nw *memNet, a, b *host) {
				memory := make([]byte, 100)
				buf := b.memory.add(memory[:50], segment.ReadWrite)
				p, status, _ := dialRaw(t, nw, b, nil)
				if status != errs.OK {
					t.Fatal(status)
				}
				if _, err := p.Write(frame); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				if !p.closed() {
					t.Error("the connection is still open")
				}
				_ = p.Close()
				if name != "flip in header" && bytes.IndexByte(memory[10:], 0xBB) >= 0 {
					t.Error("memory was touched")
				}
				a.post(t, a.connect(t, b), []transport.Slice{write(buf, make([]byte, 50), 1)})
				wantAll(t, a, []transport.Slice{{Tag: 1}})
			})
		})
	}
}

// TestOptionalFrame: a frame of unknown type that says it may be skipped is.
func TestOptionalFrame(t *testing.T) {
	bubble(t, 64<<10, func(t *testing.T, nw *memNet, a, b *host) {
		p, _, _ := dialRaw(t, nw, b, nil)
		defer p.Close()
		_, _ = p.Write(rawFrame(wire.Header{Type: 99, Flags: wire.FlagOptional}, make([]byte, 100), make([]byte, 200_000), nil))
		_, _ = p.Write(rawFrame(wire.Header{Type: wire.Ping, Seq: 5}, nil, nil, nil))
		if h, _ := p.frame(t); h.Type != wire.Pong || h.Seq != 5 {
			t.Errorf("answer %+v, want pong 5", h)
		}
	})
}

// TestGrantExceeded: an initiator that asks for more than it was granted loses
// its lane, and what it may ask for bounds what the target keeps.
func TestGrantExceeded(t *testing.T) {
	bubble(t, 64<<10, func(t *testing.T, nw *memNet, a, b *host) {
		b.memory.add(make([]byte, 1<<20), segment.ReadWrite)
		p, _, g := dialRaw(t, nw, b, nil)
		defer p.Close()
		nw.mu.Lock()
		p.Conn.(*memConn).peer.in = nil
		nw.mu.Unlock()
		stream := wire.MakeStream(true, wire.ToMemory, 1)
		descs := bytes.Repeat(rawDescs(wire.Desc{Length: 1 << 20, Key: 1}), 8)
		sent := 0
		for seq := uint64(0); ; seq += 8 { // p takes no answers
			n, err := p.Write(rawFrame(wire.Header{Type: wire.Read, Stream: stream, Count: 8, Seq: seq}, descs, nil, nil))
			if err != nil {
				break
			}
			sent += n
			synctest.Wait()
			if limit := int(g.Bytes>>20+8) * 40; sent > 2*limit {
				t.Fatalf("%d bytes of requests taken beyond the grant", sent)
			}
		}
	})
}

// TestPingFlood: pings whose answers are not taken do not pile up.
func TestPingFlood(t *testing.T) {
	bubble(t, 1<<10, func(t *testing.T, nw *memNet, a, b *host) {
		p, _, _ := dialRaw(t, nw, b, nil)
		defer p.Close()
		for n := range 1000 {
			if _, err := p.Write(rawFrame(wire.Header{Type: wire.Ping, Seq: uint64(n)}, nil, nil, nil)); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		b.tr.in.Lock()
		for _, in := range b.tr.in.lanes {
			in.target.mu.Lock()
			if n := len(in.target.mu.pongs); n > maxPongs || n == 0 {
				t.Errorf("%d pings are kept, at most %d should be", n, maxPongs)
			}
			in.target.mu.Unlock()
		}
		b.tr.in.Unlock()
		for {
			h, _ := p.frame(t)
			if h.Type != wire.Pong {
				t.Fatalf("answer %+v to a ping", h)
			}
			if h.Seq == 999 {
				break
			}
		}
	})
}

// TestHandshake: who may not open a lane is told why.
func TestHandshake(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*wire.Greeting)
		want   errs.Code
	}{
		"good":      {func(*wire.Greeting) {}, errs.OK},
		"anybody":   {func(g *wire.Greeting) { g.To = 0 }, errs.OK},
		"versions":  {func(g *wire.Greeting) { g.MaxVersion = 9 }, errs.OK},
		"restarted": {func(g *wire.Greeting) { g.To++ }, errs.Restarted},
		"newer":     {func(g *wire.Greeting) { g.MinVersion, g.MaxVersion = 2, 9 }, errs.Unsupported},
		"older":     {func(g *wire.Greeting) { g.MinVersion, g.MaxVersion = 0, 0 }, errs.Unsupported},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, 64<<10, func(t *testing.T, nw *memNet, a, b *host) {
				p, status, g := dialRaw(t, nw, b, c.change)
				if status != c.want || c.want != errs.OK && g.Detail == "" {
					t.Errorf("status %v (%s), want %v", status, g.Detail, c.want)
				}
				if c.want != errs.OK && !p.closed() {
					t.Error("the connection stays open")
				}
				_ = p.Close()
			})
		})
	}
	bubble(t, 64<<10, func(t *testing.T, nw *memNet, a, b *host) {
		same := func(g *wire.Greeting) { g.Session = 5 }
		p, _, _ := dialRaw(t, nw, b, same)
		defer p.Close()
		q, status, _ := dialRaw(t, nw, b, same)
		defer q.Close()
		if status != errs.Invalid {
			t.Errorf("a second lane of the same number: %v", status)
		}
	})
}

// TestHalfOpen: connections that say nothing are closed after five seconds, and
// count: beyond the limit others are told, and far beyond closed at once.
func TestHalfOpen(t *testing.T) {
	bubble(t, 64<<10, func(t *testing.T, nw *memNet, a, b *host) {
		var silent []net.Conn
		open := func(n int) {
			for range n {
				c, err := nw.dial(context.Background(), b.desc.Addr)
				if err != nil {
					t.Fatal(err)
				}
				_, _ = c.Write(wire.PrefaceData[:])
				silent = append(silent, c)
			}
			synctest.Wait()
		}
		open(defaultLimits().MaxInbound)
		p, status, g := dialRaw(t, nw, b, nil)
		if status != errs.Overloaded || g.Detail == "" {
			t.Errorf("one too many: %v (%s)", status, g.Detail)
		}
		_ = p.Close()
		_, err := a.tr.Connect(context.Background(), &b.desc)
		if errs.Of(err) != errs.Overloaded {
			t.Errorf("connect to a full target: %v", err)
		}
		open(politeExtra)
		c, _ := nw.dial(context.Background(), b.desc.Addr)
		_, _ = c.Write(wire.PrefaceData[:])
		if !(&rawPeer{Conn: c}).closed() {
			t.Error("far beyond the limit a connection stays open")
		}
		_ = c.Close()
		time.Sleep(helloTimeout + time.Second)
		for _, c := range silent {
			if !(&rawPeer{Conn: c}).closed() {
				t.Fatal("a silent connection stays open")
			}
			_ = c.Close()
		}
		_ = a.connect(t, b)
	})
}

// liar is a target under the test's control: it answers the handshake and then
// does what a test wants.
func liar(t *testing.T, nw *memNet, g wire.Greeting, then func(p *rawPeer)) segment.Desc {
	l, err := nw.listen()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				var preface [8]byte
				_, _ = io.ReadFull(c, preface[:])
				_, hello, err := receiveGreeting(c, wire.Hello)
				if err != nil {
					return
				}
				answer := g
				answer.Features &= hello.Features
				_ = sendGreeting(c, wire.Welcome, errs.OK, &answer)
				then(&rawPeer{Conn: c})
			}()
		}
	}()
	return segment.Desc{Addr: l.Addr().String(), Incarnation: g.From}
}

func liarGreeting() wire.Greeting {
	return wire.Greeting{MinVersion: 1, MaxVersion: 1, From: 5, MaxFrame: wire.MaxFrame, Slots: 100, Bytes: 1 << 30, Features: uint64(wire.FeatureSums)}
}

// TestLyingTarget: answers that do not fit the requests end the lane; nothing is
// reported as done, and nothing outside a read's range is touched.
func TestLyingTarget(t *testing.T) {
	w := wire.MakeStream(false, wire.ToMemory, 1)
	r := wire.MakeStream(true, wire.ToMemory, 1)
	outs := func(o ...wire.Outcome) []byte {
		p := make([]byte, len(o)*wire.OutcomeSize)
		for k := range o {
			o[k].Put(p[k*wire.OutcomeSize:])
		}
		return p
	}
	ten, eleven := make([]byte, 10), make([]byte, 11)
	ok := wire.Outcome{Length: 10}
	for name, frame := range map[string][]byte{
		"ack before the payload": rawFrame(wire.Header{Type: wire.Ack, Stream: w, Seq: 1}, nil, nil, nil),
		"ack of nothing":         rawFrame(wire.Header{Type: wire.Ack, Stream: w, Seq: 0}, nil, nil, nil),
		"ack of too much":        rawFrame(wire.Header{Type: wire.Ack, Stream: w, Seq: 9}, nil, nil, nil),
		"ack of a read":          rawFrame(wire.Header{Type: wire.Ack, Stream: r, Seq: 1}, nil, nil, nil),
		"exception out of range": rawFrame(wire.Header{Type: wire.Ack, Stream: w, Seq: 1, Count: 1}, outs(wire.Outcome{Length: 2, Code: errs.Denied}), nil, nil),
		"data never asked for":   rawFrame(wire.Header{Type: wire.Data, Stream: r, Count: 2, Flags: wire.FlagSums}, outs(ok, ok), append(ten, ten...), rawTrailer(ten, ten)),
		"data out of order":      rawFrame(wire.Header{Type: wire.Data, Stream: r, Count: 1, Seq: 1, Flags: wire.FlagSums}, outs(ok), ten, rawTrailer(ten)),
		"data too long":          rawFrame(wire.Header{Type: wire.Data, Stream: r, Count: 1, Flags: wire.FlagSums}, outs(wire.Outcome{Length: 11}), eleven, rawTrailer(eleven)),
		"data too short":         rawFrame(wire.Header{Type: wire.Data, Stream: r, Count: 1, Flags: wire.FlagSums}, outs(wire.Outcome{Length: 9}), ten[:9], rawTrailer(ten[:9])),
		"failure with data":      rawFrame(wire.Header{Type: wire.Data, Stream: r, Count: 1, Flags: wire.FlagSums}, outs(wire.Outcome{Length: 10, Code: errs.Denied}), ten, rawTrailer(ten)),
		"data without sums":      rawFrame(wire.Header{Type: wire.Data, Stream: r, Count: 1}, outs(ok), ten, rawTrailer()),
		"data on a write's":      rawFrame(wire.Header{Type: wire.Data, Stream: w, Count: 1, Flags: wire.FlagSums}, outs(ok), ten, rawTrailer(ten)),
		"credit taken back":      rawFrame(wire.Header{Type: wire.Credit}, make([]byte, wire.GrantSize), nil, nil),
		"write to an initiator":  rawFrame(wire.Header{Type: wire.Write, Stream: w, Count: 1, Flags: wire.FlagSums}, rawDescs(wire.Desc{Length: 10, Key: 1}), ten, rawTrailer(ten)),
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, 8<<10, func(t *testing.T, nw *memNet, a, _ *host) {
				desc := liar(t, nw, liarGreeting(), func(p *rawPeer) {
					p.frame(t) // the Read
					_, _ = p.Write(frame)
					time.Sleep(time.Minute)
				})
				ep, err := a.tr.Connect(context.Background(), &desc)
				if err != nil {
					t.Fatal(err)
				}
				local := bytes.Repeat([]byte{1}, 20)
				a.post(t, ep.(*Endpoint), []transport.Slice{read(&segment.Buffer{Key: 1}, local[:10], 1), write(&segment.Buffer{Key: 1}, make([]byte, 1<<20), 2)})
				for tag := transport.Tag(1); tag <= 2; tag++ {
					if c := a.sink.wait(t, tag); c.Code == errs.OK || c.Code == errs.Unresponsive && tag == 1 {
						t.Errorf("slice %d: %+v, want its lane ended", tag, c)
					}
				}
				if !bytes.Equal(local[10:], bytes.Repeat([]byte{1}, 10)) {
					t.Error("bytes after the read's range were touched")
				}
				_ = ep.Close()
				time.Sleep(2 * time.Minute)
			})
		})
	}
}

// TestCorruption: a flipped bit of payload fails its own slice with a checksum
// error, in both directions; its neighbours in the frame are fine.
func TestCorruption(t *testing.T) {
	bubble(t, 64<<10, func(t *testing.T, nw *memNet, a, b *host) {
		mem := make([]byte, 30)
		b.memory.add(mem, segment.ReadWrite)
		p, _, _ := dialRaw(t, nw, b, nil)
		defer p.Close()
		payload := bytes.Repeat([]byte{3}, 30)
		trailer := rawTrailer(payload[:10], payload[10:20], payload[20:])
		payload[15] ^= 0x40
		_, _ = p.Write(rawFrame(wire.Header{Type: wire.Write, Flags: wire.FlagSums, Count: 3},
			rawDescs(wire.Desc{Length: 10, Key: 1}, wire.Desc{Offset: 10, Length: 10, Key: 1}, wire.Desc{Offset: 20, Length: 10, Key: 1}), payload, trailer))
		h, meta := p.frame(t)
		if h.Type != wire.Ack || h.Seq != 3 || h.Count != 1 || wire.ParseException(meta) != (wire.Exception{Back: 2, Code: errs.Checksum}) {
			t.Errorf("answer %+v %x, want one checksum exception for the second of three", h, meta)
		}
	})
	bubble(t, 64<<10, func(t *testing.T, nw *memNet, a, _ *host) {
		desc := liar(t, nw, liarGreeting(), func(p *rawPeer) {
			h, _ := p.frame(t)
			payload := bytes.Repeat([]byte{3}, 20)
			trailer := rawTrailer(payload[:10], payload[10:])
			payload[3] ^= 1
			out := make([]byte, 2*wire.OutcomeSize)
			wire.Outcome{Length: 10}.Put(out)
			wire.Outcome{Length: 10}.Put(out[wire.OutcomeSize:])
			_, _ = p.Write(rawFrame(wire.Header{Type: wire.Data, Flags: wire.FlagSums, Stream: h.Stream, Count: 2}, out, payload, trailer))
			h, _ = p.frame(t)
			if h.Type != wire.Read || h.Flags&wire.FlagSnapshot == 0 {
				t.Errorf("the second try is %+v, want a read of a snapshot", h)
			}
			time.Sleep(time.Second)
		})
		ep, err := a.tr.Connect(context.Background(), &desc)
		if err != nil {
			t.Fatal(err)
		}
		buf := &segment.Buffer{Key: 1}
		a.post(t, ep.(*Endpoint), []transport.Slice{read(buf, make([]byte, 10), 1), read(buf, make([]byte, 10), 2)})
		if c, d := a.sink.wait(t, 1), a.sink.wait(t, 2); c.Code != errs.Checksum || d.Code != errs.OK {
			t.Errorf("%+v, %+v; want a checksum error and a success", c, d)
		}
		if n := ep.(*Endpoint).Observe()[0].Checksums; n != 1 {
			t.Errorf("%d mismatches counted, want 1", n)
		}
		again := read(buf, make([]byte, 10), 3)
		again.Retry = 1
		a.post(t, ep.(*Endpoint), []transport.Slice{again})
		_ = ep.Close()
		time.Sleep(time.Minute)
	})
}

// TestFenceFlood: a peer that asks for fences and takes no answers loses its own
// lane, and nobody else loses anything.
func TestFenceFlood(t *testing.T) {
	bubble(t, 1<<10, func(t *testing.T, nw *memNet, a, b *host) {
		p, _, _ := dialRaw(t, nw, b, nil)
		defer p.Close()
		unknown := rawFrame(wire.Header{Type: wire.Fence, Seq: 99}, binary.LittleEndian.AppendUint64(nil, 5), nil, nil)
		for range 10_000 { // their answers are more than one plan holds
			if _, err := p.Write(unknown); err != nil {
				break
			}
		}
		synctest.Wait()
		if _, err := io.Copy(io.Discard, p); err != nil {
			t.Log("the lane ended with", err)
		}
		buf := b.memory.add(make([]byte, 50), segment.ReadWrite)
		a.post(t, a.connect(t, b), []transport.Slice{write(buf, make([]byte, 50), 1)})
		wantAll(t, a, []transport.Slice{{Tag: 1}})
	})
}
