package transporttest

import (
	"errors"
	"testing"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
)

// floodLimit is how many slices a transport may take from one endpoint whose
// peer is silent before it must say overloaded: every queue has a bound.
const floodLimit = 1 << 17

// checkOverload: "Admission is all or nothing, and ErrOverloaded means nothing
// was taken."
//
// For a transport: Post takes a prefix; what it refuses as overloaded it takes
// later, once some of what it has taken has completed; and it does refuse when
// the peer is silent, before floodLimit.
func checkOverload(t testing.TB, cfg *Config) {
	const size = 32
	w := newWorld(t, cfg, nil)
	from, to := w.pair()
	f := from.connect(to)
	local := from.memory(size, segment.LocalOnly)
	target := to.memory((floodLimit+2*floodPost)*size, segment.ReadWrite) // a range of its own for each
	b := target.published()
	data := key(mix(w.seed))
	data.fill(local.mem, 0)
	next := func() []transport.Slice {
		s := make([]transport.Slice, floodPost)
		for i := range s {
			s[i] = slice(transport.Write, local.mem, b, uint64(w.tags.last)*size+uint64(i)*size)
		}
		w.tag(s)
		return s
	}
	warm := next()
	f.postAll(warm, nil, nil)
	f.await(tagsOf(warm))
	wired := from.wire.dialled() > 0
	from.wire.allow(up, 0)
	limit := floodLimit - floodPost
	if !wired {
		limit = floodLimit / 16 // nobody keeps it from completing them as they come
	}

	var taken []transport.Slice
	for refused := false; !refused && len(taken) < limit; {
		s := next()
		n, err := f.post(s, nil)
		taken = append(taken, s[:n]...)
		refused = err != nil
		if refused && !errors.Is(err, errs.ErrOverloaded) {
			t.Fatalf("Post refused slice %d: %v, want %v", len(taken), err, errs.ErrOverloaded)
		}
	}
	if wired && len(taken) >= limit {
		t.Errorf("%d slices accepted while the peer is silent: the queue has no bound", len(taken))
	}
	t.Logf("%d slices accepted before an overload", len(taken))
	from.wire.thaw()
	last := next()
	f.postAll(last, nil, nil) // waits for room, and there must be some
	taken = append(taken, last...)
	for i, c := range f.await(tagsOf(taken)) {
		if at := data.differs(target.look(taken[i].Offset, size), 0); c.Code != errs.OK || at >= 0 {
			t.Fatalf("slice %d of a flood ended with %v (%v), wrong byte %d", i, c.Code, c.Err, at)
		}
	}
}

// floodPost is how many slices of a flood are posted at a time.
const floodPost = 512

// tagsOf returns the tags of s.
func tagsOf(s []transport.Slice) []transport.Tag {
	out := make([]transport.Tag, len(s))
	for i := range s {
		out[i] = s[i].Tag
	}
	return out
}

// checkRefused: "A refused slice was not started."
//
// Posts with a slice in the middle that cannot be taken, a post to a full
// endpoint, a post to a closed one: nothing from the refused slice on may
// complete or move, while what was taken does.
func checkRefused(t testing.TB, cfg *Config) {
	const size, n = 4096, 8
	w := newWorld(t, cfg, nil)
	from, to := w.pair()
	f := from.connect(to)
	local, target := from.memory(n*size, segment.LocalOnly), to.memory(n*size, segment.ReadWrite)
	bad := map[string]func(*transport.Slice){
		"no op":          func(s *transport.Slice) { s.Op = 0 },
		"unknown op":     func(s *transport.Slice) { s.Op = 3 },
		"no buffer":      func(s *transport.Slice) { s.Buffer = nil },
		"no such rail":   func(s *transport.Slice) { s.Rail = 255 },
		"offset too far": func(s *transport.Slice) { s.Offset = n*size + 1 },
	}
	if limit := from.tr.Caps().MaxSlice; limit != 0 && limit < 64<<20 {
		long := make([]byte, limit+1)
		bad["longer than MaxSlice"] = func(s *transport.Slice) { s.Local = long }
	}
	for name, spoil := range bad {
		data, old := key(mix(w.seed)), key(mix(w.seed+1))
		data.fill(local.mem, 0)
		target.fill(old)
		s := make([]transport.Slice, n)
		for i := range s {
			s[i] = slice(transport.Write, local.mem[i*size:(i+1)*size], target.published(), uint64(i*size))
		}
		spoil(&s[3])
		w.refusal(f, s, target, name, old, data)
	}
	refusedWhenClosed(f, local, target)
}

