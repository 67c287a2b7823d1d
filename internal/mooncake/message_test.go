package mooncake

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/tideway-io/tideway/errs"
)

func TestNotices(t *testing.T) {
	for _, c := range []struct {
		file string
		want Notice
	}{
		{"notify-request.json", Notice{"golden-notify", "hello from initiator"}},
		{"notify-reply.json", Notice{Text: "success"}},
	} {
		text := golden(t, c.file)
		got, err := ParseNotice(text)
		if err != nil || got != c.want {
			t.Errorf("%s: %+v, %v", c.file, got, err)
		}
		if p := append(got.Append(nil), '\n'); !bytes.Equal(p, text) {
			t.Errorf("%s: wrote %s", c.file, p)
		}
	}
	if got := string(AppendNoticeAnswer(nil, true)); got != `{"name":"","notify_msg":"success"}` {
		t.Error(got)
	}
	if got := string(AppendNoticeAnswer(nil, false)); got != `{"name":"","notify_msg":""}` {
		t.Error(got)
	}
}

func TestHellos(t *testing.T) {
	for _, file := range []string{"connection-request.json", "connection-reply.json"} {
		text := golden(t, file)
		h, err := ParseHello(text)
		if err != nil {
			t.Fatal(file, err)
		}
		if p := append(h.Append(nil), '\n'); !bytes.Equal(p, text) {
			t.Errorf("%s: wrote %s", file, p)
		}
	}
	ready := true
	want := Hello{LocalGID: "g", LocalLID: 7, LocalPath: "a@b", Payload: "p", PeerPath: "c@d", QPNums: []uint32{1, 1<<32 - 1}, Ready: &ready, Reply: "no"}
	got, err := ParseHello(want.Append(nil))
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestWrongShapes: what makes a real peer abort is an error here.
func TestWrongShapes(t *testing.T) {
	deep := strings.Repeat("[", 1<<16)
	for _, text := range []string{
		"", "[]", `"text"`, "7", "null", "{", `{"name"`, `{"name":`, `{"name":[]}`, `{"name":7}`, `{"notify_msg":{}}`, `{7:1}`, `{null:1}`,
		`{"name":"a`, `{"name":"\`, `{"name":"\u12`, `{"name":"\u12g4"}`, `{"name":"\q"}`, `{"a":` + deep, `{"a":tru}`, `{"a":1 "b":2}`, `{"a":/x 1}`, `{"a":/* 1}`,
	} {
		if n, err := ParseNotice([]byte(text)); !errors.Is(err, errs.ErrInvalid) {
			t.Errorf("%.40s: %+v, %v", text, n, err)
		}
	}
	for _, text := range []string{
		`{"qp_num":[[]]}`, `{"qp_num":["1"]}`, `{"qp_num":[-1]}`, `{"qp_num":[4294967296]}`, `{"qp_num":7}`, `{"local_lid":65536}`, `{"local_lid":1.5}`, `{"ready_ack":1}`,
		`{"qp_num":[` + strings.Repeat("1,", 1025) + `]}`,
	} {
		if h, err := ParseHello([]byte(text)); !errors.Is(err, errs.ErrInvalid) {
			t.Errorf("%.40s: %+v, %v", text, h, err)
		}
	}
}

// TestLeniency: what real readers let through is let through.
func TestLeniency(t *testing.T) {
	for _, text := range []string{
		`{"name":"n","notify_msg":"m"}garbage`,
		"// comment\n{\"name\":\"n\",/* c */\"notify_msg\":\"m\",}",
		`{"x":[1,-2.5e3,true,false,null,{"y":[],},"\"]"],"name":"n","notify_msg":"m"}`,
		`{"name":null,"name":"n","notify_msg":"\u006d"}`,
	} {
		if n, err := ParseNotice([]byte(text)); err != nil || n != (Notice{"n", "m"}) {
			t.Errorf("%s: %+v, %v", text, n, err)
		}
	}
	if h, err := ParseHello([]byte(`{"local_gid":7,"local_lid":"x","payload":"p"}`)); err != nil || !reflect.DeepEqual(h, Hello{Payload: "p"}) {
		t.Errorf("%+v, %v", h, err)
	}
	if n, err := ParseNotice([]byte("{}")); err != nil || n != (Notice{}) {
		t.Errorf("missing members: %+v, %v", n, err)
	}
}

func TestNative(t *testing.T) {
	for _, c := range []struct {
		text   string
		native bool
		bad    bool
	}{
		{string(golden(t, "tcp-request.json")), false, false}, {nativeText, true, false}, {`{"tideway":1}`, true, false}, {"{}", false, false},
		{"[]", false, true}, {"null", false, true}, {`{"tideway":`, true, true},
	} {
		if native, err := Native([]byte(c.text)); native != c.native || (err != nil) != c.bad {
			t.Errorf("%.40s: %v, %v", c.text, native, err)
		}
	}
}

func TestStrings(t *testing.T) {
	for _, c := range []struct{ s, text string }{
		{"a/b", `"a/b"`}, {"\"\\\b\f\n\r\t", `"\"\\\b\f\n\r\t"`}, {"\x00\x1f\x7f", "\"\\u0000\\u001f\x7f\""},
		{"é€", `"\u00e9\u20ac"`}, {"😀", `"\ud83d\ude00"`},
	} {
		if got := string(appendString(nil, c.s)); got != c.text {
			t.Errorf("%q: wrote %s, want %s", c.s, got, c.text)
		}
		cur := cursor{p: []byte(c.text)}
		if got := cur.str(); got != c.s || cur.err != nil {
			t.Errorf("%s: read %q, %v", c.text, got, cur.err)
		}
	}
	if got := string(appendString(nil, "a\xffb")); got != `"a\ufffdb"` {
		t.Errorf("bytes that are not UTF-8: %s", got)
	}
	for _, text := range []string{`"\ud83d"`, `"\ude00"`, `"\ud83d\u0041"`} {
		cur := cursor{p: []byte(text)}
		if got := cur.str(); !strings.HasPrefix(got, "\ufffd") || cur.err != nil {
			t.Errorf("%s: %q, %v", text, got, cur.err)
		}
	}
}

func FuzzMessages(f *testing.F) {
	for _, s := range []string{"notify-request.json", "connection-request.json", "connection-reply.json", "probe-request.json"} {
		f.Add(golden(f, s))
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		if n, err := ParseNotice(p); err == nil {
			text := n.Append(nil)
			if again, err := ParseNotice(text); err != nil || !bytes.Equal(again.Append(nil), text) {
				t.Fatalf("%q: %+v, %v", text, again, err)
			}
		}
		if h, err := ParseHello(p); err == nil {
			text := h.Append(nil)
			if again, err := ParseHello(text); err != nil || !bytes.Equal(again.Append(nil), text) {
				t.Fatalf("%q: %+v, %v", text, again, err)
			}
		}
		_, _ = Native(p)
	})
}
