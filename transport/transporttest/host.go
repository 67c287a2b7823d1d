package transporttest

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/topology"
	"github.com/tideway-io/tideway/transport"
)

// world is a few engines' worth of environment in one process: hosts that know
// each other, each with a listener, a registry, a sink and the transport under
// test. It checks, when it ends, that every slice completed, that every pin came
// back and that nothing was left running.
type world struct {
	testing.TB
	cfg    *Config
	limits transport.Limits
	driver transport.Driver
	seed   uint64
	tags   struct {
		sync.Mutex
		last transport.Tag
	}
	mu struct {
		sync.Mutex
		hosts map[segment.Incarnation]*host
		order []*host
		frees []func() error // of memory that transports allocated
	}
}

// host is one engine: what Env lends, and the transport opened with it.
type host struct {
	*world
	label    string
	self     segment.Incarnation
	addr     string
	listener net.Listener
	serving  sync.WaitGroup
	wire     *wire
	reg      *registry
	sink     *sink
	tr       transport.Transport
	flows    []*flow

	mu struct {
		sync.Mutex
		handlers map[[8]byte]func(net.Conn)
		answer   func(context.Context, segment.Incarnation, []byte) ([]byte, error)
		buffers  []*buffer
		version  uint64
		closed   bool
		opening  map[net.Conn]bool // accepted, preface not yet read
		further  []net.Listener    // of the transport alone
	}
}

// buffer is a registered range with untouchable zones on both sides.
type buffer struct {
	*entry
	host  *host
	whole []byte // zone, range, zone; nil for a file
	zone  key
}

// zoneSize is the size of the zones around a buffer.
const zoneSize = 4096

// newWorld prepares a world; it ends with the test. set, if not nil, changes
// the limits.
func newWorld(t testing.TB, cfg *Config, set func(*transport.Limits)) *world {
	t.Helper()
	w := &world{TB: t, cfg: cfg, driver: cfg.Driver(), seed: rand.Uint64()}
	w.Logf("seed %#x", w.seed)
	w.limits = transport.Limits{
		StallTimeout: time.Minute, Lanes: 1, Checksum: true, MaxFrame: 1 << 20, MaxInbound: 64,
	}
	if set != nil {
		set(&w.limits)
	}
	w.mu.hosts = map[segment.Incarnation]*host{}
	if warm, err := newWire(); err == nil { // the first socket of a process opens the runtime's poller for good
		warm.close()
	}
	base := footprint()
	t.Cleanup(func() {
		for _, h := range w.mu.order {
			h.close()
		}
		for _, free := range w.mu.frees { // not earlier: checks look at memory of hosts that have closed
			if err := free(); err != nil {
				t.Errorf("free memory that a transport allocated: %v", err)
			}
		}
		base.check(t, w.cfg.Patience)
	})
	return w
}

// pair returns an initiator and a target; they are the same host when the
// transport joins an engine only with itself.
func (w *world) pair() (from, to *host) {
	w.Helper()
	from = w.host("initiator")
	if from.tr.Caps().OwnOnly {
		return from, from
	}
	return from, w.host("target")
}

// third returns one more host that can reach to.
func (w *world) third(to *host) *host {
	w.Helper()
	if to.tr.Caps().OwnOnly {
		return to
	}
	return w.host("third")
}

// host starts a new one on a free port.
func (w *world) host(label string) *host {
	w.Helper()
	return w.hostAt(label, "127.0.0.1:0")
}

// hostAt starts a new host that listens on addr.
func (w *world) hostAt(label, addr string) *host {
	w.Helper()
	h := &host{world: w, label: label, self: segment.Incarnation(rand.Uint64() | 1), reg: newRegistry(), sink: newSink()}
	h.mu.handlers = map[[8]byte]func(net.Conn){}
	h.mu.opening = map[net.Conn]bool{}
	var err error
	listening := eventually(w.cfg.Patience, func() bool { // the port of a host that just ended may linger
		h.listener, err = net.Listen("tcp", addr)
		return err == nil
	})
	if !listening {
		w.Fatalf("listen on %s: %v", addr, err)
	}
	h.addr = h.listener.Addr().String()
	if h.wire, err = newWire(); err != nil {
		w.Fatalf("start the wire: %v", err)
	}
	h.serving.Go(h.serve)
	w.mu.Lock()
	w.mu.hosts[h.self] = h
	w.mu.order = append(w.mu.order, h)
	w.mu.Unlock()
	if h.tr, err = w.driver.Open(w.Context(), h.env()); err != nil {
		w.Fatalf("open %s: %v", w.driver.Name(), err)
	}
	return h
}

