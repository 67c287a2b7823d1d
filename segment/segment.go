// Package segment is what a peer publishes: a named set of buffers, the life of
// the engine that offers them, and how they may be accessed.
//
// It is plain data. How it is encoded (Mooncake's JSON and the "tideway" member)
// is internal/mooncake's business, where it is found is metadata's.
package segment

import (
	"fmt"
	"sort"
	"strings"

	"github.com/tideway-io/tideway/topology"
)

// Name is a segment's name. Peer to peer it is the host:port that its engine
// listens on; with a metadata store it is any string.
type Name string

// Access says what peers may do with a buffer. The zero value is local-only.
type Access uint8

// The accesses combine with |. ReadWrite is both.
const (
	LocalOnly   Access = 0
	RemoteRead  Access = 1
	RemoteWrite Access = 2
	ReadWrite   Access = RemoteRead | RemoteWrite
)

// String returns "local", "ro", "wo" or "rw".
func (a Access) String() string {
	switch a {
	case LocalOnly:
		return "local"
	case RemoteRead:
		return "ro"
	case RemoteWrite:
		return "wo"
	case ReadWrite:
		return "rw"
	}
	return fmt.Sprintf("access(%d)", uint8(a))
}

// ParseAccess is the inverse of String.
func ParseAccess(s string) (Access, error) {
	for _, a := range []Access{LocalOnly, RemoteRead, RemoteWrite, ReadWrite} {
		if s == a.String() {
			return a, nil
		}
	}
	return 0, fmt.Errorf("access %q: want local, ro, wo or rw", s)
}

// Incarnation is the random identity of one life of an engine. It changes when
// the process restarts; zero means unknown (a Mooncake peer).
type Incarnation uint64

// String prints 16 hexadecimal digits.
func (i Incarnation) String() string { return fmt.Sprintf("%016x", uint64(i)) }

// Key names one registration within one incarnation. It is never used twice;
// zero is no registration.
type Key uint32

// Buffer is one contiguous registered range as its owner publishes it. A Buffer
// that has been published is not changed any more; a change makes a new one.
type Buffer struct {
	Name     string            // unique in the segment; may be empty
	Addr     uint64            // first byte's address at the owner; 0 for a file
	Length   uint64            // bytes
	Location topology.Location // where it lives at the owner
	Access   Access
	Key      Key               // registration key, 0 from a Mooncake peer
	Attrs    map[string][]byte // by transport name: what Register returned
	Source   Source            // identity of the bytes behind it, for resuming copies
}

// Source identifies the content behind a buffer well enough to resume a copy:
// a file's size, time of change and inode; zero for memory, whose identity is
// the incarnation and the key.
type Source struct {
	Size    uint64
	ModTime int64 // of content or inode, whichever changed later: nanoseconds since 1970, UTC
	Inode   uint64
	Device  uint64
}

// Desc is a whole published segment at one instant. A Desc that has been
// published is immutable.
type Desc struct {
	Name        Name
	Incarnation Incarnation
	Version     uint64            // grows with each change in one incarnation
	Addr        string            // native host:port; empty: the peer does not speak the native wire
	Addrs       []string          // further host:ports of the same listener, IP addresses, for more rails
	Transports  []string          // names of the transports that the owner has open
	Features    []string          // optional native features
	Buffers     []Buffer          // sorted by Addr, then Name
	Lookup      map[string]int    // index into Buffers by name; built by Seal
	Host        string            // identity of the host (boot id), for same-host decisions
	Raw         map[string][]byte // members of the published JSON that this version does not know
	Attrs       map[string][]byte // by transport name: what holds for the whole segment
	Protocol    string            // Mooncake's protocol member, "tcp" for a native engine
	TCPDataPort uint16            // Mooncake's TCP data port, 0 if none
	TCPVersion  int               // Mooncake's tcp_proto_version
}

// Seal sorts the buffers and builds Lookup. Call it once, before publishing.
func (d *Desc) Seal() {
	sort.SliceStable(d.Buffers, func(i, j int) bool {
		a, b := &d.Buffers[i], &d.Buffers[j]
		if a.Addr != b.Addr {
			return a.Addr < b.Addr
		}
		return a.Name < b.Name
	})
	d.Lookup = make(map[string]int, len(d.Buffers))
	for i := range d.Buffers {
		if n := d.Buffers[i].Name; n != "" {
			d.Lookup[n] = i
		}
	}
}

// ByName returns the buffer called name, or nil.
func (d *Desc) ByName(name string) *Buffer {
	if i, ok := d.Lookup[name]; ok {
		return &d.Buffers[i]
	}
	return nil
}

// ByAddr returns the buffer that holds the whole range [addr, addr+n), or nil.
// Registered ranges never overlap, so at most one does.
func (d *Desc) ByAddr(addr, n uint64) *Buffer {
	i := sort.Search(len(d.Buffers), func(i int) bool { return d.Buffers[i].Addr > addr }) - 1
	if i < 0 || d.Buffers[i].Addr == 0 {
		return nil
	}
	b := &d.Buffers[i]
	if off := addr - b.Addr; off > b.Length || n > b.Length-off {
		return nil
	}
	return b
}

// Has reports whether the owner has the transport open.
func (d *Desc) Has(transport string) bool {
	for _, t := range d.Transports {
		if t == transport {
			return true
		}
	}
	return false
}

// SplitTarget cuts "ADDR/NAME" at the first slash.
func SplitTarget(s string) (addr, name string, ok bool) { return strings.Cut(s, "/") }
