package wire

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/topology"
)

// Page is a run of a descriptor's buffers, as one answer carries them. Pages of
// the same version fit together; Start+len(Buffers) is where the next begins.
type Page struct {
	Version uint64 // of the descriptor
	Total   uint32 // buffers in all
	Start   uint32 // index of the first one here
	Buffers []segment.Buffer
}

// PageHead is the size of a page's fixed part: version (8), total (4), start
// (4), count (4).
const PageHead = 20

// Bounds of a buffer in a page.
const (
	maxName  = 4096
	maxAttrs = 64
)

// bufferLeast is the size of the smallest encoded buffer.
const bufferLeast = 8 + 8 + 4 + 1 + 1 + 1 + 1 + 1

// AppendPage appends as many of d's buffers from start on as fit into limit
// bytes, at least one if any is left. Each buffer is
//
//	address (8) · length (8) · key (4) · access (1) · source? (1) · name · location · attrs
//
// with source as 32 bytes if the byte before is 1 (size, modification time,
// inode, device), texts as a varint length and bytes, and attrs as a varint
// count of pairs of texts, sorted by the first.
func AppendPage(p []byte, d *segment.Desc, start, limit int) []byte {
	head := len(p)
	p = binary.LittleEndian.AppendUint64(p, d.Version)
	p = binary.LittleEndian.AppendUint32(p, uint32(len(d.Buffers)))
	p = binary.LittleEndian.AppendUint32(p, uint32(start))
	p = binary.LittleEndian.AppendUint32(p, 0)
	count := uint32(0)
	for i := start; i < len(d.Buffers); i++ {
		was := len(p)
		if p = appendBuffer(p, &d.Buffers[i]); len(p)-head > limit && count > 0 {
			p = p[:was]
			break
		}
		count++
	}
	binary.LittleEndian.PutUint32(p[head+16:], count)
	return p
}

func appendBuffer(p []byte, b *segment.Buffer) []byte {
	p = binary.LittleEndian.AppendUint64(p, b.Addr)
	p = binary.LittleEndian.AppendUint64(p, b.Length)
	p = binary.LittleEndian.AppendUint32(p, uint32(b.Key))
	p = append(p, byte(b.Access))
	if b.Source == (segment.Source{}) {
		p = append(p, 0)
	} else {
		p = append(p, 1)
		p = binary.LittleEndian.AppendUint64(p, b.Source.Size)
		p = binary.LittleEndian.AppendUint64(p, uint64(b.Source.ModTime))
		p = binary.LittleEndian.AppendUint64(p, b.Source.Inode)
		p = binary.LittleEndian.AppendUint64(p, b.Source.Device)
	}
	p = appendText(p, b.Name)
	p = appendText(p, string(b.Location))
	names := make([]string, 0, 8)
	for name := range b.Attrs {
		names = append(names, name)
	}
	slices.Sort(names)
	p = binary.AppendUvarint(p, uint64(len(names)))
	for _, name := range names {
		p = appendText(p, name)
		p = appendText(p, string(b.Attrs[name]))
	}
	return p
}

func appendText(p []byte, s string) []byte {
	return append(binary.AppendUvarint(p, uint64(len(s))), s...)
}

// ParsePage reads a page.
func ParsePage(p []byte) (Page, error) {
	if len(p) < PageHead {
		return Page{}, errs.New(errs.Invalid, "parse page", "%d bytes, want at least %d", len(p), PageHead)
	}
	g := Page{
		Version: binary.LittleEndian.Uint64(p), Total: binary.LittleEndian.Uint32(p[8:]), Start: binary.LittleEndian.Uint32(p[12:]),
	}
	count := binary.LittleEndian.Uint32(p[16:])
	if room := uint32(len(p)-PageHead) / bufferLeast; count > room || g.Start > g.Total || count > g.Total-g.Start {
		return Page{}, errs.New(errs.Invalid, "parse page", "%d buffers from %d of %d, room for %d", count, g.Start, g.Total, room)
	}
	r := pageReader{p: p[PageHead:]}
	g.Buffers = make([]segment.Buffer, count)
	for i := range g.Buffers {
		r.buffer(&g.Buffers[i])
	}
	if r.bad || len(r.p) > 0 {
		return Page{}, errs.New(errs.Invalid, "parse page", "malformed, or %d bytes too many", len(r.p))
	}
	return g, nil
}

// pageReader reads from the front of p. After something malformed it returns
// zeros.
type pageReader struct {
	p   []byte
	bad bool
}

func (r *pageReader) take(n uint64) []byte {
	if r.bad || n > uint64(len(r.p)) {
		r.bad = true
		return nil
	}
	out := r.p[:n]
	r.p = r.p[n:]
	return out
}

func (r *pageReader) u64() uint64 {
	if b := r.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

func (r *pageReader) varint(limit uint64) uint64 {
	v, n := binary.Uvarint(r.p)
	if n <= 0 || v > limit {
		r.bad = true
		return 0
	}
	r.take(uint64(n))
	return v
}

func (r *pageReader) text(limit uint64) []byte { return r.take(r.varint(limit)) }

func (r *pageReader) buffer(b *segment.Buffer) {
	b.Addr, b.Length = r.u64(), r.u64()
	fixed := r.take(6)
	if fixed == nil {
		return
	}
	b.Key, b.Access = segment.Key(binary.LittleEndian.Uint32(fixed)), segment.Access(fixed[4])
	if b.Access > segment.ReadWrite || fixed[5] > 1 || b.Length > math.MaxUint64-b.Addr {
		r.bad = true
	}
	if fixed[5] == 1 {
		b.Source = segment.Source{Size: r.u64(), ModTime: int64(r.u64()), Inode: r.u64(), Device: r.u64()}
	}
	b.Name = string(r.text(maxName))
	b.Location = topology.Location(r.text(maxName))
	n := r.varint(maxAttrs)
	if n > 0 {
		b.Attrs = make(map[string][]byte, n)
	}
	for range n {
		name := string(r.text(maxName))
		b.Attrs[name] = append([]byte{}, r.text(math.MaxUint32)...)
	}
}
