package mooncake

import (
	"math"
	"strconv"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/topology"
)

// Bounds of a descriptor that is read.
const (
	MaxBuffers = 1 << 20 // in one list
	maxText    = 4096    // bytes of a name
	maxNames   = 64      // transports, features, attrs of one object
	maxUnknown = 64      // members that are kept without being known
)

// DecodeDesc reads a published descriptor, Mooncake's or ours, and seals it.
// Buffers come from the "tideway" member where there is one, so that they have
// names, keys and access; else from Mooncake's list, where all of them are
// readable and writable. If pages is above zero the list was too long: the
// descriptor has no buffers yet, and that many are to be fetched from d.Addr.
//
// "null" is errs.NotFound, a protocol that there is not errs.Unsupported, anything
// malformed errs.Invalid. A single Mooncake buffer without name, address or length
// spoils the whole descriptor, as it does for real readers. Transports says how a
// Mooncake segment is reached: "mooncake" for its protocol tcp, "mooncake-rdma"
// and so on for the others.
func DecodeDesc(p []byte) (d *segment.Desc, pages int, err error) {
	c := cursor{p: p}
	if c.null() {
		return nil, 0, errs.New(errs.NotFound, "decode descriptor", "the peer answered null: it publishes in a metadata store, not peer to peer")
	}
	r := reader{d: &segment.Desc{TCPVersion: 1}, all: p}
	c.root(func(key string) { r.member(&c, key) })
	if err := c.failed("decode descriptor"); err != nil {
		return nil, 0, err
	}
	if err := r.finish(); err != nil {
		return nil, 0, err
	}
	r.d.Seal()
	return r.d, r.pages, nil
}

// reader gathers what the order of the members does not allow to judge at once:
// "buffers" comes first, and what they mean depends on those behind.
type reader struct {
	d                    *segment.Desc
	all                  []byte // the whole text
	buffers, ours, proto []byte
	pages                int
}

func (r *reader) member(c *cursor, key string) {
	switch key {
	case "buffers":
		r.buffers = c.raw()
	case memberKey:
		r.ours = c.raw()
	case "protocol":
		r.proto = c.raw()
	case "name":
		r.d.Name = segment.Name(c.text())
	case "tcp_data_port":
		r.d.TCPDataPort = uint16(c.uint(math.MaxUint16))
	case "tcp_proto_version":
		r.d.TCPVersion = int(c.uint(math.MaxInt32))
	case "timestamp":
		c.skip()
	default:
		r.unknown(key, c.raw())
	}
}

func (r *reader) unknown(key string, text []byte) {
	if len(r.d.Raw) == maxUnknown || len(text) == 0 || len(key) > maxText {
		return
	}
	if r.d.Raw == nil {
		r.d.Raw = make(map[string][]byte)
	}
	r.d.Raw[key] = append([]byte(nil), text...)
}

func (r *reader) finish() error {
	if c := (cursor{p: r.ours}); len(r.ours) > 0 && !c.null() {
		return r.native()
	}
	c := cursor{p: r.proto, key: "protocol"}
	if len(r.proto) > 0 && c.peek() != '[' {
		r.d.Protocol = c.text()
	}
	if c.err != nil {
		return c.failed("decode descriptor")
	}
	if r.d.Protocol != "tcp" {
		all, err := ParseClassic(r.all)
		if err != nil {
			return err
		}
		r.d.Protocol, r.d.Raw = "", nil
		all.adopt(r.d)
		return nil
	}
	r.d.Transports = []string{TransportName}
	return r.classic()
}

// classic reads Mooncake's list of protocol "tcp".
func (r *reader) classic() error {
	c := cursor{p: r.buffers, key: "buffers"}
	if len(r.buffers) == 0 {
		return nil
	}
	if n := len(r.buffers) / 48; n > 0 { // a buffer takes more than that
		r.d.Buffers = make([]segment.Buffer, 0, min(n, MaxBuffers))
	}
	c.array(func() {
		b, name := segment.Buffer{Location: topology.Any, Access: segment.ReadWrite}, ""
		c.object(func(key string) {
			switch key {
			case "addr":
				b.Addr = c.uint(math.MaxUint64)
			case "length":
				b.Length = c.uint(math.MaxUint64)
			case "name":
				name = c.text()
			default:
				c.skip()
			}
		})
		if name == "" || b.Addr == 0 || b.Length == 0 || !fits(b.Addr, b.Length) {
			c.fail("buffers with a name, an address, a length and an end below 2^64")
		}
		c.push(r.d, b)
	})
	return c.failed("decode descriptor")
}

