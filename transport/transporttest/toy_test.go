package transporttest

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/topology"
	"github.com/tideway-io/tideway/transport"
)

// toy is the plainest transport over a connection that keeps the promises: one
// slice at a time, copied on both sides, summed, answered after it is applied.
// A flaw makes it break one of them.
type toy struct{ flaw string }

var toyPreface = [8]byte{'T', 'O', 'Y', 'T', 'O', 'Y', 'T', 'O'}

const (
	toyMax   = 1 << 20 // bytes in one slice
	toyQueue = 256     // slices accepted and not ended
	toyHead  = 40      // op 8, key 8, offset 8, length 8, sum 8; an answer: code 8, seq 8, 0, length 8, sum 8
)

func (d *toy) Name() string                { return "toy" }
func (d *toy) Probe(context.Context) error { return nil }

func (d *toy) Open(_ context.Context, env transport.Env) (transport.Transport, error) {
	t := &toyTransport{flaw: d.flaw, env: env, conns: map[net.Conn]bool{}}
	return t, env.Accept(toyPreface, t.serve)
}

type toyTransport struct {
	flaw string
	env  transport.Env

	mu     sync.Mutex
	conns  map[net.Conn]bool
	served sync.WaitGroup
	closed bool
	stale  map[segment.Key]transport.Pin
	hoard  [][]byte
	one    sync.Mutex
}

func (t *toyTransport) Caps() transport.Caps {
	return transport.Caps{MaxSlice: toyMax, Checks: true, Fences: t.flaw == "unfenced", Remote: []topology.Kind{"cpu", "file"}}
}

func (t *toyTransport) Register(context.Context, *segment.Buffer) ([]byte, error) { return nil, nil }
func (t *toyTransport) Unregister(*segment.Buffer) error                          { return nil }

func (t *toyTransport) Close() error {
	t.mu.Lock()
	t.closed = true
	t.dropAll()
	t.mu.Unlock()
	t.served.Wait()
	return nil
}

// dropAll closes every accepted connection; t.mu is held.
func (t *toyTransport) dropAll() {
	for c := range t.conns {
		_ = c.Close()
	}
}

// enter takes c in, unless there are too many.
func (t *toyTransport) enter(c net.Conn) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || len(t.conns) >= t.env.Limits.MaxInbound {
		return false
	}
	t.conns[c] = true
	t.served.Add(1)
	return true
}

// serve is the passive side: one request after the other.
func (t *toyTransport) serve(c net.Conn) {
	defer c.Close()
	if !t.enter(c) {
		return
	}
	defer func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.conns, c)
		t.served.Done()
	}()
	var hello [8]byte
	_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
	if _, err := io.ReadFull(c, hello[:]); err != nil {
		return
	}
	_ = c.SetReadDeadline(time.Time{})
	mine := binary.LittleEndian.Uint64(hello[:]) == uint64(t.env.Self.Incarnation) || t.flaw == "anybody"
	if _, err := c.Write([]byte{map[bool]byte{true: 1, false: 2}[mine]}); err != nil || !mine {
		return
	}
	for seq := uint64(1); t.request(c, seq); seq++ {
	}
}

// request serves one request and reports whether another one may follow.
func (t *toyTransport) request(c net.Conn, seq uint64) bool {
	head := make([]byte, toyHead)
	if _, err := io.ReadFull(c, head); err != nil {
		return false
	}
	f := func(i int) uint64 { return binary.LittleEndian.Uint64(head[i*8:]) }
	op, key, off, n := transport.Op(f(0)), segment.Key(f(1)), f(2), f(3)
	if t.flaw != "unchecked" && xxh3.HashSeed(head[:32], seq) != f(4) || n > toyMax {
		t.offended()
		return false
	}
	if t.flaw == "serial" {
		t.one.Lock()
		defer t.one.Unlock()
	}
	payload := make([]byte, n)
	code := errs.OK
	if op == transport.Write {
		sum := make([]byte, 8)
		if _, err := io.ReadFull(c, payload); err != nil {
			return false
		}
		if _, err := io.ReadFull(c, sum); err != nil {
			return false
		}
		if t.flaw != "unchecked" && xxh3.Hash(payload) != binary.LittleEndian.Uint64(sum) {
			code = errs.Checksum
		}
	}
	if code == errs.OK {
		code = t.apply(op, key, off, payload)
	}
	return t.answer(c, seq, op, code, payload)
}

// offended is what follows a request that makes no sense.
func (t *toyTransport) offended() {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch t.flaw {
	case "fragile":
		t.dropAll()
	case "gullible":
		t.hoard = append(t.hoard, make([]byte, 16<<20)) // what it might need
	}
}

