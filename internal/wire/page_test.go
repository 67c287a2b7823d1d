package wire

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/segment"
)

func described(n int) *segment.Desc {
	d := &segment.Desc{Version: 9}
	for i := range n {
		d.Buffers = append(d.Buffers, segment.Buffer{Name: fmt.Sprintf("layer-%06d", i), Addr: 1<<44 + uint64(i)<<14, Length: 1 << 14, Location: "cpu:0", Access: segment.ReadWrite, Key: segment.Key(i + 1)})
	}
	return d
}

func TestPagesFitTogether(t *testing.T) {
	d := described(2000)
	d.Buffers[7] = segment.Buffer{
		Name: "é", Length: math.MaxUint64, Location: "file", Access: segment.RemoteRead, Key: math.MaxUint32,
		Attrs: map[string][]byte{"b": {2}, "a": {}}, Source: segment.Source{Size: 1, ModTime: -2, Inode: 3, Device: 4},
	}
	var all []segment.Buffer
	pages := 0
	for len(all) < len(d.Buffers) {
		p := AppendPage([]byte("x"), d, len(all), 4096)[1:]
		g, err := ParsePage(p)
		if err != nil || len(p) > 4096 || g.Version != 9 || g.Total != 2000 || int(g.Start) != len(all) || len(g.Buffers) == 0 {
			t.Fatalf("page %d: %d bytes, %+v, %v", pages, len(p), g, err)
		}
		all = append(all, g.Buffers...)
		pages++
	}
	if diff := cmp.Diff(d.Buffers, all); diff != "" || pages < 20 {
		t.Errorf("%d pages\n%s", pages, diff)
	}
}

// TestPageOfOne: a buffer larger than the limit still makes progress.
func TestPageOfOne(t *testing.T) {
	g, err := ParsePage(AppendPage(nil, described(3), 1, 1))
	if err != nil || len(g.Buffers) != 1 || g.Start != 1 {
		t.Errorf("%+v, %v", g, err)
	}
	if g, err := ParsePage(AppendPage(nil, described(3), 3, 1)); err != nil || len(g.Buffers) != 0 {
		t.Errorf("past the end: %+v, %v", g, err)
	}
}

func TestPagesThatAreRefused(t *testing.T) {
	whole := AppendPage(nil, described(2), 0, 4096)
	for n := range whole {
		if _, err := ParsePage(whole[:n]); !errors.Is(err, errs.ErrInvalid) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	change := func(at int, b byte) []byte {
		p := bytes.Clone(whole)
		p[at] = b
		return p
	}
	for _, c := range []struct {
		name string
		p    []byte
	}{
		{"a byte too many", append(bytes.Clone(whole), 0)}, {"start beyond total", change(12, 3)}, {"count beyond total", change(16, 3)},
		{"count beyond the bytes", change(19, 0xff)}, {"access 4", change(PageHead+20, 4)}, {"source 2", change(PageHead+21, 2)},
		{"end beyond 2^64", change(PageHead+15, 0xff)},
	} {
		if c.name == "end beyond 2^64" {
			c.p[PageHead+7] = 0xff
		}
		if g, err := ParsePage(c.p); !errors.Is(err, errs.ErrInvalid) {
			t.Errorf("%s: %+v, %v", c.name, g, err)
		}
	}
}

func FuzzPage(f *testing.F) {
	f.Add(AppendPage(nil, described(2), 0, 4096))
	f.Fuzz(func(t *testing.T, p []byte) {
		g, err := ParsePage(p)
		if err != nil {
			return
		}
		if g.Start > 1<<16 {
			return
		}
		d := &segment.Desc{Version: g.Version, Buffers: append(make([]segment.Buffer, g.Start), g.Buffers...)}
		again, err := ParsePage(AppendPage(nil, d, int(g.Start), math.MaxInt))
		if err != nil || !cmp.Equal(again.Buffers, g.Buffers) {
			t.Fatalf("%v\n%+v\n%+v", err, g, again)
		}
	})
}
