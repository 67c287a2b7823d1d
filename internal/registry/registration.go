package registry

import (
	"fmt"
	"math"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/mem"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/topology"
	"github.com/tideway-io/tideway/transport"
)

// MaxName is the length limit of a buffer's name in bytes. It leaves room for
// paths.
const MaxName = 1024

// Registration is what becomes a Buffer. Exactly one of Bytes, Addr and File is
// set.
type Registration struct {
	Name string // unique in the segment; may be empty

	// Bytes is memory of this process. The registry keeps the slice, so memory
	// of Go's heap stays; anything else must stay mapped until Close returned.
	Bytes []byte
	// Addr names memory of Length bytes that is no Go slice. It must be mapped,
	// and stay so until Close returned; nothing can check that.
	Addr uintptr
	// File is a file of Length bytes, and Source what identifies its content.
	File   transport.File
	Source segment.Source
	// Length goes with Addr or File. Bytes have their own.
	Length uint64

	Location topology.Location // zero: "*" for memory, "file" for a file
	Access   segment.Access    // zero: peers may do nothing

	// Free gives the memory back or closes the file. It is called once, by the
	// Close that ends the buffer, when nobody is inside. May be nil.
	Free func() error
}

// buffer checks g and makes the Buffer that it describes, without key and
// registry.
func (g *Registration) buffer() (*Buffer, error) {
	b := &Buffer{free: g.Free, ready: make(chan struct{}), file: g.File}
	b.pub = segment.Buffer{Name: g.Name, Location: g.Location, Access: g.Access}
	err := g.check()
	if err != nil {
		return nil, err
	}
	if g.File != nil {
		b.pub.Length, b.pub.Source, b.pub.Location = g.Length, g.Source, topology.File
		return b, nil
	}
	b.bytes = g.Bytes[:len(g.Bytes):len(g.Bytes)]
	if g.Addr != 0 {
		if b.bytes, err = mem.Slice(g.Addr, g.Length); err != nil {
			return nil, because("register buffer", g.Name, err)
		}
	}
	b.pub.Addr, b.pub.Length = address(b.bytes)
	if b.pub.Location == "" {
		b.pub.Location = topology.Any
	}
	return b, nil
}

func (g *Registration) check() error {
	bad := func(format string, args ...any) error {
		return errs.New(errs.Invalid, "register buffer", "%q: "+format, append([]any{g.Name}, args...)...)
	}
	if n := count(g.Bytes != nil, g.Addr != 0, g.File != nil); n != 1 {
		return bad("%d of Bytes, Addr and File are set, want exactly one", n)
	}
	if g.Bytes != nil && g.Length != 0 && g.Length != uint64(len(g.Bytes)) {
		return bad("%d Bytes and a Length of %d: want no Length", len(g.Bytes), g.Length)
	}
	if err := checkName(g.Name); err != nil {
		return bad("name: %v", err)
	}
	if g.Access&^segment.ReadWrite != 0 {
		return bad("%v: want local, ro, wo or rw", g.Access)
	}
	if _, err := topology.ParseLocation(string(g.Location)); err != nil {
		return bad("%v", err)
	}
	if g.File == nil {
		if g.Addr == 0 && len(g.Bytes) == 0 || g.Addr != 0 && g.Length == 0 {
			return bad("memory of length 0: want at least 1 byte")
		}
		if g.Location == topology.File {
			return bad("memory at location %q: that is for files", g.Location)
		}
		return nil
	}
	if g.Location != "" && g.Location != topology.File {
		return bad("a file at location %q: want %q", g.Location, topology.File)
	}
	if g.Length > math.MaxInt64 {
		return bad("a file of %d bytes: the limit is %d", g.Length, int64(math.MaxInt64))
	}
	return nil
}

// checkName refuses what cannot be told apart, printed or sent.
func checkName(name string) error {
	if len(name) > MaxName {
		return fmt.Errorf("%d bytes, the limit is %d", len(name), MaxName)
	}
	if !utf8.ValidString(name) {
		return fmt.Errorf("not UTF-8")
	}
	if i := strings.IndexFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }); i >= 0 {
		return fmt.Errorf("byte %d begins a character that cannot be printed", i)
	}
	return nil
}

// address returns a slice's range in the terms of a descriptor.
func address(b []byte) (addr, length uint64) { return uint64(mem.Addr(b)), uint64(len(b)) }

// because wraps err with what was attempted on which buffer.
func because(op, buffer string, err error) *errs.Error {
	return &errs.Error{Op: op, Detail: buffer, Reason: errs.Of(err), Err: err}
}

func count(facts ...bool) (n int) {
	for _, f := range facts {
		if f {
			n++
		}
	}
	return n
}