// env is what the host lends its transport.
func (h *host) env() transport.Env {
	return transport.Env{
		Sink: h.sink, Memory: h.reg, Logger: slog.New(slog.DiscardHandler),
		Now: time.Now, Rand: rand.Uint64,
		Self: transport.Self{Incarnation: h.self, Name: func() segment.Name { return segment.Name(h.addr) }},
		Dial: func(ctx context.Context, addr string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			return h.wire.dial(ctx, addr)
		},
		Accept: h.accept, Listen: h.listen, Exchange: h.exchange, Answer: h.setAnswer,
		Limits: h.limits,
	}
}

// accept records who takes the connections that start with preface.
func (h *host) accept(preface [8]byte, handle func(net.Conn)) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.mu.handlers[preface] != nil {
		return errs.New(errs.Invalid, "accept", "preface %q is taken", preface)
	}
	h.mu.handlers[preface] = handle
	return nil
}

// prefaces returns those that the transport takes.
func (h *host) prefaces() (out [][8]byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for p := range h.mu.handlers {
		out = append(out, p)
	}
	return out
}

// door is where strangers come in: an address, and what they say first.
type door struct {
	addr    string
	preface []byte
}

// doors returns those that the transport serves.
func (h *host) doors() (out []door) {
	for _, p := range h.prefaces() {
		out = append(out, door{h.addr, p[:]})
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, l := range h.mu.further {
		out = append(out, door{l.Addr().String(), nil})
	}
	return out
}

// listen opens a port for the transport alone.
func (h *host) listen(_ context.Context, _ [2]uint16, handle func([8]byte, net.Conn)) (uint16, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	h.mu.Lock()
	h.mu.further = append(h.mu.further, l)
	h.mu.Unlock()
	h.serving.Go(func() {
		h.accepting(l, func([8]byte) func([8]byte, net.Conn) { return handle })
	})
	return uint16(l.Addr().(*net.TCPAddr).Port), nil
}

// serve hands accepted connections out by their first eight bytes.
func (h *host) serve() {
	h.accepting(h.listener, func(preface [8]byte) func([8]byte, net.Conn) {
		handle := h.mu.handlers[preface]
		if handle == nil {
			return nil
		}
		return func(_ [8]byte, c net.Conn) { handle(c) }
	})
}

// accepting accepts until l is closed. choose is called with h.mu held.
func (h *host) accepting(l net.Listener, choose func([8]byte) func([8]byte, net.Conn)) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		h.serving.Go(func() { h.greet(c, choose) })
	}
}

func (h *host) greet(c net.Conn, choose func([8]byte) func([8]byte, net.Conn)) {
	h.mu.Lock()
	if h.mu.closed {
		h.mu.Unlock()
		_ = c.Close()
		return
	}
	h.mu.opening[c] = true
	h.mu.Unlock()
	var preface [8]byte
	_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
	_, err := io.ReadFull(c, preface[:])
	_ = c.SetReadDeadline(time.Time{})
	h.mu.Lock()
	delete(h.mu.opening, c)
	handle, closed := choose(preface), h.mu.closed
	h.mu.Unlock()
	if err != nil || handle == nil || closed {
		_ = c.Close()
		return
	}
	handle(preface, c)
}

// exchange asks the peer's transport, as the control connection would: by
// incarnation, bounded, and with errors that keep only code and text.
func (h *host) exchange(ctx context.Context, peer *segment.Desc, body []byte) ([]byte, error) {
	h.world.mu.Lock()
	to := h.world.mu.hosts[peer.Incarnation]
	h.world.mu.Unlock()
	if to == nil {
		return nil, errs.New(errs.Unreachable, "exchange", "nobody is %v", peer.Incarnation)
	}
	to.mu.Lock()
	answer := to.mu.answer
	to.mu.Unlock()
	if answer == nil {
		return nil, errs.New(errs.Unsupported, "exchange", "the peer has no answer")
	}
	if len(body) > 64<<10 {
		return nil, errs.New(errs.Invalid, "exchange", "%d bytes exceed 64 KiB", len(body))
	}
	reply, err := answer(ctx, h.self, append([]byte(nil), body...))
	if err != nil {
		return nil, errs.New(errs.Of(err), "exchange", "%s", err.Error())
	}
	return append([]byte(nil), reply...), nil
}