func (t *toyTransport) apply(op transport.Op, key segment.Key, off uint64, payload []byte) errs.Code {
	pin, code := t.pin(op, key, off, uint64(len(payload)))
	if code != errs.OK {
		return code
	}
	defer pin.Unpin()
	var err error
	switch {
	case pin.File != nil && op == transport.Write:
		_, err = pin.File.WriteAt(payload, pin.Offset)
	case pin.File != nil:
		_, err = pin.File.ReadAt(payload, pin.Offset)
	case op == transport.Write:
		copy(pin.Bytes, payload)
	default:
		copy(payload, pin.Bytes)
	}
	return errs.Of(err)
}

func (t *toyTransport) pin(op transport.Op, key segment.Key, off, n uint64) (transport.Pin, errs.Code) {
	pin, code := t.env.Memory.Pin(op, key, off, n)
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.flaw == "trusting" && code == errs.Denied:
		return t.env.Memory.Pin(transport.Read+transport.Write-op, key, off, n)
	case t.flaw == "clamping" && code == errs.OutOfRange:
		return t.env.Memory.Pin(op, key, 0, min(n, 64))
	case t.flaw == "caching" && code == errs.OK && off == 0 && pin.Bytes != nil:
		if t.stale == nil {
			t.stale = map[segment.Key]transport.Pin{}
		}
		t.stale[key] = transport.Pin{Bytes: pin.Bytes}
	case t.flaw == "caching" && code == errs.Revoked:
		return t.stale[key], errs.OK
	case t.flaw == "hoarding" && code == errs.OK:
		pin.Holder = nil
	}
	return pin, code
}

func (t *toyTransport) answer(c net.Conn, seq uint64, op transport.Op, code errs.Code, payload []byte) bool {
	if op != transport.Read || code != errs.OK {
		payload = nil
	}
	p := make([]byte, 0, toyHead+len(payload)+8)
	p = binary.LittleEndian.AppendUint64(p, uint64(code))
	p = binary.LittleEndian.AppendUint64(p, seq)
	p = binary.LittleEndian.AppendUint64(p, 0)
	p = binary.LittleEndian.AppendUint64(p, uint64(len(payload)))
	p = binary.LittleEndian.AppendUint64(p, xxh3.Hash(p))
	if len(payload) > 0 {
		p = binary.LittleEndian.AppendUint64(append(p, payload...), xxh3.Hash(payload))
	}
	_, err := c.Write(p)
	return err == nil
}

func (t *toyTransport) Connect(ctx context.Context, peer *segment.Desc) (transport.Endpoint, error) {
	if t.flaw == "mute" && peer.Addr == "" {
		return nil, errors.New("no")
	}
	if peer.Addr == "" {
		return nil, &errs.Error{Op: "connect", Transport: "toy", Reason: errs.Invalid, Detail: "the description has no address"}
	}
	e := &toyEndpoint{t: t, peer: peer, wake: make(chan struct{}, 1)}
	e.ctx, e.stop = context.WithCancel(context.Background())
	if _, err := e.lane(ctx); err != nil {
		if t.flaw == "mute" {
			return nil, errors.New("no")
		}
		return nil, err
	}
	e.worker.Go(e.work)
	return e, nil
}

// toyEndpoint sends one slice at a time.
type toyEndpoint struct {
	t      *toyTransport
	peer   *segment.Desc
	ctx    context.Context
	stop   context.CancelFunc
	wake   chan struct{}
	worker sync.WaitGroup

	mu      sync.Mutex
	conn    net.Conn
	seq     uint64
	queue   []transport.Slice
	now     *transport.Slice // the one on the wire
	killed  errs.Code        // why now must end
	undead  bool             // flaw: now has completed already
	closed  bool
	ended   int
	choking bool
}

func (e *toyEndpoint) Rails() []transport.Rail {
	return []transport.Rail{{Local: "here", Remote: e.peer.Addr}}
}

// lane returns the connection, making one if there is none.
func (e *toyEndpoint) lane(ctx context.Context) (net.Conn, error) {
	e.mu.Lock()
	c := e.conn
	e.mu.Unlock()
	if c != nil {
		return c, nil
	}
	fail := func(code errs.Code, err error) error {
		return &errs.Error{Op: "connect", Peer: e.peer.Addr, Transport: "toy", Reason: code, Detail: "no lane", Err: err}
	}
	c, err := e.t.env.Dial(ctx, e.peer.Addr)
	if err != nil {
		return nil, fail(errs.Refused, err)
	}
	e.mu.Lock()
	e.conn, e.seq = c, 0
	kill := e.closed || e.killed != errs.OK
	e.mu.Unlock()
	if kill {
		e.drop()
		return nil, fail(errs.Closed, nil)
	}
	_ = c.SetDeadline(time.Now().Add(e.t.env.Limits.StallTimeout))
	reply := []byte{0}
	_, err = c.Write(binary.LittleEndian.AppendUint64(toyPreface[:8:8], uint64(e.peer.Incarnation)))
	if err == nil {
		_, err = io.ReadFull(c, reply)
	}
	if err == nil && reply[0] == 1 {
		return c, nil
	}
	e.drop()
	if err == nil && reply[0] == 2 {
		return nil, fail(errs.Restarted, nil)
	}
	return nil, fail(errs.LaneLost, err)
}

