package engine

import (
	"math"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/core"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/topology"
	"github.com/tideway-io/tideway/transport"
)

// Range is a local range: part of a registered buffer, or plain memory.
type Range struct {
	Buffer *Buffer
	Bytes  []byte // when Buffer is nil
	Offset uint64 // in Buffer
	Length uint64
}

// Remote is where a remote range starts.
type Remote struct {
	Segment *Segment
	Found   *Found // nil: Offset is an absolute address at the owner
	Offset  uint64
}

// Request asks for one transfer; the facade documents the fields.
type Request struct {
	Op        transport.Op
	Local     Range
	Remote    Remote
	Priority  int8
	Deadline  time.Time
	Intent    string
	Tenant    string
	Transport string
}

// verb names op in an error, also one that there is not.
func verb(op transport.Op) string {
	if op != transport.Read && op != transport.Write {
		return "submit"
	}
	return op.String()
}

// check finds what is wrong with the request here, before anything is taken.
func (e *Engine) check(i int, r *Request) error {
	bad := func(code errs.Code, format string, args ...any) error {
		err := errs.New(code, verb(r.Op), format, args...)
		err.Stage = "admit"
		if i > 0 {
			err.Op = err.Op + " (request " + itoa(i) + ")"
		}
		return err
	}
	switch {
	case r.Op != transport.Read && r.Op != transport.Write:
		return bad(errs.Invalid, "op is %d, want Read or Write", r.Op)
	case r.Priority < -1 || r.Priority > 1:
		return bad(errs.Invalid, "priority is %d, want Bulk, Normal or Urgent", r.Priority)
	case r.Remote.Segment == nil:
		return bad(errs.Invalid, "remote has no segment; use RemoteBuffer.At or Segment.At")
	case r.Remote.Segment.e != e:
		return bad(errs.Invalid, "segment %q was opened by another engine", r.Remote.Segment.name)
	case r.Remote.Offset > math.MaxUint64-r.Local.Length:
		return bad(errs.Overflow, "remote offset %d + length %d exceeds 64 bits", r.Remote.Offset, r.Local.Length)
	case r.Transport != "" && e.transports.find(r.Transport) == nil:
		return bad(errs.Unsupported, "transport %q is not open here; open are %s", r.Transport, e.transports.names())
	}
	b := r.Local.Buffer
	if b == nil {
		return nil
	}
	if b.e != e {
		return bad(errs.Invalid, "local buffer %q belongs to another engine", b.Desc().Name)
	}
	if n := b.Desc().Length; r.Local.Offset > n || r.Local.Length > n-r.Local.Offset {
		return bad(errs.OutOfRange, "local range at %d of %d bytes leaves buffer %q of %d bytes", r.Local.Offset, r.Local.Length, b.Desc().Name, n)
	}
	if b.Bytes() == nil && r.Local.Length > 0 {
		return bad(errs.Unsupported, "local range is in file buffer %q; read the file into memory first", b.Desc().Name)
	}
	return nil
}

// transfer is the engine's record of one accepted request. Its fields are set
// before it is scheduled and read by whoever runs the shard's actions.
type transfer struct {
	batch    *Batch
	index    uint32
	cancels  uint32 // the batch's when it was added
	op       transport.Op
	class    transport.Class
	resolved bool // the descriptor was fetched for it
	over     bool // it has ended; under the batch's lock
	local    []byte
	held     *Buffer // holds a use, or nil
	remote   Remote
	length   uint64
	deadline core.Time
	forced   string
	tenant   string

	view   *view           // set by route, with target and offset
	target *segment.Buffer // as published
	offset uint64          // in target

	carrier string // the transport that carried it; set with over, like err
	err     error
}

// fill makes t the record of r; the caller holds a use of the local buffer.
func (t *transfer) fill(e *Engine, r *Request) {
	b := r.Local.Buffer
	*t = transfer{
		op: r.Op, class: transport.Class(1 - r.Priority), local: r.Local.Bytes, held: b, remote: r.Remote, length: r.Local.Length,
		forced: r.Transport, tenant: r.Tenant,
	}
	if b != nil {
		if t.length > 0 {
			t.local = b.Bytes()[r.Local.Offset : r.Local.Offset+r.Local.Length]
		}
	}
	if !r.Deadline.IsZero() {
		t.deadline = max(e.at(r.Deadline), 1)
	}
}

// result is how a transfer that is over ended.
func (t *transfer) result() Result {
	r := Result{Bytes: t.length, Err: t.err, Transport: t.carrier}
	if r.Err != nil {
		r.Bytes = 0
	}
	return r
}

// localKind is the kind of location of the local range.
func (t *transfer) localKind() topology.Kind {
	if t.held != nil {
		return t.held.Desc().Location.Kind()
	}
	return "cpu"
}