func (h *host) setAnswer(f func(context.Context, segment.Incarnation, []byte) ([]byte, error)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.answer = f
}

// desc is what the host publishes now.
func (h *host) desc() *segment.Desc {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.version++
	d := &segment.Desc{
		Name: segment.Name(h.addr), Incarnation: h.self, Version: h.mu.version, Addr: h.addr,
		Transports: []string{h.driver.Name()}, Host: "transporttest", Protocol: "tcp",
	}
	for _, b := range h.mu.buffers {
		if b.buf.Access != segment.LocalOnly {
			d.Buffers = append(d.Buffers, b.buf)
		}
	}
	if p, ok := transport.As[transport.Publisher](h.tr); ok {
		p.Publish(d)
	}
	d.Seal()
	return d
}

// memory registers n bytes, zones on both sides, filled with zeros.
func (h *host) memory(n int, access segment.Access) *buffer {
	h.Helper()
	whole := h.alloc(n + 2*zoneSize)
	b := &buffer{host: h, whole: whole, zone: key(mix(h.seed ^ uint64(len(h.mu.buffers))))}
	b.zone.fill(whole[:zoneSize], 0)
	b.zone.fill(whole[zoneSize+n:], uint64(zoneSize+n))
	mem := whole[zoneSize : zoneSize+n : zoneSize+n]
	desc := segment.Buffer{
		Name: fmt.Sprintf("b%d", len(h.mu.buffers)), Length: uint64(n), Location: "cpu:0", Access: access,
		Addr: uint64(reflect.ValueOf(whole).Pointer()) + zoneSize,
	}
	return h.register(b, desc, mem, nil)
}

// file registers a file of n zero bytes.
func (h *host) file(n int, access segment.Access) *buffer {
	h.Helper()
	f, err := os.Create(filepath.Join(h.TempDir(), "target"))
	if err == nil {
		err = f.Truncate(int64(n))
	}
	if err != nil {
		h.Fatalf("make a file: %v", err)
	}
	desc := segment.Buffer{
		Name: fmt.Sprintf("f%d", len(h.mu.buffers)), Length: uint64(n), Location: topology.File, Access: access,
		Source: segment.Source{Size: uint64(n)},
	}
	return h.register(&buffer{host: h}, desc, nil, f)
}

// alloc returns n bytes, from the transport where it has a say.
func (h *host) alloc(n int) []byte {
	h.Helper()
	a, ok := transport.As[transport.Allocator](h.tr)
	if !ok {
		return make([]byte, n)
	}
	mem, free, err := a.Alloc(uint64(n), "cpu:0")
	if err != nil {
		h.Fatalf("alloc %d bytes: %v", n, err)
	}
	h.world.mu.Lock()
	h.world.mu.frees = append(h.world.mu.frees, free)
	h.world.mu.Unlock()
	return mem
}

func (h *host) register(b *buffer, desc segment.Buffer, mem []byte, f *os.File) *buffer {
	h.Helper()
	b.entry = h.reg.add(desc, mem, f)
	attrs, err := h.tr.Register(h.Context(), &b.buf)
	if err != nil {
		h.Fatalf("register %d bytes: %v", desc.Length, err)
	}
	if attrs != nil { // published ones are never changed, so this is a new one
		h.reg.mu.Lock()
		b.buf.Attrs = map[string][]byte{h.driver.Name(): attrs}
		h.reg.mu.Unlock()
	}
	h.mu.Lock()
	h.mu.buffers = append(h.mu.buffers, b)
	h.mu.Unlock()
	return b
}

// published returns a copy of what peers see of b.
func (b *buffer) published() *segment.Buffer {
	b.host.reg.mu.Lock()
	defer b.host.reg.mu.Unlock()
	c := b.buf
	return &c
}

// close takes the buffer back as an engine does: no new pins, unreachable, then
// quiet. It returns an error if that takes longer than d.
func (b *buffer) close(d time.Duration) error {
	b.host.reg.revoke(b.entry)
	if err := b.host.unregister(b); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	return b.host.reg.quiesce(ctx, b.entry)
}