func (e *toyEndpoint) drop() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.conn != nil {
		_ = e.conn.Close()
		e.conn = nil
	}
}

func (e *toyEndpoint) refuse(code errs.Code, detail string) error {
	return &errs.Error{Op: "post", Peer: e.peer.Addr, Transport: "toy", Reason: code, Detail: detail}
}

func (e *toyEndpoint) Post(s []transport.Slice) (n int, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range s {
		if err = e.admit(&s[i]); err != nil {
			if e.t.flaw == "eager" && i+1 < len(s) && s[i+1].Buffer != nil {
				e.queue = append(e.queue, s[i+1])
			}
			break
		}
		e.queue = append(e.queue, s[i])
		n++
	}
	if len(e.queue) > 0 {
		select {
		case e.wake <- struct{}{}:
		default:
		}
	}
	return n, err
}

// admit says why s cannot be taken; e.mu is held.
func (e *toyEndpoint) admit(s *transport.Slice) error {
	if e.t.flaw == "op zero" && s.Op == 0 && s.Buffer != nil {
		s.Op = transport.Write
	}
	switch {
	case e.closed:
		return e.refuse(errs.Closed, "the endpoint is closed")
	case s.Op != transport.Read && s.Op != transport.Write, s.Buffer == nil, s.Rail != 0, len(s.Local) > toyMax:
		return e.refuse(errs.Invalid, "the slice makes no sense")
	case e.t.flaw == "choking" && e.choking:
		return e.refuse(errs.Overloaded, "for ever")
	case len(e.queue) >= toyQueue && e.t.flaw != "boundless":
		e.choking = true
		return e.refuse(errs.Overloaded, "256 slices are under way")
	}
	return nil
}

// work moves slices until the endpoint is closed.
func (e *toyEndpoint) work() {
	for {
		e.mu.Lock()
		if len(e.queue) == 0 && !e.closed {
			e.mu.Unlock()
			<-e.wake
			continue
		}
		if len(e.queue) == 0 {
			e.mu.Unlock()
			return
		}
		s := e.queue[0]
		e.queue = e.queue[1:]
		e.now, e.killed, e.undead = &s, errs.OK, false
		if e.closed {
			e.killed = errs.Closed
		}
		rest := e.queue
		e.mu.Unlock()
		c := e.move(&s, rest)
		e.mu.Lock()
		if e.killed != errs.OK {
			if c.Code != errs.OK {
				c.Code, c.Err = e.killed, nil
			}
			e.conn = nil // kill has closed it, perhaps too late for this slice to notice
		}
		e.now = nil
		undead := e.undead
		var with []transport.Slice // a lost lane takes along what waits for it
		if errors.Is(c.Code.Kind(), errs.ErrUnreachable) {
			with, e.queue = e.queue, nil
		}
		e.mu.Unlock()
		if !undead {
			e.complete(c)
		}
		for _, s := range with {
			e.complete(transport.Completion{Tag: s.Tag, Code: errs.LaneLost})
		}
	}
}

func (e *toyEndpoint) complete(c transport.Completion) {
	e.mu.Lock()
	e.ended++
	n, closed := e.ended, e.closed
	e.mu.Unlock()
	switch {
	case e.t.flaw == "losing" && closed:
		return
	case e.t.flaw == "certain":
		c.InDoubt = false
	case e.t.flaw == "vague" && c.Code != errs.OK:
		c.Code = errs.Internal
	}
	done := []transport.Completion{c}
	if e.t.flaw == "locking" {
		e.mu.Lock()
		defer e.mu.Unlock()
	}
	e.t.env.Sink.Complete(done)
	if e.t.flaw == "twice" && n%50 == 0 {
		e.t.env.Sink.Complete(done)
	}
}

