package mooncake

import (
	"slices"
	"strings"
	"time"

	"github.com/tideway-io/tideway/errs"
)

// Classic is a descriptor as Mooncake's engines publish it, in any of their
// protocols. Which members mean something depends on the protocol.
type Classic struct {
	Name       string
	Protocols  []string // one, or several from {cxl, tcp, rdma, hip, maca, musa}
	Devices    []Device
	Matrix     []byte // JSON of priority_matrix: location to preferred and other devices; nil: null
	Buffers    []ClassicBuffer
	Files      []ClassicFile // of nvmeof, which is only read
	CXLName    string
	CXLBase    uint64
	Rank       *Rank // of ascend
	RDMAName   string
	TCPPort    uint16
	TCPVersion int
}

// Device is a network device of the publisher. Buffers have a key for each, in
// this order.
type Device struct {
	Name, GID, EID string // GID: of rdma 16 bytes in hex with colons, of efa an address; EID: of ub
	LID            uint16
}

// ClassicBuffer is one buffer. Name is the segment's name with tcp and cxl, and
// the location with all others.
type ClassicBuffer struct {
	Protocol   string // where there are several; else empty
	Name       string
	Addr       uint64
	Length     uint64
	Offset     uint64 // of cxl, in the mapping
	DeviceID   int    // of nccl and ascend; -1: none
	RKey, LKey []uint64
	Handle     string // shm_name: hexadecimal digits of a vendor's handle
	Segs       []string
}

// ClassicFile is one file of an nvmeof segment.
type ClassicFile struct {
	Path   string
	Length uint64
	Local  map[string]string // host to path there
}

// Rank is rank_info of ascend.
type Rank struct {
	ID, HostPort, LogicID, PhyID, DeviceType, DevicePort, PID uint64
	HostIP, DeviceIP                                          string
	Endpoints                                                 []string
}

// member is a set of members of buffers and devices.
type member uint16

const (
	hasAddr member = 1 << iota
	hasKeys
	hasHandle
	hasDevice
	hasSegs
	hasOffset
	hasGID
	hasLID
	hasEID
)

// shape is what one protocol writes and what its readers insist on.
type shape struct {
	buffer, device member // device: none where the protocol has none
	matrix, rank   bool
	keyEach        bool // a key for each device, or none at all
}

// shapeOf is the table of the protocols; false for one that there is not.
func shapeOf(protocol string) (shape, bool) {
	switch protocol {
	case "tcp":
		return shape{buffer: hasAddr}, true
	case "rdma", "efa", "cxi":
		return shape{buffer: hasAddr | hasKeys, device: hasGID | hasLID, matrix: true, keyEach: true}, true
	case "barex":
		return shape{buffer: hasAddr | hasKeys, device: hasGID | hasLID, matrix: true}, true
	case "ub":
		return shape{buffer: hasAddr | hasSegs, device: hasEID, matrix: true}, true
	case "nvlink", "nvlink_intra", "hip", "maca", "musa", "ubshmem", "sunrise_link":
		return shape{buffer: hasAddr | hasHandle}, true
	case "nccl":
		return shape{buffer: hasAddr | hasDevice}, true
	case "ascend":
		return shape{buffer: hasAddr | hasDevice, device: hasLID, rank: true}, true
	case "cxl":
		return shape{buffer: hasOffset}, true
	}
	return shape{}, false
}

// several are the protocols that one segment may have together.
var several = [...]string{"cxl", "tcp", "rdma", "hip", "maca", "musa"}

// Has reports whether protocol is one of c's.
func (c *Classic) Has(protocol string) bool { return slices.Contains(c.Protocols, protocol) }

