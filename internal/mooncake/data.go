package mooncake

import "encoding/binary"

// Sizes of what goes over the data port besides payload, in bytes.
const (
	DataHeaderSize = 24
	StatusSize     = 8
)

// DataHeader begins each request on the data port: the payload follows it in a
// WRITE, and comes back in a READ. Version 2 answers with a status, version 1
// with nothing but the payload of a READ.
type DataHeader struct {
	Size  uint64 // bytes of payload; real peers refuse 0
	Addr  uint64 // absolute, at the peer
	Write bool
	V2    bool
}

const (
	opWrite = 0x01
	opV2    = 0x80
)

// Append appends the header; the seven bytes behind the operation are zeros.
func (h DataHeader) Append(p []byte) []byte {
	p = binary.LittleEndian.AppendUint64(p, h.Size)
	p = binary.LittleEndian.AppendUint64(p, h.Addr)
	op := uint64(0)
	if h.Write {
		op |= opWrite
	}
	if h.V2 {
		op |= opV2
	}
	return binary.LittleEndian.AppendUint64(p, op)
}

// ParseDataHeader reads the header in the first DataHeaderSize bytes of p as
// real peers do: an unknown operation is a READ, and the last seven bytes may be
// anything.
func ParseDataHeader(p []byte) DataHeader {
	op := p[16]
	return DataHeader{
		Size: binary.LittleEndian.Uint64(p), Addr: binary.LittleEndian.Uint64(p[8:]),
		Write: op&^opV2 == opWrite, V2: op&opV2 != 0,
	}
}

// Status is the answer of version 2 to a request. Any other than StatusOK is a
// failure, and the connection ends behind it.
type Status uint32

// The statuses.
const (
	StatusOK       Status = 0
	StatusRejected Status = 1 // the range is not within one registered buffer
)

const statusMagic = 0x4d435456 // "MCTV"

// Append appends the status as it is sent.
func (s Status) Append(p []byte) []byte {
	return binary.LittleEndian.AppendUint64(p, statusMagic<<32|uint64(s))
}

// ParseStatus reads the status in the first StatusSize bytes of p; false if they
// are none, as from a peer that speaks version 1.
func ParseStatus(p []byte) (Status, bool) {
	v := binary.LittleEndian.Uint64(p)
	return Status(v), v>>32 == statusMagic
}