// move carries one slice over the wire.
func (e *toyEndpoint) move(s *transport.Slice, rest []transport.Slice) transport.Completion {
	c := transport.Completion{Tag: s.Tag}
	conn, err := e.lane(e.ctx)
	if err == nil {
		_ = conn.SetDeadline(time.Now().Add(e.t.env.Limits.StallTimeout))
		e.mu.Lock()
		killed := e.killed
		e.mu.Unlock()
		if killed != errs.OK {
			c.Code = killed
			return c
		}
		e.seq++
		c.InDoubt = s.Op == transport.Write
		err = e.send(conn, s, rest)
	}
	if err == nil && (e.t.flaw == "early" && s.Op == transport.Write || e.t.flaw == "early read" && s.Op == transport.Read) {
		e.mu.Lock()
		e.undead = true
		e.mu.Unlock()
		e.complete(transport.Completion{Tag: s.Tag})
	}
	if err == nil {
		c.Code, err = e.receive(conn, s)
	}
	if err != nil {
		e.drop()
		c.Code, c.Err = errs.Of(err), err
		if !errors.Is(err, errs.ErrUnreachable) && !errors.Is(err, errs.ErrStale) && !errors.Is(err, errs.ErrChecksum) {
			c.Code, c.Err = errs.LaneLost, e.refuse(errs.LaneLost, err.Error())
		}
		return c
	}
	c.InDoubt = false
	return c
}

func (e *toyEndpoint) send(conn net.Conn, s *transport.Slice, rest []transport.Slice) error {
	p := make([]byte, 0, toyHead+len(s.Local)+8)
	for _, v := range []uint64{uint64(s.Op), uint64(s.Buffer.Key), s.Offset, uint64(len(s.Local))} {
		p = binary.LittleEndian.AppendUint64(p, v)
	}
	p = binary.LittleEndian.AppendUint64(p, xxh3.HashSeed(p, e.seq))
	if s.Op == transport.Write {
		local := s.Local
		if e.t.flaw == "mixing" && len(rest) > 0 && len(rest[0].Local) > len(local) {
			local = rest[0].Local[:len(local)]
		}
		p = binary.LittleEndian.AppendUint64(append(p, local...), xxh3.Hash(local))
	}
	_, err := conn.Write(p)
	return err
}

func (e *toyEndpoint) receive(conn net.Conn, s *transport.Slice) (errs.Code, error) {
	head := make([]byte, toyHead)
	if _, err := io.ReadFull(conn, head); err != nil {
		return 0, err
	}
	f := func(i int) uint64 { return binary.LittleEndian.Uint64(head[i*8:]) }
	code := errs.Code(f(0))
	want := uint64(0)
	if s.Op == transport.Read && code == errs.OK {
		want = uint64(len(s.Local))
	}
	if e.t.flaw != "unchecked" && (xxh3.Hash(head[:32]) != f(4) || f(1) != e.seq || f(3) != want) {
		return 0, e.refuse(errs.Checksum, "a falsified answer")
	}
	if want == 0 {
		return code, nil
	}
	payload := make([]byte, want+8)
	if _, err := io.ReadFull(conn, payload); err != nil {
		return 0, err
	}
	if e.t.flaw != "unchecked" && xxh3.Hash(payload[:want]) != binary.LittleEndian.Uint64(payload[want:]) {
		return errs.Checksum, nil
	}
	copy(s.Local, payload)
	return code, nil
}

func (e *toyEndpoint) Cancel(tags []transport.Tag) {
	var done []transport.Completion
	e.mu.Lock()
	kept := e.queue[:0:0]
	for _, s := range e.queue {
		if has(tags, s.Tag) && e.t.flaw != "deaf" || e.t.flaw == "rash" {
			done = append(done, transport.Completion{Tag: s.Tag, Code: errs.Canceled})
		} else {
			kept = append(kept, s)
		}
	}
	e.queue = kept
	switch {
	case e.now == nil || !has(tags, e.now.Tag) || e.undead || e.t.flaw == "deaf":
	case e.t.flaw == "undead":
		e.undead = true
		done = append(done, transport.Completion{Tag: e.now.Tag, Code: errs.Canceled})
	default:
		e.kill(errs.Canceled)
	}
	e.mu.Unlock()
	if len(done) > 0 {
		e.t.env.Sink.Complete(done)
	}
}

// kill ends what is on the wire; e.mu is held.
func (e *toyEndpoint) kill(code errs.Code) {
	e.killed = code
	if e.conn != nil {
		_ = e.conn.Close()
	}
}

func has(tags []transport.Tag, t transport.Tag) bool {
	for _, x := range tags {
		if x == t {
			return true
		}
	}
	return false
}

func (e *toyEndpoint) Close() error {
	e.mu.Lock()
	e.closed = true
	e.kill(errs.Closed)
	e.mu.Unlock()
	e.stop()
	select {
	case e.wake <- struct{}{}:
	default:
	}
	e.worker.Wait()
	e.drop()
	return nil
}