// push adds a buffer within the bound.
func (c *cursor) push(d *segment.Desc, b segment.Buffer) {
	if len(d.Buffers) == MaxBuffers {
		c.fail("at most " + strconv.Itoa(MaxBuffers) + " buffers")
		return
	}
	d.Buffers = append(d.Buffers, b)
}

// native reads the "tideway" member.
func (r *reader) native() error {
	c, d := cursor{p: r.ours, key: memberKey}, r.d
	paged, total := false, uint64(0)
	d.Protocol = "tcp"
	c.root(func(key string) {
		switch key {
		case "addr":
			d.Addr = c.text()
		case "addrs":
			d.Addrs = c.list()
		case "attrs":
			d.Attrs = c.attrs()
		case "buffers":
			c.array(func() { c.push(d, c.buffer()) })
		case "buffers_total":
			total = c.uint(MaxBuffers)
		case "features":
			d.Features = c.list()
		case "host":
			d.Host = c.text()
		case "incarnation":
			d.Incarnation = c.incarnation()
		case "paged":
			paged = c.bool()
		case "transports":
			d.Transports = c.list()
		case "version":
			d.Version = c.uint(math.MaxUint64)
		default:
			c.skip()
		}
	})
	if d.Incarnation == 0 {
		c.fail("a \"tideway\" member with an incarnation")
	}
	if paged {
		d.Buffers, r.pages = nil, int(total)
	}
	return c.failed("decode descriptor")
}

func (c *cursor) buffer() segment.Buffer {
	var b segment.Buffer
	c.object(func(key string) {
		switch key {
		case "access":
			a, err := segment.ParseAccess(c.text())
			if err != nil {
				c.fail("local, ro, wo or rw")
			}
			b.Access = a
		case "addr":
			b.Addr = c.uint(math.MaxUint64)
		case "attrs":
			b.Attrs = c.attrs()
		case "key":
			b.Key = segment.Key(c.uint(math.MaxUint32))
		case "length":
			b.Length = c.uint(math.MaxUint64)
		case "location":
			b.Location = topology.Location(c.text())
		case "name":
			b.Name = c.text()
		case "source":
			b.Source = c.source()
		default:
			c.skip()
		}
	})
	if !fits(b.Addr, b.Length) {
		c.fail("buffers with an end below 2^64")
	}
	return b
}

func (c *cursor) source() (s segment.Source) {
	c.object(func(key string) {
		switch key {
		case "device":
			s.Device = c.uint(math.MaxUint64)
		case "inode":
			s.Inode = c.uint(math.MaxUint64)
		case "mtime":
			s.ModTime = c.int()
		case "size":
			s.Size = c.uint(math.MaxUint64)
		default:
			c.skip()
		}
	})
	return s
}

func (c *cursor) attrs() map[string][]byte {
	m := make(map[string][]byte)
	c.object(func(key string) {
		if len(m) == maxNames || len(key) > maxText {
			c.fail("at most 64 attributes with names of at most 4096 bytes")
			return
		}
		m[key] = c.bytes()
	})
	return m
}

func (c *cursor) list() (list []string) {
	c.array(func() {
		if len(list) == maxNames {
			c.fail("at most 64 names")
			return
		}
		list = append(list, c.text())
	})
	return list
}

// text is str with a bound for names.
func (c *cursor) text() string {
	s := c.str()
	if len(s) > maxText {
		c.fail("a name of at most 4096 bytes")
		return ""
	}
	return s
}

func (c *cursor) incarnation() segment.Incarnation {
	s := c.text()
	n, err := strconv.ParseUint(s, 16, 64)
	if err != nil || len(s) != 16 {
		c.fail("16 hexadecimal digits")
		return 0
	}
	return segment.Incarnation(n)
}
