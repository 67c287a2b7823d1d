// Package wire is the codec of Tideway's own frames: pure functions between
// bytes and plain structs, with every length bounded before it is believed.
// docs/wire.md is its specification; testdata holds vectors. It reads no
// socket and keeps no state: sessions live in transport/tcp and
// internal/control.
//
// A frame is
//
//	header (32) | meta (Header.Meta) | payload (Header.Payload) | trailer
//
// where the trailer of frames that carry request payload (Write and Data) is 8
// bytes of xxh3-64 for each descriptor if FlagSums is set, then one end word;
// that of Notify, Call and Reply is one xxh3-64 of the payload if FlagSums is
// set; other frames have none.
package wire

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"

	"github.com/tideway-io/tideway/errs"
)

// The prefaces: a native connection starts with one of them. As the 64-bit
// little-endian length that a Mooncake peer would start with, each is far
// beyond any limit, so the two cannot be confused.
var (
	PrefaceControl = [8]byte{'T', 'I', 'D', 'E', 'W', 'A', 'Y', 'C'}
	PrefaceData    = [8]byte{'T', 'I', 'D', 'E', 'W', 'A', 'Y', 'D'}
)

// Version is the protocol version that this package speaks. A hello offers a
// range, a welcome picks one.
const Version = 1

// Sizes in bytes, and bounds that a decoder enforces.
const (
	HeaderSize   = 32
	DescSize     = 16
	OutcomeSize  = 8
	SumSize      = 8
	EndSize      = 8
	MaxDescs     = 1024    // descriptors or outcomes in one frame
	MaxMeta      = 1 << 16 // bytes of meta in one frame
	MaxFrame     = 1 << 20 // bytes of payload in one frame, the default and the limit
	MaxStreams   = 64      // streams on one lane
	DefaultSlots = 4096    // requests in flight on one lane before a Credit says otherwise
)

// Type is what a frame is.
type Type uint8

// The frame types. A receiver that does not know a type skips the frame if
// FlagOptional is set and closes the connection otherwise.
const (
	Hello   Type = 1  // initiator's first frame: versions, identities, features
	Welcome Type = 2  // target's answer, Status says whether the lane is open
	Write   Type = 3  // Meta: Desc×Count; payload: their bytes in order
	Read    Type = 4  // Meta: Desc×Count
	Data    Type = 5  // answer to Reads Seq..Seq+Count-1: Outcome×Count; payload: bytes of the good ones
	Ack     Type = 6  // Writes below Seq ended; Meta: Exception×Count, all others were applied
	Credit  Type = 7  // Meta: Grant
	Cancel  Type = 8  // Reads or Writes Seq..Seq+Count-1 need not be started
	Ping    Type = 9  // Seq is echoed
	Pong    Type = 10 // answers the Pings up to Seq
	Goaway  Type = 11 // Status: why; Seq: milliseconds until the connection closes
	Fence   Type = 12 // Meta: session; Seq: lane. Close and quiesce it
	Fenced  Type = 13 // the lane can touch nothing any more
	Notify  Type = 14 // Seq: id; Meta: name; payload: body
	Noted   Type = 15 // Seq: id; Status
	Call    Type = 16 // Seq: id; Meta: method; payload: body
	Reply   Type = 17 // Seq: id; Status; Meta: detail; payload: body
)

// Flags of a frame.
const (
	FlagSums     uint8 = 1 << 0 // the trailer has a sum for each descriptor, or one for the body
	FlagSnapshot uint8 = 1 << 1 // Read: send from a copy, so that the sum matches memory in motion
	FlagOptional uint8 = 1 << 7 // may be skipped by a receiver that does not know the type
)

// End words of a trailer. In an aborted frame the sender put zeros in place of
// what it would not send any more: a part that does not match its sum was cut
// short and ends with the code in bits 16 to 31; without sums that is every part
// of the frame.
const (
	EndWhole   uint64 = 0
	EndAborted uint64 = 1
)

// Aborted returns the end word of a frame cut short because of code.
func Aborted(code errs.Code) uint64 { return EndAborted | uint64(code)<<16 }

// ParseEnd returns OK for EndWhole, the code of an aborted frame, or an error
// for a word that is neither.
func ParseEnd(word uint64) (errs.Code, error) {
	code := errs.Code(word >> 16)
	switch {
	case word == EndWhole:
		return errs.OK, nil
	case code != errs.OK && word == Aborted(code):
		return code, nil
	}
	return errs.Invalid, errs.New(errs.Invalid, "parse trailer", "end word %#x, want %d or an abort with a code", word, EndWhole)
}