// valid says what real readers would refuse, nil if they would take it. It drops
// the buffers that they skip.
func (c *Classic) valid() error {
	bad := func(code errs.Code, format string, args ...any) error {
		return errs.New(code, "descriptor of "+strings.Join(c.Protocols, ","), format, args...)
	}
	if len(c.Protocols) > 1 {
		for _, p := range c.Protocols {
			if !slices.Contains(several[:], p) {
				return bad(errs.Unsupported, "protocol %q beside others, want only %v", p, several)
			}
		}
	}
	for _, p := range c.Protocols {
		if _, ok := shapeOf(p); !ok {
			return bad(errs.Unsupported, "protocol %q is none that can be read here", p)
		}
		if s, _ := shapeOf(p); s.device != 0 {
			for _, d := range c.Devices {
				if d.Name == "" || s.device&hasGID != 0 && d.GID == "" || s.device&hasEID != 0 && d.EID == "" {
					return bad(errs.Invalid, "device %+v lacks its name or its address", d)
				}
			}
		}
	}
	kept := c.Buffers[:0]
	for _, b := range c.Buffers {
		protocol := c.Protocols[0]
		if len(c.Protocols) > 1 {
			if protocol = b.Protocol; !slices.Contains(several[:], protocol) {
				continue
			}
		}
		s, _ := shapeOf(protocol)
		if s.buffer&hasHandle != 0 && b.Handle == "" {
			continue
		}
		if why := s.lacks(&b, len(c.Devices)); why != "" {
			return bad(errs.Invalid, "buffer %q at %#x: %s", b.Name, b.Addr, why)
		}
		kept = append(kept, b)
	}
	c.Buffers = kept
	return nil
}

// lacks says what a reader of the shape misses in a buffer.
func (s *shape) lacks(b *ClassicBuffer, devices int) string {
	switch {
	case b.Name == "" || b.Length == 0 || s.buffer&hasAddr != 0 && b.Addr == 0:
		return "no name, address or length"
	case !fits(b.Addr, b.Length):
		return "its end is beyond 64 bits"
	case s.buffer&hasKeys != 0 && len(b.RKey) > 0 && (len(b.RKey) != len(b.LKey) || s.keyEach && len(b.RKey) != devices):
		return "not one pair of keys for each device"
	case s.buffer&hasSegs != 0 && len(b.Segs) == 0:
		return "no tseg"
	case s.buffer&hasDevice != 0 && s.device == 0 && b.DeviceID < 0:
		return "no device_id"
	}
	return ""
}

// Append appends c as Mooncake's engines of its protocol write it, without a line
// feed. What their readers would refuse is errs.Invalid; nvmeof is not written.
func (c *Classic) Append(p []byte, now time.Time) ([]byte, error) {
	if c.Name == "" || len(c.Protocols) == 0 || slices.Contains(c.Protocols, "nvmeof") {
		return nil, errs.New(errs.Invalid, "encode descriptor", "name %q and protocols %q, want both, and none that is only read", c.Name, c.Protocols)
	}
	check := *c
	check.Buffers = slices.Clone(c.Buffers)
	if err := check.valid(); err != nil {
		return nil, err
	}
	var devices member
	var matrix, rank bool
	for _, protocol := range c.Protocols {
		s, _ := shapeOf(protocol)
		devices, matrix, rank = devices|s.device, matrix || s.matrix, rank || s.rank
	}
	p = c.appendBuffers(append(p, `{"buffers":`...))
	if c.Has("cxl") {
		p = appendUint(append(p, `,"cxl_base_addr":`...), c.CXLBase)
		p = appendString(append(p, `,"cxl_name":`...), c.CXLName)
	}
	if devices != 0 {
		p = c.appendDevices(append(p, `,"devices":`...), devices)
	}
	p = appendString(append(p, `,"name":`...), c.Name)
	if matrix {
		p = append(append(p, `,"priority_matrix":`...), orNull(c.Matrix)...)
	}
	p = append(p, `,"protocol":`...)
	if len(c.Protocols) > 1 {
		p = appendList(p, c.Protocols)
	} else {
		p = appendString(p, c.Protocols[0])
	}
	if rank && c.Rank != nil {
		p = c.Rank.append(append(p, `,"rank_info":`...))
	}
	if c.RDMAName != "" {
		p = appendString(append(p, `,"rdma_server_name":`...), c.RDMAName)
	}
	p = appendUint(append(p, `,"tcp_data_port":`...), uint64(c.TCPPort))
	p = appendUint(append(p, `,"tcp_proto_version":`...), uint64(max(1, c.TCPVersion)))
	p = append(now.AppendFormat(append(p, `,"timestamp":"`...), timeLayout), '"', '}')
	return p, nil
}

