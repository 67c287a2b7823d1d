package tcp

import (
	"encoding/binary"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/wire"
)

// fence names a lane of a session that a target is asked to end.
type fence struct {
	session uint64
	lane    uint64
}

// parseFence reads a Fence or Fenced frame.
func parseFence(h *wire.Header, meta []byte) (fence, error) {
	if len(meta) != 8 {
		return fence{}, errs.New(errs.Invalid, "receive fence", "meta of %d bytes, want 8", len(meta))
	}
	return fence{session: binary.LittleEndian.Uint64(meta), lane: h.Seq}, nil
}

// fence plans a Fence or Fenced frame.
func (s *sender) fence(t wire.Type, f fence) {
	head := s.control(wire.Header{Type: t, Seq: f.lane, Meta: 8})
	binary.LittleEndian.PutUint64(head[wire.HeaderSize:], f.session)
	wire.Seal(head)
}

// endOf returns the code of a trailer's end word, OK for a whole frame.
func endOf(trailer []byte) (errs.Code, error) {
	return wire.ParseEnd(binary.LittleEndian.Uint64(trailer[len(trailer)-wire.EndSize:]))
}

// verdict returns how part k of a frame ended whose bytes have the given sum.
// Without sums an aborted frame fails whole.
func verdict(sums bool, trailer []byte, k int, sum uint64, abort errs.Code) errs.Code {
	switch {
	case !sums:
		return abort
	case sum == binary.LittleEndian.Uint64(trailer[k*wire.SumSize:]):
		return errs.OK
	case abort != errs.OK:
		return abort
	}
	return errs.Checksum
}

// skip drops a frame of unknown type if its sender allows that.
func skip(r *receiver, h *wire.Header) error {
	if h.Flags&wire.FlagOptional == 0 {
		return errs.New(errs.Unsupported, "receive", "frame of type %d, which this end of a data lane does not take", h.Type)
	}
	r.expect(append(r.lens[:0], h.Payload), false)
	return nil
}

// parseSums reads the n sums of a trailer.
func parseSums(trailer []byte, n int) []uint64 {
	sums := make([]uint64, n)
	for k := range sums {
		sums[k] = binary.LittleEndian.Uint64(trailer[k*wire.SumSize:])
	}
	return sums
}

// digest returns the sum of a whole payload, wire.Sum out of the race detector's
// sight.
func digest(p []byte) uint64 {
	var d wire.Digest
	for ; len(p) > wire.SumPart; p = p[wire.SumPart:] {
		d.Add(sum(p[:wire.SumPart]))
	}
	d.Add(sum(p))
	return d.Sum()
}