// Stream says which order a request takes part in: within a stream answers come
// in the order of the requests, across streams in any order. It packs the
// operation, the kind of target and the class.
type Stream uint16

// Kinds of target in a Stream.
const (
	ToMemory uint8 = 0
	ToFile   uint8 = 1
	ToDevice uint8 = 2
)

// MakeStream packs a stream; class is 0 to 7, kind 0 to 3.
func MakeStream(read bool, kind, class uint8) Stream {
	s := Stream(class&7) | Stream(kind&3)<<3
	if read {
		s |= 1 << 5
	}
	return s
}

// Reads reports whether the stream carries Reads; otherwise Writes.
func (s Stream) Reads() bool { return s&(1<<5) != 0 }

// Kind returns the kind of target.
func (s Stream) Kind() uint8 { return uint8(s>>3) & 3 }

// Class returns the priority class.
func (s Stream) Class() uint8 { return uint8(s & 7) }

// Header is the fixed part of a frame. Multi-byte fields are little-endian:
//
//	0 type · 1 flags · 2 stream (2) · 4 count (2) · 6 status (2) · 8 seq (8)
//	16 meta (4) · 20 payload (4) · 24 check (8)
//
// where check is the xxh3-64 of the first 24 bytes followed by the meta.
type Header struct {
	Type    Type
	Flags   uint8
	Stream  Stream
	Count   uint16
	Status  errs.Code
	Seq     uint64
	Meta    uint32
	Payload uint32
	Check   uint64
}

// Put writes h, without its check, to the first HeaderSize bytes of p.
func (h *Header) Put(p []byte) {
	_ = p[HeaderSize-1]
	p[0], p[1] = byte(h.Type), h.Flags
	binary.LittleEndian.PutUint16(p[2:], uint16(h.Stream))
	binary.LittleEndian.PutUint16(p[4:], h.Count)
	binary.LittleEndian.PutUint16(p[6:], uint16(h.Status))
	binary.LittleEndian.PutUint64(p[8:], h.Seq)
	binary.LittleEndian.PutUint32(p[16:], h.Meta)
	binary.LittleEndian.PutUint32(p[20:], h.Payload)
}

// Seal computes the check over head, which is a header followed by all of its
// meta, and stores it.
func Seal(head []byte) {
	binary.LittleEndian.PutUint64(head[24:], check(head))
}

// Intact reports whether head, a header followed by all of its meta, matches
// its check.
func Intact(head []byte) bool {
	return binary.LittleEndian.Uint64(head[24:]) == check(head)
}

func check(head []byte) uint64 {
	h := xxh3.Hash(head[:24])
	if len(head) > HeaderSize {
		h ^= xxh3.HashSeed(head[HeaderSize:], h)
	}
	return h
}

// ParseHeader reads a header. It checks the bounds that hold for every frame,
// not the check, which needs the meta.
func ParseHeader(p []byte) (Header, error) {
	if len(p) < HeaderSize {
		return Header{}, errs.New(errs.Invalid, "parse header", "%d bytes, want %d", len(p), HeaderSize)
	}
	h := Header{
		Type: Type(p[0]), Flags: p[1],
		Stream:  Stream(binary.LittleEndian.Uint16(p[2:])),
		Count:   binary.LittleEndian.Uint16(p[4:]),
		Status:  errs.Code(binary.LittleEndian.Uint16(p[6:])),
		Seq:     binary.LittleEndian.Uint64(p[8:]),
		Meta:    binary.LittleEndian.Uint32(p[16:]),
		Payload: binary.LittleEndian.Uint32(p[20:]),
		Check:   binary.LittleEndian.Uint64(p[24:]),
	}
	return h, h.bounds()
}

func (h *Header) bounds() error {
	switch {
	case h.Count > MaxDescs:
		return errs.New(errs.Invalid, "parse header", "count %d exceeds %d", h.Count, MaxDescs)
	case h.Meta > MaxMeta:
		return errs.New(errs.Invalid, "parse header", "meta of %d bytes exceeds %d", h.Meta, MaxMeta)
	case h.Payload > MaxFrame:
		return errs.New(errs.Invalid, "parse header", "payload of %d bytes exceeds %d", h.Payload, MaxFrame)
	case h.Stream >= MaxStreams:
		return errs.New(errs.Invalid, "parse header", "stream %d, want below %d", h.Stream, MaxStreams)
	}
	return nil
}