func (h *host) unregister(b *buffer) error {
	h.mu.Lock()
	for i, o := range h.mu.buffers {
		if o == b {
			h.mu.buffers = append(h.mu.buffers[:i], h.mu.buffers[i+1:]...)
			break
		}
	}
	h.mu.Unlock()
	err := h.tr.Unregister(b.published())
	if b.entry.file != nil {
		_ = b.entry.file.Close()
	}
	return err
}

// fill writes the pattern of k over the whole range, so that a byte's offset in
// the buffer is its offset in the pattern.
func (b *buffer) fill(k key) { b.fillRange(k, 0, b.buf.Length) }

func (b *buffer) fillRange(k key, off, n uint64) {
	b.host.Helper()
	b.host.reg.sync()
	defer b.host.reg.sync()
	if b.file == nil {
		k.fill(b.mem[off:off+n], off)
		return
	}
	p := make([]byte, n)
	k.fill(p, off)
	if _, err := b.file.WriteAt(p, int64(off)); err != nil {
		b.host.Errorf("fill the file: %v", err)
	}
}

// look returns the bytes of a range as they are now.
func (b *buffer) look(off, n uint64) []byte {
	b.host.Helper()
	b.host.reg.sync()
	defer b.host.reg.sync()
	if b.file == nil {
		return b.mem[off : off+n]
	}
	p := make([]byte, n)
	if _, err := b.file.ReadAt(p, int64(off)); err != nil {
		b.host.Errorf("read the file: %v", err)
	}
	return p
}

// differs returns the offset of the first byte in the range that is not the
// pattern of k, or -1.
func (b *buffer) differs(k key, off, n uint64) int {
	if i := k.differs(b.look(off, n), off); i >= 0 {
		return i + int(off)
	}
	return -1
}

// intact fails the test if the zones around the range were touched.
func (b *buffer) intact() {
	b.host.Helper()
	if b.whole == nil {
		return
	}
	n := uint64(len(b.whole))
	if i := b.zone.differs(b.whole[:zoneSize], 0); i >= 0 {
		b.host.Errorf("the byte %d before buffer %s was written", zoneSize-i, b.buf.Name)
	}
	if i := b.zone.differs(b.whole[n-zoneSize:], n-zoneSize); i >= 0 {
		b.host.Errorf("the byte %d after the end of buffer %s was written", i, b.buf.Name)
	}
}

// close ends the host as an engine does: endpoints, buffers, transport,
// listener, accepted connections. It is safe to call twice.
func (h *host) close() {
	h.Helper()
	h.mu.Lock()
	if h.mu.closed {
		h.mu.Unlock()
		return
	}
	h.mu.closed = true
	for c := range h.mu.opening {
		_ = c.Close()
	}
	buffers, further := append([]*buffer(nil), h.mu.buffers...), h.mu.further
	h.mu.Unlock()
	for _, l := range append(further, h.listener) {
		_ = l.Close()
	}
	for _, f := range h.flows {
		f.close()
	}
	for _, b := range buffers {
		if err := b.close(h.cfg.Patience); err != nil {
			h.Errorf("close buffer %s of the %s: %v", b.buf.Name, h.label, err)
		}
		b.intact()
	}
	if h.tr != nil {
		h.within("Transport.Close", func() {
			if err := h.tr.Close(); err != nil {
				h.Errorf("close the transport of the %s: %v", h.label, err)
			}
		})
	}
	h.wire.close()
	h.within("the handlers given to Accept", h.serving.Wait)
	h.world.mu.Lock()
	delete(h.world.mu.hosts, h.self)
	h.world.mu.Unlock()
	if !h.reg.settled(h.cfg.Patience) {
		h.Errorf("%d pins were not given back by the %s", h.reg.held(), h.label)
	}
	for _, f := range h.sink.faults() {
		h.Errorf("%s: %s", h.label, f)
	}
	if open := h.sink.accepted(); len(open) > 0 {
		h.Errorf("%d slices of the %s never completed, the first is %d", len(open), h.label, open[0])
	}
}

// within fails the test if f takes longer than patience allows.
func (h *host) within(what string, f func()) {
	h.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(h.cfg.Patience):
		h.Fatalf("%s of the %s did not end in %v\n%s", what, h.label, h.cfg.Patience, stacks())
	}
}
