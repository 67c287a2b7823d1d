package control

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/wire"
	"github.com/tideway-io/tideway/segment"
)

func published(version uint64, n int) *segment.Desc {
	d := &segment.Desc{Name: "b", Incarnation: 2, Version: version, Buffers: make([]segment.Buffer, n)}
	for i := range d.Buffers {
		d.Buffers[i] = segment.Buffer{Name: fmt.Sprintf("v%d-%06d", version, i), Addr: 1<<44 + uint64(i)<<14, Length: 1 << 14, Location: "cpu:0", Access: segment.ReadWrite, Key: segment.Key(i + 1)}
	}
	d.Seal()
	return d
}

func TestFetchBuffers(t *testing.T) {
	for _, n := range []int{0, 1, 100_000} {
		want := published(uint64(n), n)
		r := serve(t, ServerOptions{Methods: map[string]Handler{MethodDescribe: Describe(func() *segment.Desc { return want })}})
		got := &segment.Desc{Name: "b", Incarnation: 2, Version: 1}
		if err := r.dial(t, Options{}).FetchBuffers(t.Context(), got); err != nil {
			t.Fatal(n, err)
		}
		same := slices.EqualFunc(want.Buffers, got.Buffers, func(a, b segment.Buffer) bool { return reflect.DeepEqual(a, b) })
		if !same || got.Version != want.Version || len(got.Lookup) != n {
			t.Errorf("%d buffers: version %d, %d names, same %v", len(got.Buffers), got.Version, len(got.Lookup), same)
		}
	}
}

// TestFetchWhileItChanges: pages are of one version, though the descriptor
// changes with each call; once it is not kept any more the fetch begins anew.
func TestFetchWhileItChanges(t *testing.T) {
	const n = 20_000
	var version atomic.Uint64
	var each atomic.Uint64
	each.Store(1)
	describe := Describe(func() *segment.Desc { return published(version.Load(), n) })
	r := serve(t, ServerOptions{Methods: map[string]Handler{MethodDescribe: func(ctx context.Context, from segment.Incarnation, body []byte) ([]byte, error) {
		for range each.Load() {
			version.Add(1)
			if _, err := describe(ctx, 0, ask(present, 0)); err != nil {
				t.Error(err)
			}
		}
		return describe(ctx, from, body)
	}}})
	p := r.dial(t, Options{})
	d := &segment.Desc{}
	if err := p.FetchBuffers(t.Context(), d); err != nil || len(d.Buffers) != n {
		t.Fatal(len(d.Buffers), err)
	}
	want := fmt.Sprintf("v%d-", d.Version)
	for i := range d.Buffers {
		if b := d.Buffers[i].Name; b[:len(want)] != want {
			t.Fatalf("%s in version %d", b, d.Version)
		}
	}
	each.Store(keptVersions + 1)
	if err := p.FetchBuffers(t.Context(), &segment.Desc{}); !errors.Is(err, errs.ErrStale) {
		t.Error(err)
	}
}

func ask(version uint64, start uint32) []byte {
	return binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint64(nil, version), start)
}

// TestHostilePages: a peer that answers nonsense, or for ever, is an error.
func TestHostilePages(t *testing.T) {
	page := func(version uint64, start, have int) []byte {
		d := published(version, 10)
		d.Buffers = d.Buffers[:min(start+have, 10)]
		p := wire.AppendPage(nil, d, start, MaxAnswer)
		binary.LittleEndian.PutUint32(p[8:], 10)
		return p
	}
	calls := 0
	for name, answer := range map[string]func() []byte{
		"empty":            func() []byte { return nil },
		"no progress":      func() []byte { return page(1, 0, 0) },
		"another start":    func() []byte { return page(1, 3, 2) },
		"the same again":   func() []byte { return page(1, 0, 2) },
		"another version":  func() []byte { return page(uint64(calls), (calls-1)*2, 2) },
		"too many in all":  func() []byte { p := page(1, 0, 2); binary.LittleEndian.PutUint32(p[8:], 1<<31); return p },
		"more than in all": func() []byte { p := page(1, 0, 2); binary.LittleEndian.PutUint32(p[8:], 1); return p },
	} {
		calls = 0
		r := serve(t, ServerOptions{Methods: map[string]Handler{MethodDescribe: func(context.Context, segment.Incarnation, []byte) ([]byte, error) {
			calls++
			return answer(), nil
		}}})
		d := &segment.Desc{Version: 5}
		if err := r.dial(t, Options{}).FetchBuffers(t.Context(), d); !errors.Is(err, errs.ErrInvalid) || d.Buffers != nil || d.Version != 5 {
			t.Errorf("%s: %+v, %v", name, d, err)
		}
		r.stop()
	}
}

func TestDescribeRefuses(t *testing.T) {
	h := Describe(func() *segment.Desc { return published(7, 3) })
	for name, c := range map[string]struct {
		body []byte
		code errs.Code
	}{"short": {make([]byte, 11), errs.Invalid}, "long": {make([]byte, 13), errs.Invalid}, "unknown version": {ask(6, 0), errs.Stale}} {
		if _, err := h(t.Context(), 1, c.body); errs.Of(err) != c.code {
			t.Errorf("%s: %v", name, err)
		}
	}
	if p, err := h(t.Context(), 1, ask(7, 1<<31)); err != nil {
		t.Error(err)
	} else if g, err := wire.ParsePage(p); err != nil || len(g.Buffers) != 0 || g.Total != 3 {
		t.Errorf("past the end: %+v, %v", g, err)
	}
}
