package control

import (
	"encoding/binary"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/mooncake"
	"github.com/tideway-io/tideway/segment"
)

// MooncakeOptions configure Mooncake. Zero fields have the documented default.
type MooncakeOptions struct {
	// Desc returns the present descriptor, which is not changed any more. Nil:
	// descriptors are in a metadata store, and "null" is the answer.
	Desc func() *segment.Desc
	// OnNotify takes a notification; Mooncake's have no sender.
	OnNotify    func(from, name string, body []byte) errs.Code
	Limit       int           // bytes of a frame, default 1 MiB
	ReadTimeout time.Duration // without a byte, default 5 s; six times that for a whole frame
	Logger      *slog.Logger  // default slog.Default()
}

// Mooncake serves Mooncake's handshake frames: one request on each connection,
// all connections at the same time.
type Mooncake struct {
	opts MooncakeOptions
	log  *slog.Logger
	big  chan struct{} // one token for each long frame in memory

	mu struct {
		sync.Mutex
		answers [2]answer // the last encoded descriptor: whole, and for native peers
	}
}

// answer is an encoded descriptor.
type answer struct {
	desc *segment.Desc
	body []byte
}

// Frames above longFrame are held in memory maxLong at a time.
const (
	longFrame = 64 << 10
	maxLong   = 16
)

// NewMooncake returns a server of handshake frames.
func NewMooncake(opts MooncakeOptions) *Mooncake {
	opts.Limit = or(opts.Limit, mooncake.DefaultLimit)
	opts.ReadTimeout = or(opts.ReadTimeout, 5*time.Second)
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	return &Mooncake{opts: opts, log: opts.Logger, big: make(chan struct{}, maxLong)}
}

// Serve answers the one request on a connection of which the first eight bytes
// were read, waits for the peer to close, and returns. What is malformed is not
// answered, as real engines do.
func (m *Mooncake) Serve(first [8]byte, conn net.Conn) {
	defer func() { _ = conn.Close() }()
	reply, err := m.handle(first, conn)
	if err != nil {
		m.log.Debug("handshake refused", "peer", conn.RemoteAddr(), "err", err)
		return
	}
	_ = conn.SetWriteDeadline(time.Now().Add(6 * m.opts.ReadTimeout))
	if _, err := conn.Write(reply); err != nil {
		return
	}
	m.linger(conn)
}

// handle reads the request and returns the whole reply frame.
func (m *Mooncake) handle(first [8]byte, conn net.Conn) ([]byte, error) {
	if binary.LittleEndian.Uint64(first[:]) > longFrame {
		select {
		case m.big <- struct{}{}:
			defer func() { <-m.big }()
		case <-time.After(m.opts.ReadTimeout):
			return nil, errs.New(errs.Overloaded, "serve handshake", "%d long frames are being read", maxLong)
		}
	}
	f, err := mooncake.ReadRest(&paced{conn, m.opts.ReadTimeout, time.Now().Add(6 * m.opts.ReadTimeout)}, first, m.opts.Limit)
	if err != nil {
		return nil, err
	}
	body, err := m.answer(f)
	if err != nil {
		return nil, err
	}
	return mooncake.AppendFrame(nil, f.Kind, body), nil
}

// paced is a reader that allows each read some time, and all of them together
// until an end.
type paced struct {
	conn net.Conn
	each time.Duration
	end  time.Time
}

func (p *paced) Read(b []byte) (int, error) {
	at := time.Now().Add(p.each)
	if at.After(p.end) {
		at = p.end
	}
	_ = p.conn.SetReadDeadline(at)
	return p.conn.Read(b)
}

func (m *Mooncake) answer(f mooncake.Frame) ([]byte, error) {
	switch f.Kind {
	case mooncake.Metadata:
		native, err := mooncake.Native(f.Body)
		if err != nil {
			return nil, err
		}
		return m.describe(native)
	case mooncake.Notify:
		n, err := mooncake.ParseNotice(f.Body)
		if err != nil {
			return nil, err
		}
		code := errs.Unsupported
		if m.opts.OnNotify != nil {
			code = m.opts.OnNotify("", n.Name, []byte(n.Text))
		}
		return mooncake.AppendNoticeAnswer(nil, code == errs.OK), nil
	case mooncake.Probe:
		if _, err := mooncake.Native(f.Body); err != nil {
			return nil, err
		}
		return mooncake.AppendProbeAnswer(nil), nil
	default: // Connection, in either form: there is nothing here to connect
		if _, err := mooncake.ParseHello(f.Body); err != nil {
			return nil, err
		}
		return new(mooncake.Hello).Append(nil), nil
	}
}

// describe returns the encoded descriptor, from memory if it is the same one.
// A native peer gets no list that it would not read.
func (m *Mooncake) describe(native bool) ([]byte, error) {
	if m.opts.Desc == nil {
		return []byte("null"), nil
	}
	d := m.opts.Desc()
	m.mu.Lock()
	defer m.mu.Unlock()
	last, encode := &m.mu.answers[0], mooncake.EncodeDesc
	if native {
		last, encode = &m.mu.answers[1], mooncake.EncodeRequest
	}
	if last.desc == d {
		return last.body, nil
	}
	body, err := encode(d, time.Now())
	if err == nil {
		*last = answer{d, body}
	}
	return body, err
}

// linger ends the writing side and waits for the peer to close, so that its
// reset does not overtake the reply.
func (m *Mooncake) linger(conn net.Conn) {
	if half, ok := conn.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
	_ = conn.SetReadDeadline(time.Now().Add(m.opts.ReadTimeout))
	_, _ = io.Copy(io.Discard, io.LimitReader(conn, longFrame))
}
