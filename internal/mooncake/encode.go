package mooncake

import (
	"encoding/base64"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/topology"
)

// MemberLimit is how long the "tideway" member may be, in bytes. A longer one
// is replaced by a pointer, and peers fetch the buffers in pages.
const MemberLimit = 512 << 10

// timeLayout is the form of "timestamp". Nobody interprets it.
const timeLayout = "2006-01-02 15:04:05.000000"

// memberKey is our member's name in a descriptor.
const memberKey = "tideway"

// EncodeDesc returns the JSON that publishes d, without a line feed: what a
// Mooncake engine of protocol "tcp" would write, plus the "tideway" member where
// d has an incarnation. The "buffers" of Mooncake are those that a Mooncake peer
// can reach; the member has all of them, names, files and keys included.
func EncodeDesc(d *segment.Desc, now time.Time) ([]byte, error) {
	return encode(d, now, true)
}

// EncodeRequest is EncodeDesc for the descriptor that goes along when another
// one is asked for. Nobody reads its buffers, so a long list is left out.
func EncodeRequest(d *segment.Desc, now time.Time) ([]byte, error) {
	return encode(d, now, false)
}

func encode(d *segment.Desc, now time.Time, list bool) ([]byte, error) {
	if d.Name == "" {
		return nil, errs.New(errs.Invalid, "encode descriptor", "the segment has no name, and real peers refuse that")
	}
	if d.Protocol != "" && d.Protocol != "tcp" {
		return nil, errs.New(errs.Unsupported, "encode descriptor", "protocol %q, want tcp", d.Protocol)
	}
	member, paged := appendMember(nil, d)
	w := members{p: make([]byte, 0, 256+len(member)+96*len(d.Buffers)), others: d.Raw}
	w.key("buffers")
	w.p = appendBuffers(w.p, d, list || !paged)
	w.key("name")
	w.p = appendString(w.p, string(d.Name))
	w.key("protocol")
	w.p = append(w.p, `"tcp"`...)
	w.key("tcp_data_port")
	w.p = appendUint(w.p, uint64(d.TCPDataPort))
	w.key("tcp_proto_version")
	w.p = appendUint(w.p, uint64(max(1, d.TCPVersion)))
	if len(member) > 0 {
		w.key(memberKey)
		w.p = append(w.p, member...)
	}
	w.key("timestamp")
	w.p = append(now.AppendFormat(append(w.p, '"'), timeLayout), '"')
	return w.close(), nil
}

// members writes an object's members, which must be asked for in sorted order;
// others, ready made, are put where they belong between them.
type members struct {
	p      []byte
	others map[string][]byte
	last   string // the member written last
}

func (w *members) key(name string) {
	w.until(name)
	w.write(name)
}

func (w *members) write(name string) {
	sep := byte(',')
	if len(w.p) == 0 {
		sep = '{'
	}
	w.p = append(appendString(append(w.p, sep), name), ':')
	w.last = name
}

// until writes those of others that come after the last member and before name.
func (w *members) until(name string) {
	var between []string
	for k, v := range w.others {
		if k > w.last && (name == "" || k < name) && len(v) > 0 {
			between = append(between, k)
		}
	}
	slices.Sort(between)
	for _, k := range between {
		w.write(k)
		w.p = append(w.p, w.others[k]...)
	}
}

func (w *members) close() []byte {
	w.until("")
	return append(w.p, '}')
}

// appendBuffers appends Mooncake's list: remotely accessible memory with an
// address and a length, since a single other one makes a real reader refuse the
// whole descriptor.
func appendBuffers(p []byte, d *segment.Desc, list bool) []byte {
	name := appendString(nil, string(d.Name))
	p = append(p, '[')
	for i := range d.Buffers {
		b := &d.Buffers[i]
		if !list || b.Access == segment.LocalOnly || b.Addr == 0 || b.Length == 0 || b.Location == topology.File {
			continue
		}
		if p[len(p)-1] != '[' {
			p = append(p, ',')
		}
		p = appendUint(append(p, `{"addr":`...), b.Addr)
		p = appendUint(append(p, `,"length":`...), b.Length)
		p = append(append(p, `,"name":`...), name...)
		p = append(p, '}')
	}
	return append(p, ']')
}

