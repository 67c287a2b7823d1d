package control

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/wire"
)

// frame is one frame as read.
type frame struct {
	wire.Header
	meta, body []byte
}

// appendFrame appends a whole frame. The lengths in h are set here; a body gets
// a sum.
func appendFrame(p []byte, h wire.Header, meta, body []byte) []byte {
	h.Meta, h.Payload = uint32(len(meta)), uint32(len(body))
	if len(body) > 0 {
		h.Flags |= wire.FlagSums
	}
	start := len(p)
	p = append(p, make([]byte, wire.HeaderSize)...)
	h.Put(p[start:])
	p = append(p, meta...)
	wire.Seal(p[start:])
	p = append(p, body...)
	if len(body) > 0 {
		p = binary.LittleEndian.AppendUint64(p, xxh3.Hash(body))
	}
	return p
}

// readFrame reads one frame whose meta and body are within what limit allows
// for its type. Nothing of a length is believed before the check over it held,
// but for the meta, which the check needs.
func readFrame(r io.Reader, limit func(wire.Type) (meta, body int)) (frame, error) {
	var f frame
	head := make([]byte, wire.HeaderSize, 256)
	if _, err := io.ReadFull(r, head); err != nil {
		return f, err
	}
	h, err := wire.ParseHeader(head)
	if err != nil {
		return f, err
	}
	maxMeta, maxBody := limit(h.Type)
	if int(h.Meta) > maxMeta || int(h.Payload) > maxBody {
		return f, errs.New(errs.Invalid, "read frame", "type %d with %d and %d bytes, limits %d and %d", h.Type, h.Meta, h.Payload, maxMeta, maxBody)
	}
	head = append(head, make([]byte, h.Meta)...)
	if _, err := io.ReadFull(r, head[wire.HeaderSize:]); err != nil {
		return f, cut(err)
	}
	if !wire.Intact(head) {
		return f, errs.New(errs.Checksum, "read frame", "header of type %d does not match its check", h.Type)
	}
	f = frame{Header: h, meta: head[wire.HeaderSize:], body: make([]byte, h.Payload)}
	if _, err := io.ReadFull(r, f.body); err != nil {
		return f, cut(err)
	}
	return f, f.verify(r)
}

// verify reads the sum behind the body, if there is one, and compares it.
func (f *frame) verify(r io.Reader) error {
	if f.TrailerSize() == 0 {
		return nil
	}
	var sum [wire.SumSize]byte
	if _, err := io.ReadFull(r, sum[:]); err != nil {
		return cut(err)
	}
	if binary.LittleEndian.Uint64(sum[:]) != xxh3.Hash(f.body) {
		return errs.New(errs.Checksum, "read frame", "body of %d bytes does not match its sum", len(f.body))
	}
	return nil
}

// cut makes an end inside a frame an error that is not io.EOF.
func cut(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// link is one control connection. One goroutine writes; whoever owns the link
// reads, by calling read again and again.
type link struct {
	conn  net.Conn
	r     *bufio.Reader
	peer  string // for errors
	out   chan []byte
	done  chan struct{}
	wrote sync.WaitGroup

	silence  time.Duration // the other side may be silent for this long
	interval time.Duration // how often it is looked at
	heard    time.Time     // when bytes came last; only read uses it
	strikes  int           // looks since then
	quiet    func()        // called at each look that finds silence, may be nil

	mu struct {
		sync.Mutex
		err error // why it ended, nil while it lives
	}
}

// newLink starts a link. A write that makes no progress for silence ends it too.
func newLink(conn net.Conn, peer string, silence time.Duration, quiet func()) *link {
	l := &link{
		conn: conn, peer: peer, out: make(chan []byte, maxWaiting), done: make(chan struct{}),
		silence: silence, interval: min(silence/2, 10*time.Second), heard: time.Now(), quiet: quiet,
	}
	l.r = bufio.NewReaderSize(reader{l}, 4096)
	l.wrote.Go(l.write)
	return l
}

// reader reads from the link's connection and keeps watch: silence beyond the
// limit is an error. It takes at least two looks, so that a process that was
// itself stopped for a while does not blame its peer.
type reader struct{ l *link }

func (r reader) Read(p []byte) (int, error) {
	l := r.l
	for {
		_ = l.conn.SetReadDeadline(time.Now().Add(l.interval))
		n, err := l.conn.Read(p)
		if n > 0 {
			l.heard, l.strikes = time.Now(), 0
			return n, err
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
		l.strikes++
		if silent := time.Since(l.heard); l.strikes > 1 && silent >= l.silence {
			return 0, errs.New(errs.Unresponsive, "wait for peer", "silent for %v, limit %v", silent.Round(time.Millisecond), l.silence)
		}
		if l.quiet != nil {
			l.quiet()
		}
	}
}

// write is the writer's goroutine.
func (l *link) write() {
	for {
		select {
		case p := <-l.out:
			_ = l.conn.SetWriteDeadline(time.Now().Add(l.silence))
			if _, err := l.conn.Write(p); err != nil {
				l.writeFailed(err)
				return
			}
		case <-l.done:
			return
		}
	}
}

// writeFailed ends the link after a failed write. If the peer has gone, what it
// sent before says more than the failure does: the reader gets to it first.
func (l *link) writeFailed(err error) {
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		select {
		case <-l.done:
		case <-time.After(time.Second):
		}
	}
	l.fail(err)
}

// send queues a frame; it waits for room until stop. It returns the link's
// error if that has ended.
func (l *link) send(p []byte, stop <-chan struct{}) error {
	select {
	case l.out <- p:
		return nil
	case <-l.done:
		return l.failure()
	case <-stop:
		return errStopped
	}
}

// trySend is send that drops the frame where there is no room.
func (l *link) trySend(p []byte) {
	select {
	case l.out <- p:
	default:
	}
}

// errStopped says that whoever was waiting does not any more.
var errStopped = errors.New("stopped waiting")

// fail ends the link. The first error stays.
func (l *link) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.err != nil {
		return
	}
	l.mu.err = l.explain(err)
	close(l.done)
	_ = l.conn.Close()
}

// explain makes err a typed one.
func (l *link) explain(err error) error {
	var e *errs.Error
	if errors.As(err, &e) {
		c := *e
		c.Peer = l.peer
		return &c
	}
	e = &errs.Error{Op: "control connection", Peer: l.peer, Reason: errs.LaneLost, Err: err, Retryable: true}
	switch {
	case errors.Is(err, io.EOF):
		e.Detail = "the peer closed it"
	case errors.Is(err, os.ErrDeadlineExceeded):
		e.Reason, e.Detail = errs.Unresponsive, "the peer does not read"
	}
	return e
}

func (l *link) failure() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.err
}
