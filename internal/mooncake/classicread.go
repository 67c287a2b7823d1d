package mooncake

import (
	"math"
	"slices"
	"strconv"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/topology"
)

// ParseClassic reads a descriptor of any of Mooncake's protocols, as strictly and
// as tolerantly as its engines do: members that are missing are empty, those that
// are unknown are ignored, and a buffer that lacks something spoils the whole. A
// wrong type, of which a real reader dies, is errs.Invalid.
func ParseClassic(p []byte) (*Classic, error) {
	d := &Classic{TCPVersion: 1}
	c := cursor{p: p}
	array := false
	c.root(func(key string) {
		switch key {
		case "protocol":
			if array = c.peek() == '['; array {
				d.Protocols = c.list()
			} else {
				d.Protocols = []string{c.text()}
			}
		case "rank_info":
			d.Rank = c.rank()
		default:
			c.classicMember(d, key)
		}
	})
	if err := c.failed("decode descriptor"); err != nil {
		return nil, err
	}
	switch {
	case len(d.Protocols) == 0 || array && len(d.Protocols) < 2:
		return nil, errs.New(errs.Unsupported, "decode descriptor", "protocols %q, want one, or a list of two or more", d.Protocols)
	case slices.Equal(d.Protocols, []string{"nvmeof"}):
		d.Buffers = nil
		return d, nil
	}
	d.Files = nil
	if err := d.valid(); err != nil {
		return nil, err
	}
	return d, nil
}

func (c *cursor) classicMember(d *Classic, key string) {
	switch key {
	case "buffers":
		c.array(func() { c.classicBuffer(d) })
	case "cxl_base_addr":
		d.CXLBase = c.uint(math.MaxUint64)
	case "cxl_name":
		d.CXLName = c.text()
	case "devices":
		c.array(func() {
			if len(d.Devices) == maxQPs {
				c.fail("at most 1024 devices")
				return
			}
			d.Devices = append(d.Devices, c.device())
		})
	case "name":
		d.Name = c.text()
	case "priority_matrix":
		if raw := c.raw(); len(raw) > 0 && string(raw) != "null" {
			d.Matrix = slices.Clone(raw)
		}
	case "rdma_server_name":
		d.RDMAName = c.text()
	case "tcp_data_port":
		d.TCPPort = uint16(c.uint(math.MaxUint16))
	case "tcp_proto_version":
		d.TCPVersion = int(c.uint(math.MaxInt32))
	default:
		c.skip()
	}
}

func (c *cursor) device() (d Device) {
	c.object(func(key string) {
		switch key {
		case "eid":
			d.EID = c.text()
		case "gid":
			d.GID = c.text()
		case "lid":
			d.LID = uint16(c.uint(math.MaxUint16))
		case "name":
			d.Name = c.text()
		default:
			c.skip()
		}
	})
	return d
}

// classicBuffer reads one element of "buffers", which with nvmeof is a file.
func (c *cursor) classicBuffer(d *Classic) {
	b, f := ClassicBuffer{DeviceID: -1}, ClassicFile{}
	c.object(func(key string) {
		switch key {
		case "addr":
			b.Addr = c.uint(math.MaxUint64)
		case "device_id":
			b.DeviceID = int(min(max(c.int(), -1), math.MaxInt32))
		case "file_path":
			f.Path = c.text()
		case "length":
			b.Length = c.uint(math.MaxUint64)
		case "lkey":
			b.LKey = c.uints()
		case "local_path_map":
			f.Local = c.texts()
		case "name":
			b.Name = c.text()
		case "offset":
			b.Offset = c.uint(math.MaxUint64)
		case "protocol":
			b.Protocol = c.text()
		case "rkey":
			b.RKey = c.uints()
		case "shm_name":
			b.Handle = c.text()
		case "tseg":
			b.Segs = c.list()
		default:
			c.skip()
		}
	})
	if len(d.Buffers) == MaxBuffers {
		c.fail("at most " + strconv.Itoa(MaxBuffers) + " buffers")
		return
	}
	f.Length = b.Length
	d.Buffers, d.Files = append(d.Buffers, b), append(d.Files, f)
}

func (c *cursor) uints() []uint64 {
	list := []uint64{}
	c.array(func() {
		if len(list) == maxQPs {
			c.fail("at most 1024 keys")
			return
		}
		list = append(list, c.uint(math.MaxUint64))
	})
	return list
}

func (c *cursor) texts() map[string]string {
	m := map[string]string{}
	c.object(func(key string) {
		if len(m) == maxQPs || len(key) > maxText {
			c.fail("at most 1024 hosts with names of at most 4096 bytes")
			return
		}
		m[key] = c.text()
	})
	return m
}

func (c *cursor) rank() *Rank {
	r := &Rank{ID: math.MaxUint32, DeviceType: 5}
	numbers := map[string]*uint64{
		"rankId": &r.ID, "hostPort": &r.HostPort, "deviceLogicId": &r.LogicID, "devicePhyId": &r.PhyID,
		"deviceType": &r.DeviceType, "devicePort": &r.DevicePort, "pid": &r.PID,
	}
	c.object(func(key string) {
		switch n := numbers[key]; {
		case n != nil:
			*n = c.uint(math.MaxUint64)
		case key == "hostIp":
			r.HostIP = c.text()
		case key == "deviceIp":
			r.DeviceIP = c.text()
		case key == "endpoints":
			r.Endpoints = c.list()
		default:
			c.skip()
		}
	})
	return r
}

// adopt makes d what other parts need of a descriptor that is not tcp alone: who
// it is, by which transports it can be reached, and what is at which address.
func (c *Classic) adopt(d *segment.Desc) {
	for i, p := range c.Protocols {
		if i > 0 {
			d.Protocol += ","
		}
		d.Protocol += p
		if p == "tcp" {
			p = TransportName
		} else {
			p = TransportName + "-" + p
		}
		d.Transports = append(d.Transports, p)
	}
	for _, b := range c.Buffers {
		if b.Addr == 0 || c.Has("tcp") && b.Protocol != "tcp" {
			continue // the same memory is listed for each protocol
		}
		at := topology.Location(b.Name)
		if c.Has("tcp") {
			at = topology.Any
		}
		d.Buffers = append(d.Buffers, segment.Buffer{Addr: b.Addr, Length: b.Length, Location: at, Access: segment.ReadWrite})
	}
}
