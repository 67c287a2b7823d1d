package transporttest

import (
	"errors"
	"sync"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
)

// flow is an endpoint of one host to another, with the sink's bookkeeping and
// the rules of Post checked on every call.
type flow struct {
	from, to *host
	ep       transport.Endpoint
	ending   sync.Once
}

// connect opens an endpoint and fails the test if it cannot.
func (h *host) connect(to *host) *flow {
	h.Helper()
	f, err := h.tryConnect(to)
	if err != nil {
		h.Fatalf("connect %s to %s: %v", h.label, to.label, err)
	}
	return f
}

// reconnect tries to connect until it succeeds.
func (h *host) reconnect(to *host) *flow {
	h.Helper()
	var f *flow
	var err error
	ok := eventually(h.cfg.Patience, func() bool {
		f, err = h.tryConnect(to)
		return err == nil
	})
	if !ok {
		h.Fatalf("connect %s to %s again: %v", h.label, to.label, err)
	}
	return f
}

func (h *host) tryConnect(to *host) (*flow, error) {
	h.Helper()
	ep, err := h.tr.Connect(h.Context(), to.desc())
	if err != nil {
		return nil, err
	}
	if len(ep.Rails()) == 0 {
		h.Errorf("an endpoint has at least one rail")
	}
	f := &flow{from: h, to: to, ep: ep}
	h.flows = append(h.flows, f)
	return f, nil
}

// close ends the endpoint; every accepted slice must have completed when it
// returns.
func (f *flow) close() {
	f.from.Helper()
	f.ending.Do(func() {
		f.from.within("Endpoint.Close", func() {
			if err := f.ep.Close(); err != nil {
				f.from.Errorf("close the endpoint: %v", err)
			}
		})
	})
}

// tag gives every slice of s a fresh tag and returns the tags.
func (w *world) tag(s []transport.Slice) []transport.Tag {
	w.tags.Lock()
	defer w.tags.Unlock()
	out := make([]transport.Tag, len(s))
	for i := range s {
		w.tags.last++
		s[i].Tag, out[i] = w.tags.last, w.tags.last
	}
	return out
}

// post hands s to the endpoint once. The array that the endpoint sees is
// overwritten as soon as Post returns. hook runs at each completion, before
// anybody else learns of it.
func (f *flow) post(s []transport.Slice, hook func(*op)) (int, error) {
	f.from.Helper()
	f.from.sink.offer(s, hook)
	header := append([]transport.Slice(nil), s...)
	n, err := f.ep.Post(header)
	for i := range header {
		header[i] = transport.Slice{Op: 0xee, Class: 0xee, Rail: 0xee, Offset: 1 << 63, Tag: 1 << 63}
	}
	switch {
	case n < 0 || n > len(s):
		f.from.Fatalf("Post of %d slices returned %d", len(s), n)
	case n < len(s) && err == nil:
		f.from.Errorf("Post accepted %d of %d slices and gives no reason for refusing the next", n, len(s))
	case n == len(s) && err != nil:
		f.from.Errorf("Post accepted all of %d slices and still returns an error: %v", n, err)
	}
	f.from.sink.refuse(s[n:])
	return n, err
}

// postAll posts all of s, waiting for room where the endpoint is overloaded.
// Any other refusal fails the test unless keep allows another try.
func (f *flow) postAll(s []transport.Slice, hook func(*op), keep func(error) bool) {
	f.from.Helper()
	deadline := time.Now().Add(f.from.cfg.Patience)
	for len(s) > 0 {
		ended, moved := f.from.sink.count()
		n, err := f.post(s, hook)
		s = s[n:]
		if n > 0 {
			deadline = time.Now().Add(f.from.cfg.Patience)
		}
		if len(s) == 0 {
			return
		}
		if time.Now().After(deadline) {
			f.from.Fatalf("Post refused for %v: %v", f.from.cfg.Patience, err)
		}
		if errors.Is(err, errs.ErrOverloaded) {
			f.room(ended, moved)
			continue
		}
		if keep == nil || !keep(err) {
			f.from.Fatalf("Post refused slice %d: %v", n, err)
		}
		pause()
	}
}

// room waits until something of this host completes after an overload. If
// nothing is under way, nothing will, and the refusal was wrong.
func (f *flow) room(ended int, moved <-chan struct{}) {
	f.from.Helper()
	if now, _ := f.from.sink.count(); now != ended {
		return
	}
	if len(f.from.sink.accepted()) == 0 {
		f.from.Fatalf("Post says overloaded although none of its slices is under way: whoever waits for a completion waits for ever")
	}
	select {
	case <-moved:
	case <-time.After(f.from.cfg.Patience):
		f.from.Fatalf("overloaded, and nothing completed for %v", f.from.cfg.Patience)
	}
}

// await waits until every slice of tags has ended and returns how.
func (f *flow) await(tags []transport.Tag) []transport.Completion {
	f.from.Helper()
	return f.awaitFor(tags, f.from.cfg.Patience, "in time")
}

// awaitFor is await with its own limit, which why explains.
func (f *flow) awaitFor(tags []transport.Tag, d time.Duration, why string) []transport.Completion {
	f.from.Helper()
	if open := f.from.sink.wait(tags, d); len(open) > 0 {
		f.from.Fatalf("%d of %d slices did not complete within %v (%s), the first is %d\n%s", len(open), len(tags), d, why, open[0], stacks())
	}
	out := make([]transport.Completion, len(tags))
	for i, t := range tags {
		out[i] = f.from.sink.outcome(t)
	}
	return out
}

// do posts s, waits, and fails the test unless every slice succeeded.
func (f *flow) do(s []transport.Slice, hook func(*op)) {
	f.from.Helper()
	tags := f.from.tag(s)
	f.postAll(s, hook, nil)
	for i, c := range f.await(tags) {
		if c.Code != errs.OK {
			f.from.Fatalf("%v of %d bytes at offset %d: %v (%v)", s[i].Op, len(s[i].Local), s[i].Offset, c.Code, c.Err)
		}
	}
}

// try posts one slice and returns how it ended: a refusal counts as the end,
// with the code of the reason.
func (f *flow) try(s transport.Slice) transport.Completion {
	f.from.Helper()
	one := []transport.Slice{s}
	tags := f.from.tag(one)
	var refusal error
	again := eventually(f.from.cfg.Patience, func() bool {
		var n int
		n, refusal = f.post(one, nil)
		return n == 1 || !errors.Is(refusal, errs.ErrOverloaded)
	})
	if !again {
		f.from.Fatalf("overloaded for %v", f.from.cfg.Patience)
	}
	if refusal != nil {
		return transport.Completion{Tag: tags[0], Code: errs.Of(refusal), Err: refusal}
	}
	return f.await(tags)[0]
}

// slice describes one transfer between all of local and the same number of
// bytes at off in b.
func slice(op transport.Op, local []byte, b *segment.Buffer, off uint64) transport.Slice {
	return transport.Slice{Op: op, Local: local, Buffer: b, Offset: off}
}

// wrong returns the index of the first byte of a slice that succeeded which is
// not where it belongs, or -1. Bytes carry the pattern of their offset in target.
func wrong(s transport.Slice, target *buffer, data key) int {
	if s.Op == transport.Read {
		return data.differs(s.Local, s.Offset)
	}
	return data.differs(target.look(s.Offset, uint64(len(s.Local))), s.Offset)
}
