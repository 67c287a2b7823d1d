package transporttest

import (
	"bytes"
	"context"
	"math/rand/v2"
	"net"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
)

// attack is one way for a stranger to misuse the listener. The connection has
// sent the preface; session is what an honest initiator once sent after it.
type attack struct {
	name string
	send func(c net.Conn, session []byte, rng *rand.Rand)
}

// write sends p for as long as the victim takes it, but not for ever.
func write(c net.Conn, p []byte) {
	_ = c.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
	_, _ = c.Write(p)
}

// noise returns n random bytes.
func noise(rng *rand.Rand, n int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(rng.Uint32())
	}
	return p
}

// falsify flips a few bytes of p, early ones more often.
func falsify(p []byte, rng *rand.Rand) []byte {
	p = append([]byte(nil), p...)
	for range 1 + rng.IntN(4) {
		if n := min(len(p), 1<<(3+rng.IntN(14))); n > 0 {
			p[rng.IntN(n)] ^= byte(1 + rng.IntN(255))
		}
	}
	return p
}

var attacks = []attack{
	{"silence", func(net.Conn, []byte, *rand.Rand) {}},
	{"an end", func(c net.Conn, _ []byte, _ *rand.Rand) { _ = c.(*net.TCPConn).CloseWrite() }},
	{"noise", func(c net.Conn, _ []byte, rng *rand.Rand) { write(c, noise(rng, 64<<10)) }},
	{"zeros", func(c net.Conn, _ []byte, _ *rand.Rand) { write(c, make([]byte, 1<<20)) }},
	{"ones", func(c net.Conn, _ []byte, _ *rand.Rand) { write(c, bytes.Repeat([]byte{0xff}, 64<<10)) }},
	{"one byte", func(c net.Conn, session []byte, _ *rand.Rand) { write(c, session[:min(1, len(session))]) }},
	{"a session, falsified", func(c net.Conn, session []byte, rng *rand.Rand) { write(c, falsify(session, rng)) }},
	{"a session, cut short", func(c net.Conn, session []byte, rng *rand.Rand) {
		write(c, session[:rng.IntN(len(session)+1)])
		_ = c.(*net.TCPConn).SetLinger(0)
		_ = c.Close()
	}},
	{"a session, then noise", func(c net.Conn, session []byte, rng *rand.Rand) {
		write(c, slices.Concat(session[:rng.IntN(len(session)+1)], noise(rng, 4096)))
	}},
	{"a session, its answers never read", func(c net.Conn, session []byte, _ *rand.Rand) {
		for range 64 {
			write(c, session)
		}
	}},
}

// checkHostile: "One bad peer costs only its own transfers. No panic, no exit, no
// stall for others, bounded memory, whatever arrives."
//
// Strangers connect, more at a time than may be accepted, and send nothing,
// noise, and falsified recordings of an honest session, while an honest
// initiator moves bytes to the same target and checks each.
func checkHostile(t testing.TB, cfg *Config) {
	w := newWorld(t, cfg, func(l *transport.Limits) { l.StallTimeout = 5 * time.Second; l.MaxInbound = 16 })
	from, to := w.pair()
	h := &hostileCheck{from: from, to: to, rng: rand.New(rand.NewPCG(w.seed, 13))}
	if len(to.doors()) == 0 {
		t.Skipf("the transport accepts no connections")
	}
	h.session = h.recordSession()
	f := from.connect(to)
	local, target := from.memory(honestSize, segment.LocalOnly), to.memory(honestSize, segment.ReadWrite)
	h.honest(f, local, target, "before any attack")
	base, heap := footprint(), liveHeap()
	for _, a := range attacks {
		conns := h.mount(a)
		h.honest(f, local, target, "during "+a.name)
		if now := footprint(); now.goroutines > base.goroutines+8*w.limits.MaxInbound+2*len(conns) {
			t.Errorf("%s: %d goroutines for %d connections, where there were %d before", a.name, now.goroutines, len(conns), base.goroutines)
		}
		if now, limit := liveHeap(), heap+uint64(4*w.limits.MaxInbound)<<20; now > limit {
			t.Errorf("%s: the heap holds %d bytes, where it held %d before; want at most %d", a.name, now, heap, limit)
		}
		for _, c := range conns {
			_ = c.Close()
		}
		target.intact()
	}
	f.close()
	g := from.reconnect(to)
	h.honest(g, local, target, "after the attacks, on a new endpoint")
	h.falseTarget(g, local, target)
	slowNeighbours(t, cfg)
}

// liveHeap returns the bytes of what can be reached.
func liveHeap() uint64 {
	runtime.GC()
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	return mem.HeapAlloc
}

const honestSize = 256 << 10

type hostileCheck struct {
	from, to *host
	rng      *rand.Rand
	session  []byte // what an honest initiator sends after the preface
	answers  []byte // what it was answered
	round    uint64
}

