package topology

import "testing"

func TestLocation(t *testing.T) {
	for _, c := range []struct {
		in    string
		ok    bool
		want  Location
		kind  Kind
		index int
	}{
		{"", true, Any, "*", -1},
		{"*", true, Any, "*", -1},
		{"file", true, File, "file", -1},
		{"cpu:0", true, "cpu:0", "cpu", 0},
		{"cuda:13", true, "cuda:13", "cuda", 13},
		{"ascend_npu:2", true, "ascend_npu:2", "ascend_npu", 2},
		{in: "cpu"}, {in: "cpu:"}, {in: ":0"}, {in: "cpu:-1"}, {in: "cpu:+1"}, {in: "cpu:01"}, {in: "cpu:1:2"}, {in: "CPU:0"}, {in: "cpu 0"}, {in: "cpu:0 "},
		{in: "file:0"}, {in: "*:0"}, {in: "cpu:99999999999999999999"},
	} {
		got, err := ParseLocation(c.in)
		if (err == nil) != c.ok || got != c.want {
			t.Errorf("ParseLocation(%q) = %q, %v; want %q, ok %t", c.in, got, err, c.want, c.ok)
		}
		if c.ok && (got.Kind() != c.kind || got.Index() != c.index) {
			t.Errorf("%q: kind %q, index %d; want %q, %d", c.in, got.Kind(), got.Index(), c.kind, c.index)
		}
	}
	if l := Location(""); l.Kind() != "*" || l.Index() != -1 {
		t.Errorf("the zero location is %q:%d, want that of %q", l.Kind(), l.Index(), Any)
	}
	if l := Location("cpu:x"); l.Index() != -1 {
		t.Errorf("a location that was never parsed has index %d", l.Index())
	}
}

func FuzzParseLocation(f *testing.F) {
	for _, s := range []string{"", "*", "file", "cpu:0", "cuda:7", "cpu:-1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		l, err := ParseLocation(s)
		if err != nil {
			return
		}
		if again, err := ParseLocation(string(l)); err != nil || again != l {
			t.Errorf("%q parses to %q, which parses to %q, %v", s, l, again, err)
		}
		if l != Any && l != File && l.Index() < 0 {
			t.Errorf("%q has no index", s)
		}
	})
}
