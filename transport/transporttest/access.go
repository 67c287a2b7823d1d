package transporttest

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/topology"
	"github.com/tideway-io/tideway/transport"
)

// attempt is one forbidden use of a buffer: kind is what it must fail with.
type attempt struct {
	name string
	op   transport.Op
	b    *buffer
	off  uint64
	n    int
	kind error
}

// checkAccess: "Access is enforced on every transport: local-only, read-only,
// range, and (when security is on) who."
//
// Each forbidden use is tried with the buffer as published, and with one forged
// to allow it, which only the target can see through. Good slices beside it
// succeed; the zones around every buffer stay untouched.
func checkAccess(t testing.TB, cfg *Config) {
	const n = 8192
	w := newWorld(t, cfg, nil)
	from, to := w.pair()
	a := &accessCheck{f: from.connect(to), local: from.memory(2*n, segment.LocalOnly), good: to.memory(n, segment.ReadWrite)}
	rw, ro, wo, lo := to.memory(n, segment.ReadWrite), to.memory(n, segment.RemoteRead), to.memory(n, segment.RemoteWrite), to.memory(n, segment.LocalOnly)
	forbidden := []attempt{
		{"local-only", transport.Write, lo, 0, n, errs.ErrDenied},
		{"local-only", transport.Read, lo, 0, n, errs.ErrDenied},
		{"read-only", transport.Write, ro, 0, n, errs.ErrDenied},
		{"write-only", transport.Read, wo, 0, n, errs.ErrDenied},
		{"one byte too long", transport.Write, rw, 0, n + 1, errs.ErrInvalid},
		{"one byte too long", transport.Read, rw, 0, n + 1, errs.ErrInvalid},
		{"one byte over the end", transport.Write, rw, n - 1, 2, errs.ErrInvalid},
		{"one byte over the end", transport.Read, rw, n - 1, 2, errs.ErrInvalid},
		{"from the end", transport.Write, rw, n, 1, errs.ErrInvalid},
		{"far behind the end", transport.Write, rw, 1 << 40, 1, errs.ErrInvalid},
		{"far behind the end", transport.Read, rw, 1 << 40, 1, errs.ErrInvalid},
		{"before the start, by overflow", transport.Write, rw, math.MaxUint64 - 7, 64, errs.ErrInvalid},
		{"before the start, by overflow", transport.Read, rw, math.MaxUint64 - 7, 64, errs.ErrInvalid},
		{"wrapped to the start", transport.Write, rw, math.MaxUint64, 1, errs.ErrInvalid},
	}
	if slices.Contains(to.tr.Caps().Remote, topology.File.Kind()) {
		rw, ro := to.file(n, segment.ReadWrite), to.file(n, segment.RemoteRead)
		forbidden = append(forbidden,
			attempt{"a read-only file", transport.Write, ro, 0, n, errs.ErrDenied},
			attempt{"one byte over a file's end", transport.Write, rw, n - 1, 2, errs.ErrInvalid},
			attempt{"one byte over a file's end", transport.Read, rw, n - 1, 2, errs.ErrInvalid},
		)
	}
	for _, try := range forbidden {
		a.forbidden(try, *try.b.published(), "")
		a.forbidden(try, a.forge(try.b), ", forged to allow it")
	}
	unknown := *rw.published()
	unknown.Key += 1000
	for _, op := range []transport.Op{transport.Write, transport.Read} {
		if cfg.Addressed {
			break // the range is named by its address, which is right
		}
		a.forbidden(attempt{"unknown key", op, rw, 0, 64, errs.ErrNotFound}, unknown, "")
	}
	a.allowed(ro, transport.Read)
	a.allowed(wo, transport.Write)
	for _, b := range []*buffer{a.local, a.good, rw, ro, wo, lo} {
		b.intact()
	}
}

type accessCheck struct {
	f           *flow
	local, good *buffer
	round       uint64
}

// forge returns b as a lying initiator would describe it.
func (a *accessCheck) forge(b *buffer) segment.Buffer {
	forged := *b.published()
	forged.Access, forged.Length = segment.ReadWrite, math.MaxUint64
	return forged
}

// forbidden tries between two good slices. The slice fails with the right kind,
// the good ones succeed, and the buffer and the local range do not change.
func (a *accessCheck) forbidden(try attempt, desc segment.Buffer, how string) {
	w := a.f.from
	w.Helper()
	a.round++
	old, data := key(mix(w.seed+a.round)), key(mix(w.seed-a.round))
	try.b.fill(old)
	data.fill(a.local.mem, 0)
	what := fmt.Sprintf("%v, %s%s", try.op, try.name, how)
	s := []transport.Slice{
		slice(transport.Write, a.local.mem[:64], a.good.published(), 0),
		slice(try.op, a.local.mem[:try.n], &desc, try.off),
		slice(transport.Write, a.local.mem[:64], a.good.published(), 64),
	}
	tags := w.tag(s)
	taken, err := a.f.post(s, nil)
	done := a.f.await(tags[:taken])
	got := transport.Completion{Code: errs.Of(err), Err: err}
	if taken > 1 {
		got = done[1]
	}
	vague := w.cfg.Addressed && errors.Is(got.Code.Kind(), errs.ErrStale) // what was published does not hold
	if !errors.Is(got.Code.Kind(), try.kind) && !vague {
		w.Errorf("%s: %v (%v), want a code of the kind %v", what, got.Code, got.Err, try.kind)
	}
	for i, c := range done {
		if i != 1 && c.Code != errs.OK {
			w.Errorf("%s: the good slice beside it ended with %v (%v)", what, c.Code, c.Err)
		}
	}
	if at := try.b.differs(old, 0, try.b.buf.Length); at >= 0 {
		w.Errorf("%s: byte %d of the buffer changed", what, at)
	}
	if at := data.differs(a.local.mem, 0); at >= 0 {
		w.Errorf("%s: byte %d came back", what, at)
	}
	try.b.intact()
}

// allowed checks that what the access allows works.
func (a *accessCheck) allowed(b *buffer, op transport.Op) {
	a.f.from.Helper()
	a.f.do([]transport.Slice{slice(op, a.local.mem[:b.buf.Length], b.published(), 0)}, nil)
}