// recordSession returns what an honest initiator sends after the preface of a
// connection that carries WRITEs to a buffer that is closed afterwards, so that
// many strangers may replay them at once, and READs from one that stays.
func (h *hostileCheck) recordSession() []byte {
	h.from.Helper()
	h.from.wire.setRecord(true)
	defer h.from.wire.setRecord(false)
	f := h.from.connect(h.to)
	const n, cell = 32, 16 << 10
	local := h.from.memory(n*cell, segment.LocalOnly)
	targets := []*buffer{h.to.memory(n*cell, segment.RemoteRead), h.to.memory(n*cell, segment.RemoteWrite)}
	s := make([]transport.Slice, n)
	for i := range s {
		s[i] = slice(transport.Op(1+i%2), local.mem[i*cell:(i+1)*cell], targets[i%2].published(), uint64(i*cell))
	}
	f.do(s, nil)
	session := h.from.wire.longest(up)
	h.answers = h.from.wire.longest(down)
	f.close()
	if err := targets[1].close(h.from.cfg.Patience); err != nil {
		h.from.Fatalf("close the buffer of the recorded session: %v", err)
	}
	return session[min(len(h.to.doors()[0].preface), len(session)):]
}

// falseTarget has the initiator connect to somebody who is not what was
// published. That ends, one way or the other, and what is posted to it too; the
// honest endpoint g does not notice.
func (h *hostileCheck) falseTarget(g *flow, local, target *buffer) {
	h.from.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		h.from.Fatalf("listen: %v", err)
	}
	defer l.Close()
	desc := *h.to.desc()
	desc.Addr = l.Addr().String()
	desc.Name, desc.TCPDataPort = segment.Name(desc.Addr), uint16(l.Addr().(*net.TCPAddr).Port)
	scratch := h.from.memory(honestSize, segment.LocalOnly)
	for _, a := range attacks {
		var serving sync.WaitGroup
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		rng := rand.New(rand.NewPCG(h.from.seed, h.rng.Uint64()))
		serving.Go(func() { h.playTarget(ctx, l.(*net.TCPListener), a, rng) })
		h.from.within("Connect to "+a.name, func() {
			ep, err := h.from.tr.Connect(ctx, &desc)
			if err != nil {
				return
			}
			f := &flow{from: h.from, to: h.to, ep: ep}
			s := []transport.Slice{slice(transport.Read, scratch.mem, target.published(), 0), slice(transport.Write, scratch.mem, target.published(), 0)}
			tags := h.from.tag(s)
			n, _ := f.post(s, nil)
			h.from.sink.wait(tags[:n], h.from.cfg.Prompt/5) // some of them may
			f.close()
		})
		cancel()
		serving.Wait()
		h.honest(g, local, target, "beside a target that answers with "+a.name)
	}
}

// playTarget accepts connections until ctx ends and answers each with a.
func (h *hostileCheck) playTarget(ctx context.Context, l *net.TCPListener, a attack, rng *rand.Rand) {
	stop := context.AfterFunc(ctx, func() { _ = l.SetDeadline(time.Now()) })
	defer func() {
		stop()
		_ = l.SetDeadline(time.Time{})
	}()
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		a.send(c, h.answers, rng)
	}
}

// mount opens three times as many connections as may be accepted.
func (h *hostileCheck) mount(a attack) (conns []net.Conn) {
	h.from.Helper()
	doors := h.to.doors()
	var sending sync.WaitGroup
	for i := range 3 * h.from.limits.MaxInbound {
		d := doors[i%len(doors)]
		c, err := net.Dial("tcp", d.addr)
		if err != nil {
			h.from.Errorf("%s: dial: %v", a.name, err)
			continue
		}
		conns = append(conns, c)
		rng := rand.New(rand.NewPCG(h.from.seed, h.rng.Uint64()))
		sending.Go(func() {
			write(c, d.preface)
			a.send(c, h.session, rng)
		})
	}
	sending.Wait()
	return conns
}

// honest moves a few patterns there and back and checks them.
func (h *hostileCheck) honest(f *flow, local, target *buffer, when string) {
	h.from.Helper()
	for range 4 {
		h.round++
		data := key(mix(h.from.seed + h.round))
		data.fill(local.mem, 0)
		f.do([]transport.Slice{slice(transport.Write, local.mem, target.published(), 0)}, nil)
		if at := target.differs(data, 0, honestSize); at >= 0 {
			h.from.Errorf("%s: byte %d of an honest WRITE is wrong", when, at)
		}
		key(0).fill(local.mem, 0)
		f.do([]transport.Slice{slice(transport.Read, local.mem, target.published(), 0)}, nil)
		if at := data.differs(local.mem, 0); at >= 0 {
			h.from.Errorf("%s: byte %d of an honest READ is wrong", when, at)
		}
	}
}
