// Package mooncake is the codec of Mooncake's handshake frames and of its JSON:
// segment descriptors, notifications, probes and connection requests, as the
// classic Transfer Engine writes and reads them, plus the "tideway" member that
// only Tideway engines read. Pure functions between bytes and plain structs;
// internal/control serves them, metadata/p2p asks for them.
package mooncake

import (
	"encoding/binary"
	"errors"
	"io"

	"github.com/tideway-io/tideway/errs"
)

// Kind is what a handshake frame is.
type Kind uint8

// The kinds. Untyped is the form that engines before the type byte sent: it
// means Connection, is answered in kind, and its number is never on the wire.
const (
	Connection Kind = 0
	Metadata   Kind = 1
	Notify     Kind = 2
	Probe      Kind = 3
	Untyped    Kind = 0xff
)

// Limits of a frame's length in bytes. Receivers of both sides need the same
// one in practice; what is sent is not checked.
const (
	DefaultLimit = 1 << 20
	MaxLimit     = 128 << 20
)

// LengthSize is the size of the length that starts a frame.
const LengthSize = 8

// Frame is one handshake frame: on the wire a 64-bit little-endian length, the
// kind's byte unless Untyped, and JSON text. The length counts the kind's byte.
type Frame struct {
	Kind Kind
	Body []byte // JSON as it stood on the wire, with its line feed where there was one
}

// AppendFrame appends a frame with body and the line feed that real peers end
// their JSON with.
func AppendFrame(p []byte, kind Kind, body []byte) []byte {
	n := len(body) + 1
	if kind != Untyped {
		n++
	}
	p = binary.LittleEndian.AppendUint64(p, uint64(n))
	if kind != Untyped {
		p = append(p, byte(kind))
	}
	p = append(p, body...)
	return append(p, '\n')
}

// ReadFrame reads a whole frame of at most limit bytes.
func ReadFrame(r io.Reader, limit int) (Frame, error) {
	var first [LengthSize]byte
	if _, err := io.ReadFull(r, first[:]); err != nil {
		return Frame{}, cut(err)
	}
	return ReadRest(r, first, limit)
}

// ReadRest reads the frame whose length was already read. A frame that breaks a
// rule is errs.Invalid, one beyond limit too; one that ends early is
// errs.Unreachable around the reader's error. The length is not believed:
// memory grows only with the bytes that come.
func ReadRest(r io.Reader, first [LengthSize]byte, limit int) (Frame, error) {
	n := binary.LittleEndian.Uint64(first[:])
	if limit <= 0 || limit > MaxLimit {
		limit = DefaultLimit
	}
	if n == 0 || n > uint64(limit) {
		return Frame{}, errs.New(errs.Invalid, "read frame", "length %d, want 1 to %d; if the peer is a real one, raise the limit on both sides", n, limit)
	}
	p, err := grow(r, int(n))
	if err != nil {
		return Frame{}, cut(err)
	}
	return parseBody(p)
}

// ParseFrame splits a frame that is wholly in p. It returns how many bytes it
// took; 0 and no error when more are needed.
func ParseFrame(p []byte, limit int) (Frame, int, error) {
	if len(p) < LengthSize {
		return Frame{}, 0, nil
	}
	n := binary.LittleEndian.Uint64(p)
	if n == 0 || n > uint64(limit) {
		return Frame{}, 0, errs.New(errs.Invalid, "parse frame", "length %d, want 1 to %d", n, limit)
	}
	if uint64(len(p)-LengthSize) < n {
		return Frame{}, 0, nil
	}
	f, err := parseBody(p[LengthSize : LengthSize+int(n)])
	return f, LengthSize + int(n), err
}

// parseBody tells the forms apart: a first byte up to 3 is a kind, one from 4
// to 0x7f is JSON of the untyped form, any other is unknown.
func parseBody(p []byte) (Frame, error) {
	switch b := p[0]; {
	case b <= byte(Probe):
		return Frame{Kind(b), p[1:]}, nil
	case b < 0x80:
		return Frame{Untyped, p}, nil
	default:
		return Frame{}, errs.New(errs.Invalid, "parse frame", "kind %#x, want 0 to 3", b)
	}
}

// grow reads n bytes into memory that doubles as they come.
func grow(r io.Reader, n int) ([]byte, error) {
	p := make([]byte, min(n, 4096))
	for have := 0; ; {
		m, err := io.ReadFull(r, p[have:])
		if err != nil {
			return nil, err
		}
		if have += m; have == n {
			return p, nil
		}
		p = append(p, make([]byte, min(have, n-have))...)
	}
}

func cut(err error) error {
	e := errs.New(errs.Unreachable, "read frame", "the connection ended inside a handshake frame")
	if errors.Is(err, io.EOF) {
		e.Detail = "the connection ended before a handshake frame"
	}
	e.Err = err
	return e
}