// TrailerSize returns the bytes after the payload.
func (h *Header) TrailerSize() int {
	sums := h.Flags&FlagSums != 0
	switch h.Type {
	case Write, Data:
		if sums {
			return int(h.Count)*SumSize + EndSize
		}
		return EndSize
	case Notify, Call, Reply:
		if sums {
			return SumSize
		}
	}
	return 0
}

// Desc names a range at the target: a buffer by its registration key, an
// offset in it, a length of at most MaxFrame.
type Desc struct {
	Offset uint64
	Length uint32
	Key    uint32
}

// Put writes d to the first DescSize bytes of p.
func (d Desc) Put(p []byte) {
	binary.LittleEndian.PutUint64(p, d.Offset)
	binary.LittleEndian.PutUint32(p[8:], d.Length)
	binary.LittleEndian.PutUint32(p[12:], d.Key)
}

// ParseDesc reads the first DescSize bytes of p.
func ParseDesc(p []byte) Desc {
	return Desc{binary.LittleEndian.Uint64(p), binary.LittleEndian.Uint32(p[8:]), binary.LittleEndian.Uint32(p[12:])}
}

// Outcome is one Read's part of a Data frame. Length is 0 unless Code is OK.
type Outcome struct {
	Length uint32
	Code   errs.Code
}

// Put writes o to the first OutcomeSize bytes of p.
func (o Outcome) Put(p []byte) {
	binary.LittleEndian.PutUint32(p, o.Length)
	binary.LittleEndian.PutUint16(p[4:], uint16(o.Code))
	binary.LittleEndian.PutUint16(p[6:], 0)
}

// ParseOutcome reads the first OutcomeSize bytes of p.
func ParseOutcome(p []byte) Outcome {
	return Outcome{binary.LittleEndian.Uint32(p), errs.Code(binary.LittleEndian.Uint16(p[4:]))}
}

// Exception is one Write of an Ack that was not applied; it ended with Code.
// Back counts from the Ack's Seq downwards: 1 is the last one that it covers.
type Exception struct {
	Back uint32
	Code errs.Code
}

// Put writes x to the first OutcomeSize bytes of p.
func (x Exception) Put(p []byte) { Outcome{x.Back, x.Code}.Put(p) }

// ParseException reads the first OutcomeSize bytes of p.
func ParseException(p []byte) Exception {
	o := ParseOutcome(p)
	return Exception{o.Length, o.Code}
}

// GrantSize is the size of a Grant.
const GrantSize = 24

// Grant is a receiver's allowance for one lane, as totals since the lane was
// opened: what was sent may never exceed them. Epoch starts at 0 and grows when
// the receiver starts counting anew.
type Grant struct {
	Epoch uint32
	Slots uint64
	Bytes uint64
}

// Put writes g to the first GrantSize bytes of p.
func (g Grant) Put(p []byte) {
	binary.LittleEndian.PutUint32(p, g.Epoch)
	binary.LittleEndian.PutUint32(p[4:], 0)
	binary.LittleEndian.PutUint64(p[8:], g.Slots)
	binary.LittleEndian.PutUint64(p[16:], g.Bytes)
}

// ParseGrant reads the first GrantSize bytes of p.
func ParseGrant(p []byte) Grant {
	return Grant{binary.LittleEndian.Uint32(p), binary.LittleEndian.Uint64(p[8:]), binary.LittleEndian.Uint64(p[16:])}
}

// SumPart is the size of the parts that the sum of a long payload is made of.
const SumPart = 128 << 10

// Digest makes the sum of one payload that comes in parts, so that each part can
// be hashed while it is in the cache: xxh3-64 of the payload if it is at most
// SumPart bytes, else xxh3-64 of the sums of its parts in order, each of SumPart
// bytes but the last, which is what is left. The zero value is ready.
type Digest struct {
	parts int
	sums  [MaxFrame / SumPart * SumSize]byte
}

// Add takes the sum of the next part.
func (d *Digest) Add(sum uint64) {
	binary.LittleEndian.PutUint64(d.sums[d.parts*SumSize:], sum)
	d.parts++
}

// Sum returns the sum of what was added.
func (d *Digest) Sum() uint64 {
	if d.parts == 1 {
		return binary.LittleEndian.Uint64(d.sums[:])
	}
	return xxh3.Hash(d.sums[:d.parts*SumSize])
}

// Reset makes d ready for the next payload.
func (d *Digest) Reset() { d.parts = 0 }

// Sum returns the sum of a whole payload.
func Sum(p []byte) uint64 {
	var d Digest
	for ; len(p) > SumPart; p = p[SumPart:] {
		d.Add(xxh3.Hash(p[:SumPart]))
	}
	d.Add(xxh3.Hash(p))
	return d.Sum()
}