// appendMember appends the "tideway" member, or nothing for a descriptor of
// unknown incarnation. paged says that the list was too long and only its
// length was written.
func appendMember(p []byte, d *segment.Desc) (_ []byte, paged bool) {
	if d.Incarnation == 0 {
		return p, false
	}
	full, ok := appendMemberList(p, d, true)
	if ok {
		return full, false
	}
	short, _ := appendMemberList(full[:len(p)], d, false)
	return short, true
}

func appendMemberList(p []byte, d *segment.Desc, list bool) (_ []byte, ok bool) {
	start := len(p)
	p = appendString(append(p, `{"addr":`...), d.Addr)
	if len(d.Addrs) > 0 {
		p = appendList(append(p, `,"addrs":`...), d.Addrs)
	}
	if len(d.Attrs) > 0 {
		p = appendAttrs(append(p, `,"attrs":`...), d.Attrs)
	}
	if list {
		p = append(p, `,"buffers":[`...)
		for i := range d.Buffers {
			if i > 0 {
				p = append(p, ',')
			}
			if p = appendBuffer(p, &d.Buffers[i]); len(p)-start > MemberLimit {
				return p, false
			}
		}
		p = append(p, ']')
	} else {
		p = appendUint(append(p, `,"buffers_total":`...), uint64(len(d.Buffers)))
	}
	p = appendList(append(p, `,"features":`...), d.Features)
	p = appendString(append(p, `,"host":`...), d.Host)
	p = appendString(append(p, `,"incarnation":`...), d.Incarnation.String())
	if !list {
		p = append(p, `,"paged":true`...)
	}
	p = appendList(append(p, `,"transports":`...), d.Transports)
	p = appendUint(append(p, `,"version":`...), d.Version)
	return append(p, '}'), true
}

func appendBuffer(p []byte, b *segment.Buffer) []byte {
	p = append(append(p, `{"access":"`...), b.Access.String()...)
	p = appendUint(append(p, `","addr":`...), b.Addr)
	if len(b.Attrs) > 0 {
		p = appendAttrs(append(p, `,"attrs":`...), b.Attrs)
	}
	p = appendUint(append(p, `,"key":`...), uint64(b.Key))
	p = appendUint(append(p, `,"length":`...), b.Length)
	p = appendString(append(p, `,"location":`...), string(b.Location))
	if b.Name != "" {
		p = appendString(append(p, `,"name":`...), b.Name)
	}
	if s := b.Source; s != (segment.Source{}) {
		p = appendUint(append(p, `,"source":{"device":`...), s.Device)
		p = appendUint(append(p, `,"inode":`...), s.Inode)
		p = strconv.AppendInt(append(p, `,"mtime":`...), s.ModTime, 10)
		p = appendUint(append(p, `,"size":`...), s.Size)
		p = append(p, '}')
	}
	return append(p, '}')
}

func appendAttrs(p []byte, attrs map[string][]byte) []byte {
	var few [8]string
	names := few[:0]
	for name := range attrs {
		names = append(names, name)
	}
	slices.SortFunc(names, strings.Compare)
	p = append(p, '{')
	for i, name := range names {
		if i > 0 {
			p = append(p, ',')
		}
		p = append(appendString(p, name), `:"`...)
		p = base64.StdEncoding.AppendEncode(p, attrs[name])
		p = append(p, '"')
	}
	return append(p, '}')
}

func appendList(p []byte, list []string) []byte {
	p = append(p, '[')
	for i, s := range list {
		if i > 0 {
			p = append(p, ',')
		}
		p = appendString(p, s)
	}
	return append(p, ']')
}

func appendUint(p []byte, n uint64) []byte { return strconv.AppendUint(p, n, 10) }

func appendInt(p []byte, n int64) []byte { return strconv.AppendInt(p, n, 10) }

func appendUints(p []byte, list []uint64) []byte {
	p = append(p, '[')
	for i, n := range list {
		if i > 0 {
			p = append(p, ',')
		}
		p = appendUint(p, n)
	}
	return append(p, ']')
}

func appendBool(p []byte, b bool) []byte { return strconv.AppendBool(p, b) }

// fits reports whether [addr, addr+n) has an end that 64 bits can hold.
func fits(addr, n uint64) bool { return n <= math.MaxUint64-addr }