// refusal posts s, of which s[3] cannot succeed, and checks that each slice
// either moved or was left alone.
func (w *world) refusal(f *flow, s []transport.Slice, target *buffer, name string, old, data key) {
	w.Helper()
	tags := w.tag(s)
	taken, _ := f.post(s, nil)
	if taken < 3 {
		w.Errorf("%s: Post took %d slices, want the 3 good ones before it", name, taken)
	}
	done := f.await(tags[:taken])
	if taken > 3 && done[3].Code == errs.OK {
		w.Errorf("%s: the slice succeeded", name)
	}
	for i, sl := range s {
		size := uint64(len(sl.Local))
		if i == 3 {
			sl.Offset, size = 3*uint64(len(s[0].Local)), uint64(len(s[0].Local))
		}
		want, what := old, "was refused, but changed the target"
		if i < taken && i != 3 {
			want, what = data, "was accepted and completed, but is not at the target"
			if done[i].Code != errs.OK {
				w.Errorf("%s: slice %d beside it ended with %v (%v)", name, i, done[i].Code, done[i].Err)
			}
		}
		if at := target.differs(want, sl.Offset, size); at >= 0 {
			w.Errorf("%s: slice %d %s (byte %d)", name, i, what, at)
		}
	}
}

// refusedWhenClosed posts to a closed endpoint and lets the sink watch.
func refusedWhenClosed(f *flow, local, target *buffer) {
	f.from.Helper()
	old := key(mix(f.from.seed + 3))
	target.fill(old)
	f.close()
	s := []transport.Slice{slice(transport.Write, local.mem, target.published(), 0)}
	f.from.tag(s)
	if n, err := f.post(s, nil); n != 0 || !errors.Is(err, errs.ErrClosed) {
		f.from.Errorf("Post after Close: %d slices, error %v; want none and %v", n, err, errs.ErrClosed)
	}
	f.to.close()
	f.from.close() // and with them everything that a refused slice could have started
	if at := target.differs(old, 0, target.buf.Length); at >= 0 {
		f.from.Errorf("a slice that a closed endpoint refused changed byte %d of the target", at)
	}
}

// checkZero: "Zero values are safe: local-only access, invalid op, no deadline,
// loopback listener, policy chooses."
//
// For a transport: the zero Slice, the zero Op, no slices at all, the zero
// description and a buffer with the zero access are refused or fail, each with
// an error of its own, and break nothing.
func checkZero(t testing.TB, cfg *Config) {
	w := newWorld(t, cfg, nil)
	from, to := w.pair()
	f := from.connect(to)
	if n, err := f.ep.Post(nil); n != 0 || err != nil {
		t.Errorf("Post of no slices: %d, %v; want 0 and no error", n, err)
	}
	if ep, err := from.tr.Connect(t.Context(), &segment.Desc{}); err == nil {
		t.Errorf("Connect to the zero description succeeded")
		_ = ep.Close()
	}
	local, target, hidden := from.memory(64, segment.LocalOnly), to.memory(64, segment.ReadWrite), to.memory(64, 0)
	old := key(mix(w.seed))
	for _, b := range []*buffer{local, target, hidden} {
		b.fill(old)
	}
	for name, s := range map[string]transport.Slice{
		"the zero slice":              {},
		"the zero op":                 slice(0, local.mem, target.published(), 0),
		"no buffer":                   slice(transport.Write, local.mem, nil, 0),
		"the zero buffer":             slice(transport.Write, local.mem, &segment.Buffer{}, 0),
		"a write, the zero access":    slice(transport.Write, local.mem, hidden.published(), 0),
		"a read, the zero access":     slice(transport.Read, local.mem, hidden.published(), 0),
		"the zero key":                slice(transport.Read, local.mem, &segment.Buffer{Length: 64, Access: segment.ReadWrite}, 0),
		"the zero op and no buffer":   {Local: local.mem},
		"the zero access, no address": slice(transport.Write, local.mem, &segment.Buffer{Length: 64, Key: hidden.buf.Key}, 0),
	} {
		if c := f.try(s); c.Code == errs.OK {
			t.Errorf("%s: succeeded", name)
		}
	}
	for _, b := range []*buffer{local, target, hidden} {
		if at := b.differs(old, 0, 64); at >= 0 {
			t.Errorf("byte %d of %s changed", at, b.buf.Name)
		}
	}
	f.do([]transport.Slice{slice(transport.Write, local.mem, target.published(), 0)}, nil)
}
