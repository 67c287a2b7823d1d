package shm

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
)

// kind says what a message is. The initiator of a link is who connected.
type kind uint8

const (
	kindHello   kind = 1 + iota // initiator, first, with the desk: who I am, whom I want
	kindWelcome                 // target, first, with the table: who I am, or why not
	kindAsk                     // initiator: may I use a range of the buffer with this key?
	kindAnswer                  // target
	kindFetch                   // initiator: lend me an allocation
	kindFetched                 // target, with its descriptor
	kindPull                    // initiator: read these ranges out of my memory into yours
	kindPulled                  // target: how they ended
	kindRevoked                 // target: an allocation has no registration any more
	kindSettled                 // initiator: it is unmapped here, and nobody copies any more
	kindDrain                   // target: bring nothing new
	kindDrained                 // initiator: nothing is under way any more
)

const (
	version    = 1
	maxMessage = 4 << 10
	headSize   = 8
	lifeSize   = 16
	secretSize = 16
	maxBatch   = 64 // pulls in one message
	pullSize   = 40
	resultSize = 12
	maxReason  = 1 << 10 // bytes of text in a welcome
)

// head begins every message.
type head struct {
	kind  kind
	class transport.Class
	count uint16    // of items behind it
	code  errs.Code // of an answer; the version in a hello
}

// message is one message in decoded form. Each kind has some of the fields.
type message struct {
	head
	secret       [secretSize]byte
	from, to     segment.Incarnation
	life         proof
	text         string
	id           uint64 // of an ask or an allocation
	op           transport.Op
	key          segment.Key
	offset, size uint64
	writable     bool
	items        []byte
}

// proof is where a process keeps random bytes that no other process has there.
type proof struct {
	addr  uint64
	nonce [lifeSize]byte
}

// request is one WRITE for the target to pull.
type request struct {
	slot, seq    uint32 // its place on the desk
	key          segment.Key
	offset, size uint64 // in the target's buffer
	addr         uint64 // at the initiator
}

// result is how one ended.
type result struct {
	slot, seq uint32
	code      errs.Code
}

func appendHead(b []byte, h head) []byte {
	b = append(b, byte(h.kind), byte(h.class))
	b = binary.LittleEndian.AppendUint16(b, h.count)
	b = binary.LittleEndian.AppendUint16(b, uint16(h.code))
	return append(b, 0, 0)
}

func appendWords(b []byte, words ...uint64) []byte {
	for _, w := range words {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	return b
}

func appendProof(b []byte, p *proof) []byte { return append(appendWords(b, p.addr), p.nonce[:]...) }

// append encodes m, which is of any kind but pull and pulled.
func (m *message) append(b []byte) []byte {
	b = appendHead(b, m.head)
	switch m.kind {
	case kindHello:
		b = appendProof(appendWords(append(b, m.secret[:]...), uint64(m.from), uint64(m.to)), &m.life)
	case kindWelcome:
		b = append(appendProof(appendWords(b, uint64(m.from)), &m.life), m.text[:min(len(m.text), maxReason)]...)
	case kindAsk:
		b = appendWords(b, m.id, uint64(m.key)|uint64(m.op)<<32, m.offset, m.size)
	case kindAnswer, kindFetch, kindRevoked, kindSettled:
		b = appendWords(b, m.id)
	case kindFetched:
		writable := uint64(0)
		if m.writable {
			writable = 1
		}
		b = appendWords(b, m.id, m.size, writable)
	}
	return b
}

func appendRequest(b []byte, r *request) []byte {
	b = binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(b, r.slot), r.seq)
	return appendWords(b, uint64(r.key), r.offset, r.size, r.addr)
}

func appendResult(b []byte, r result) []byte {
	b = binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(b, r.slot), r.seq)
	return append(binary.LittleEndian.AppendUint16(b, uint16(r.code)), 0, 0)
}

