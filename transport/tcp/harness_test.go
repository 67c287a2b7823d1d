package tcp

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/wire"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
)

// region is a buffer of a testMemory.
type region struct {
	m       *testMemory
	buf     segment.Buffer
	bytes   []byte
	file    transport.File
	pins    int
	revoked bool
}

// testMemory is a registry: keys, bounds, access, and revocation that waits for
// pins.
type testMemory struct {
	mu      sync.Mutex
	idle    *sync.Cond
	regions map[segment.Key]*region
}

func newTestMemory() *testMemory {
	m := &testMemory{regions: map[segment.Key]*region{}}
	m.idle = sync.NewCond(&m.mu)
	return m
}

func (m *testMemory) add(b []byte, access segment.Access) *segment.Buffer {
	m.mu.Lock()
	defer m.mu.Unlock()
	key := segment.Key(len(m.regions) + 1)
	r := &region{m: m, bytes: b, buf: segment.Buffer{Key: key, Length: uint64(len(b)), Access: access, Location: "cpu:0"}}
	m.regions[key] = r
	return &r.buf
}

func (m *testMemory) addFile(f transport.File, n uint64, access segment.Access) *segment.Buffer {
	m.mu.Lock()
	defer m.mu.Unlock()
	key := segment.Key(len(m.regions) + 1)
	r := &region{m: m, file: f, buf: segment.Buffer{Key: key, Length: n, Access: access, Location: "file"}}
	m.regions[key] = r
	return &r.buf
}

// revoke makes a key fail and waits until nobody uses its memory.
func (m *testMemory) revoke(key segment.Key) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.regions[key]
	r.revoked = true
	for r.pins > 0 {
		m.idle.Wait()
	}
}

func (m *testMemory) pinned() (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.regions {
		n += r.pins
	}
	return n
}

func (m *testMemory) Pin(op transport.Op, key segment.Key, offset, length uint64) (transport.Pin, errs.Code) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.regions[key]
	need := segment.RemoteRead
	if op == transport.Write {
		need = segment.RemoteWrite
	}
	switch {
	case r == nil:
		return transport.Pin{}, errs.NotRegistered
	case r.revoked:
		return transport.Pin{}, errs.Revoked
	case r.buf.Access&need == 0:
		return transport.Pin{}, errs.Denied
	case offset > r.buf.Length || length > r.buf.Length-offset:
		return transport.Pin{}, errs.OutOfRange
	}
	r.pins++
	p := transport.Pin{Holder: r}
	if r.file != nil {
		p.File, p.Offset = r.file, int64(offset)
	} else {
		p.Bytes = r.bytes[offset : offset+length : offset+length]
	}
	return p, errs.OK
}

func (m *testMemory) PinAddr(transport.Op, uint64, uint64) (transport.Pin, errs.Code) {
	return transport.Pin{}, errs.Unsupported
}

func (r *region) Unpin() {
	r.m.mu.Lock()
	if r.pins--; r.pins == 0 {
		r.m.idle.Broadcast()
	}
	r.m.mu.Unlock()
}

// testSink keeps completions by tag and notices a second one for the same slice.
type testSink struct {
	mu    sync.Mutex
	more  *sync.Cond
	done  map[transport.Tag]transport.Completion
	twice []transport.Tag
	hook  func(transport.Completion)
}

func newTestSink() *testSink {
	s := &testSink{done: map[transport.Tag]transport.Completion{}}
	s.more = sync.NewCond(&s.mu)
	return s
}

func (s *testSink) Complete(done []transport.Completion) {
	s.mu.Lock()
	hook := s.hook
	for _, c := range done {
		if _, ok := s.done[c.Tag]; ok {
			s.twice = append(s.twice, c.Tag)
		}
		s.done[c.Tag] = c
	}
	s.mu.Unlock()
	if hook != nil {
		for _, c := range done {
			hook(c)
		}
	}
	s.mu.Lock()
	s.more.Broadcast()
	s.mu.Unlock()
}

// wait returns the completion of a slice.
func (s *testSink) wait(t testing.TB, tag transport.Tag) transport.Completion {
	t.Helper()
	stop := time.AfterFunc(time.Minute, func() { s.mu.Lock(); s.more.Broadcast(); s.mu.Unlock() })
	defer stop.Stop()
	deadline := time.Now().Add(time.Minute)
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		if c, ok := s.done[tag]; ok {
			return c
		}
		if !time.Now().Before(deadline) {
			t.Fatalf("slice %d has not completed within a minute", tag)
		}
		s.more.Wait()
	}
}