func orNull(p []byte) []byte {
	if len(p) == 0 {
		return []byte("null")
	}
	return p
}

func (c *Classic) appendBuffers(p []byte) []byte {
	p = append(p, '[')
	for i := range c.Buffers {
		b, protocol := &c.Buffers[i], c.Protocols[0]
		if len(c.Protocols) > 1 {
			protocol = b.Protocol
		}
		s, _ := shapeOf(protocol)
		if i > 0 {
			p = append(p, ',')
		}
		p = b.append(append(p, '{'), s.buffer, len(c.Protocols) > 1)
	}
	return append(p, ']')
}

// append appends the members of a buffer and the closing brace.
func (b *ClassicBuffer) append(p []byte, has member, protocol bool) []byte {
	if has&hasAddr != 0 {
		p = append(appendUint(append(p, `"addr":`...), b.Addr), ',')
	}
	if has&hasDevice != 0 {
		p = append(appendInt(append(p, `"device_id":`...), int64(b.DeviceID)), ',')
	}
	p = appendUint(append(p, `"length":`...), b.Length)
	if has&hasKeys != 0 {
		p = appendUints(append(p, `,"lkey":`...), b.LKey)
	}
	p = appendString(append(p, `,"name":`...), b.Name)
	if has&hasOffset != 0 {
		p = appendUint(append(p, `,"offset":`...), b.Offset)
	}
	if protocol {
		p = appendString(append(p, `,"protocol":`...), b.Protocol)
	}
	if has&hasKeys != 0 {
		p = appendUints(append(p, `,"rkey":`...), b.RKey)
	}
	if has&hasHandle != 0 {
		p = appendString(append(p, `,"shm_name":`...), b.Handle)
	}
	if has&hasSegs != 0 {
		p = appendList(append(p, `,"tseg":`...), b.Segs)
	}
	return append(p, '}')
}

func (c *Classic) appendDevices(p []byte, has member) []byte {
	p = append(p, '[')
	for i, d := range c.Devices {
		if i > 0 {
			p = append(p, ',')
		}
		p = append(p, '{')
		if has&hasEID != 0 {
			p = append(appendString(append(p, `"eid":`...), d.EID), ',')
		}
		if has&hasGID != 0 {
			p = append(appendString(append(p, `"gid":`...), d.GID), ',')
		}
		if has&hasLID != 0 {
			p = append(appendUint(append(p, `"lid":`...), uint64(d.LID)), ',')
		}
		p = append(appendString(append(p, `"name":`...), d.Name), '}')
	}
	return append(p, ']')
}

func (r *Rank) append(p []byte) []byte {
	p = appendString(append(p, `{"deviceIp":`...), r.DeviceIP)
	p = appendUint(append(p, `,"deviceLogicId":`...), r.LogicID)
	p = appendUint(append(p, `,"devicePhyId":`...), r.PhyID)
	p = appendUint(append(p, `,"devicePort":`...), r.DevicePort)
	p = appendUint(append(p, `,"deviceType":`...), r.DeviceType)
	p = appendList(append(p, `,"endpoints":`...), r.Endpoints)
	p = appendString(append(p, `,"hostIp":`...), r.HostIP)
	p = appendUint(append(p, `,"hostPort":`...), r.HostPort)
	p = appendUint(append(p, `,"pid":`...), r.PID)
	return append(appendUint(append(p, `,"rankId":`...), r.ID), '}')
}