// setCount puts the number of items into a message that was begun without.
func setCount(b []byte, n int) { binary.LittleEndian.PutUint16(b[2:], uint16(n)) }

// request returns the i-th item of a pull.
func (m *message) request(i int) request {
	b := m.items[i*pullSize:]
	return request{
		slot: binary.LittleEndian.Uint32(b), seq: binary.LittleEndian.Uint32(b[4:]), key: segment.Key(binary.LittleEndian.Uint32(b[8:])),
		offset: binary.LittleEndian.Uint64(b[16:]), size: binary.LittleEndian.Uint64(b[24:]), addr: binary.LittleEndian.Uint64(b[32:]),
	}
}

// result returns the i-th item of a pulled.
func (m *message) result(i int) result {
	b := m.items[i*resultSize:]
	return result{binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:]), known(errs.Code(binary.LittleEndian.Uint16(b[8:])))}
}

// sizes are how long messages of each kind are behind their heads; a welcome has
// text behind that, a pull and a pulled their items.
var sizes = [...]int{
	kindHello: secretSize + 16 + 8 + lifeSize, kindWelcome: 8 + 8 + lifeSize, kindAsk: 32, kindAnswer: 8,
	kindFetch: 8, kindFetched: 24, kindPull: 0, kindPulled: 0, kindRevoked: 8, kindSettled: 8, kindDrain: 0, kindDrained: 0,
}

// parse decodes a message into m, which then refers to b.
func (m *message) parse(b []byte) error {
	*m = message{}
	if len(b) < headSize {
		return fmt.Errorf("a message of %d bytes", len(b))
	}
	m.kind, m.class = kind(b[0]), transport.Class(b[1])
	m.count, m.code = binary.LittleEndian.Uint16(b[2:]), errs.Code(binary.LittleEndian.Uint16(b[4:]))
	b = b[headSize:]
	if m.kind == 0 || int(m.kind) >= len(sizes) {
		return fmt.Errorf("a message of kind %d", m.kind)
	}
	want := sizes[m.kind]
	switch m.kind {
	case kindWelcome:
		want += min(max(len(b)-want, 0), maxReason)
	case kindPull:
		want = int(m.count) * pullSize
	case kindPulled:
		want = int(m.count) * resultSize
	}
	if len(b) != want || m.count > maxBatch {
		return fmt.Errorf("a message of kind %d with %d bytes and %d items", m.kind, len(b), m.count)
	}
	m.fields(b)
	return nil
}

// fields decodes what is behind the head; b is as long as it must be.
func (m *message) fields(b []byte) {
	word := func(i int) uint64 { return binary.LittleEndian.Uint64(b[8*i:]) }
	life := func(b []byte) {
		m.life.addr = binary.LittleEndian.Uint64(b)
		copy(m.life.nonce[:], b[8:])
	}
	switch m.kind {
	case kindHello:
		copy(m.secret[:], b)
		m.from, m.to = segment.Incarnation(word(2)), segment.Incarnation(word(3))
		life(b[32:])
	case kindWelcome:
		m.code = known(m.code)
		m.from = segment.Incarnation(word(0))
		life(b[8:])
		m.text = strings.ToValidUTF8(string(b[8+8+lifeSize:]), "?")
	case kindAsk:
		m.id, m.key, m.op, m.offset, m.size = word(0), segment.Key(word(1)), transport.Op(word(1)>>32), word(2), word(3)
	case kindAnswer, kindFetch, kindRevoked, kindSettled:
		m.code = known(m.code)
		m.id = word(0)
	case kindFetched:
		m.code = known(m.code)
		m.id, m.size, m.writable = word(0), word(1), word(2) == 1
	case kindPull, kindPulled:
		m.items = b
	}
}

// known returns c, or for a code that this version does not know, or that is not
// a peer's to give, one that it does.
func known(c errs.Code) errs.Code {
	if c.Kind() == errs.ErrInternal || strings.HasPrefix(c.String(), "code_") {
		return errs.LaneLost
	}
	return c
}