func (s *testSink) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.done)
}

func (s *testSink) doubles() []transport.Tag {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.twice
}

// network is where hosts listen and dial: the loopback interface or memory.
type network interface {
	listen() (net.Listener, error)
	dial(ctx context.Context, addr string) (net.Conn, error)
}

type loopback struct{}

func (loopback) listen() (net.Listener, error) { return net.Listen("tcp", "127.0.0.1:0") }
func (loopback) dial(ctx context.Context, addr string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "tcp", addr)
}

// host is one engine around a transport: a listener, a registry and a sink.
type host struct {
	memory *testMemory
	sink   *testSink
	tr     *Transport
	l      net.Listener
	more   []net.Listener // beside l
	desc   segment.Desc
	handle func(net.Conn)
	wg     sync.WaitGroup
	stop   sync.Once
	skew   atomic.Int64 // by how much its clock is ahead
}

func defaultLimits() transport.Limits {
	return transport.Limits{StallTimeout: 10 * time.Second, Lanes: 1, Checksum: true, MaxFrame: wire.MaxFrame, MaxInbound: 64}
}

func newHost(t testing.TB, nw network, limits transport.Limits) *host {
	t.Helper()
	h := &host{memory: newTestMemory(), sink: newTestSink()}
	var err error
	if h.l, err = nw.listen(); err != nil {
		t.Fatal(err)
	}
	h.desc = segment.Desc{Name: segment.Name(h.l.Addr().String()), Addr: h.l.Addr().String(), Incarnation: segment.Incarnation(random())}
	env := transport.Env{
		Sink: h.sink, Memory: h.memory, Now: func() time.Time { return time.Now().Add(time.Duration(h.skew.Load())) }, Rand: random, Limits: limits,
		Self: transport.Self{Incarnation: h.desc.Incarnation},
		Dial: nw.dial,
		Accept: func(_ [8]byte, f func(net.Conn)) error {
			h.handle = f
			return nil
		},
	}
	tr, err := New().Open(context.Background(), env)
	if err != nil {
		t.Fatal(err)
	}
	h.tr = tr.(*Transport)
	h.wg.Go(func() { h.accept(h.l) })
	t.Cleanup(h.close)
	return h
}

func (h *host) accept(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		h.wg.Go(func() {
			expire := time.AfterFunc(helloTimeout, func() { _ = c.Close() })
			var preface [8]byte
			if _, err := io.ReadFull(c, preface[:]); err != nil || preface != wire.PrefaceData {
				_ = c.Close()
				return
			}
			expire.Stop()
			h.handle(c)
		})
	}
}

func (h *host) close() {
	h.stop.Do(func() {
		_ = h.l.Close()
		for _, l := range h.more {
			_ = l.Close()
		}
		_ = h.tr.Close()
		h.wg.Wait()
	})
}

// connect opens an endpoint from h to peer.
func (h *host) connect(t testing.TB, peer *host) *Endpoint {
	t.Helper()
	ep, err := h.tr.Connect(context.Background(), &peer.desc)
	if err != nil {
		t.Fatal(err)
	}
	return ep.(*Endpoint)
}

// post gives all of s to the endpoint, waiting for completions when it is full.
func (h *host) post(t testing.TB, ep *Endpoint, s []transport.Slice) {
	t.Helper()
	for len(s) > 0 {
		seen := h.sink.count()
		n, err := ep.Post(s)
		s = s[n:]
		if err == nil && len(s) > 0 {
			t.Fatalf("accepted %d without an error, %d are left", n, len(s))
		}
		if err == nil {
			return
		}
		if errs.Of(err) != errs.Overloaded {
			t.Fatal(err)
		}
		h.sink.mu.Lock()
		for len(h.sink.done) == seen {
			h.sink.more.Wait()
		}
		h.sink.mu.Unlock()
	}
}

func random() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:])
	return binary.LittleEndian.Uint64(b[:])
}

// pattern fills b with bytes that depend on seed and position.
func pattern(b []byte, seed uint64) {
	x := seed*0x9e3779b97f4a7c15 + 1
	for i := range b {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b[i] = byte(x)
	}
}
