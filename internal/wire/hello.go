package wire

import (
	"encoding/binary"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/segment"
)

// Greeting is the meta of Hello and Welcome: a list of fields, each a tag (2),
// a length (2) and a value, so that later versions add fields that earlier ones
// skip. Zero fields are left out.
type Greeting struct {
	MinVersion, MaxVersion uint16              // Hello: what is spoken; Welcome: both the one chosen
	From                   segment.Incarnation // the sender
	To                     segment.Incarnation // Hello: who is expected; 0 takes anybody
	Session                uint64              // data lanes of one endpoint share it
	Lane                   uint32              // number of this lane in its session, never reused
	MaxFrame               uint32              // bytes of payload that the sender takes in one frame
	Slots                  uint32              // requests that the sender takes before a Credit says otherwise
	Bytes                  uint64              // the same in bytes of payload, asked or sent
	Features               uint64              // bit set of Feature
	Name                   string              // the sender's segment name
	Detail                 string              // Welcome with a Status: what went wrong, for people
}

// Feature is an optional part of the protocol; a lane uses what both offer.
type Feature uint64

// The features.
const (
	FeatureSums Feature = 1 << 0 // payload sums
)

// The field tags of a Greeting.
const (
	tagMinVersion = 1 + iota
	tagMaxVersion
	tagFrom
	tagTo
	tagSession
	tagLane
	tagMaxFrame
	tagSlots
	tagBytes
	tagFeatures
	tagName
	tagDetail
)

// maxText bounds Name and Detail.
const maxText = 1024

// Append appends the encoded fields to p.
func (g *Greeting) Append(p []byte) []byte {
	num := func(tag uint16, v uint64) {
		if v == 0 {
			return
		}
		p = binary.LittleEndian.AppendUint16(p, tag)
		p = binary.LittleEndian.AppendUint16(p, 8)
		p = binary.LittleEndian.AppendUint64(p, v)
	}
	text := func(tag uint16, v string) {
		if v == "" {
			return
		}
		v = v[:min(len(v), maxText)]
		p = binary.LittleEndian.AppendUint16(p, tag)
		p = binary.LittleEndian.AppendUint16(p, uint16(len(v)))
		p = append(p, v...)
	}
	num(tagMinVersion, uint64(g.MinVersion))
	num(tagMaxVersion, uint64(g.MaxVersion))
	num(tagFrom, uint64(g.From))
	num(tagTo, uint64(g.To))
	num(tagSession, g.Session)
	num(tagLane, uint64(g.Lane))
	num(tagMaxFrame, uint64(g.MaxFrame))
	num(tagSlots, uint64(g.Slots))
	num(tagBytes, g.Bytes)
	num(tagFeatures, g.Features)
	text(tagName, g.Name)
	text(tagDetail, g.Detail)
	return p
}

// ParseGreeting reads the fields in p, skipping tags that it does not know.
func ParseGreeting(p []byte) (Greeting, error) {
	var g Greeting
	for len(p) > 0 {
		if len(p) < 4 {
			return g, errs.New(errs.Invalid, "parse greeting", "%d bytes left, a field needs 4", len(p))
		}
		tag, n := binary.LittleEndian.Uint16(p), int(binary.LittleEndian.Uint16(p[2:]))
		if n > len(p)-4 {
			return g, errs.New(errs.Invalid, "parse greeting", "field %d of %d bytes, %d left", tag, n, len(p)-4)
		}
		if err := g.field(tag, p[4:4+n]); err != nil {
			return g, err
		}
		p = p[4+n:]
	}
	return g, nil
}

func (g *Greeting) field(tag uint16, v []byte) error {
	if tag == tagName || tag == tagDetail {
		if len(v) > maxText {
			return errs.New(errs.Invalid, "parse greeting", "field %d of %d bytes exceeds %d", tag, len(v), maxText)
		}
		if tag == tagName {
			g.Name = string(v)
		} else {
			g.Detail = string(v)
		}
		return nil
	}
	if tag > tagDetail {
		return nil
	}
	if len(v) != 8 {
		return errs.New(errs.Invalid, "parse greeting", "field %d of %d bytes, want 8", tag, len(v))
	}
	n := binary.LittleEndian.Uint64(v)
	switch tag {
	case tagMinVersion:
		g.MinVersion = uint16(n)
	case tagMaxVersion:
		g.MaxVersion = uint16(n)
	case tagFrom:
		g.From = segment.Incarnation(n)
	case tagTo:
		g.To = segment.Incarnation(n)
	case tagSession:
		g.Session = n
	case tagLane:
		g.Lane = uint32(n)
	case tagMaxFrame:
		g.MaxFrame = uint32(n)
	case tagSlots:
		g.Slots = uint32(n)
	case tagBytes:
		g.Bytes = n
	case tagFeatures:
		g.Features = n
	}
	return nil
}
