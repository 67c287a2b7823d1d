package mooncake

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tideway-io/tideway/errs"

	"github.com/tideway-io/tideway/segment"
)

func stamp(t testing.TB, s string) time.Time {
	t.Helper()
	at, err := time.ParseInLocation(timeLayout, s, time.Local)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// TestGoldenDescriptors: what real engines wrote is read, and written again
// byte for byte.
func TestGoldenDescriptors(t *testing.T) {
	for _, c := range []struct{ file, at string }{
		{"tcp-request.json", "2026-11-29 12:03:10.214457"},
		{"tcp-reply.json", "2026-11-29 12:03:10.215099"},
		{"tcp-http-empty.json", "2026-11-29 12:03:34.351418"},
		{"tcp-http-one.json", "2026-11-29 12:03:34.358454"},
	} {
		want := golden(t, c.file)
		d, pages, err := DecodeDesc(want)
		if err != nil || pages != 0 {
			t.Fatal(c.file, pages, err)
		}
		got, err := EncodeDesc(d, stamp(t, c.at))
		if err != nil || !bytes.Equal(got, bytes.TrimSuffix(want, []byte("\n"))) {
			t.Errorf("%s: wrote\n%s, want\n%s, %v", c.file, got, want, err)
		}
	}
}

func TestDecodeClassic(t *testing.T) {
	d, _, err := DecodeDesc(golden(t, "tcp-two-buffers.json"))
	if err != nil {
		t.Fatal(err)
	}
	want := &segment.Desc{
		Name: "seg-tcp", Protocol: "tcp", TCPDataPort: 15123, TCPVersion: 2, Transports: []string{TransportName},
		Buffers: []segment.Buffer{
			{Addr: 17592186044416, Length: 4194304, Location: "*", Access: segment.ReadWrite},
			{Addr: 17592454479872, Length: 4194304, Location: "*", Access: segment.ReadWrite},
		},
		Lookup: map[string]int{},
	}
	if diff := cmp.Diff(want, d); diff != "" {
		t.Error(diff)
	}
}

func native() *segment.Desc {
	d := &segment.Desc{
		Name: "10.0.0.1:7070", Incarnation: 0x00c0ffee00000001, Version: 9, Addr: "10.0.0.1:7070", Addrs: []string{"10.1.0.1:7070", "[fd00::1]:7070"}, Host: "boot-é",
		Transports: []string{"shm", "tcp"}, Features: []string{"sums"}, Protocol: "tcp", TCPDataPort: 15777, TCPVersion: 2,
		Attrs: map[string][]byte{"shm": {0, 1, 255}},
		Raw:   map[string][]byte{"aaa": []byte(`[1]`), "tcp_x": []byte(`{"a":null}`), "zzz": []byte(`"z"`)},
		Buffers: []segment.Buffer{
			{Name: "kv", Addr: 0x7f0000000000, Length: 1 << 20, Location: "cpu:0", Access: segment.ReadWrite, Key: 7,
				Attrs: map[string][]byte{"rdma": {1}, "cuda": {2}}},
			{Name: "hidden", Addr: 0x7f0000200000, Length: 4096, Location: "cpu:0", Key: 8},
			{Name: "weights/0.bin", Length: 1 << 40, Location: "file", Access: segment.RemoteRead, Key: 9,
				Source: segment.Source{Size: 1 << 40, ModTime: -5, Inode: math.MaxUint64, Device: 3}},
			{Name: "empty", Addr: 0x7f0000400000, Location: "*", Access: segment.ReadWrite, Key: 10},
		},
	}
	d.Seal()
	return d
}

const nativeText = `{"aaa":[1],"buffers":[{"addr":139637976727552,"length":1048576,"name":"10.0.0.1:7070"}],"name":"10.0.0.1:7070","protocol":"tcp",` +
	`"tcp_data_port":15777,"tcp_proto_version":2,"tcp_x":{"a":null},"tideway":{"addr":"10.0.0.1:7070","addrs":["10.1.0.1:7070","[fd00::1]:7070"],"attrs":{"shm":"AAH/"},"buffers":[` +
	`{"access":"ro","addr":0,"key":9,"length":1099511627776,"location":"file","name":"weights/0.bin","source":{"device":3,"inode":18446744073709551615,"mtime":-5,"size":1099511627776}},` +
	`{"access":"rw","addr":139637976727552,"attrs":{"cuda":"Ag==","rdma":"AQ=="},"key":7,"length":1048576,"location":"cpu:0","name":"kv"},` +
	`{"access":"local","addr":139637978824704,"key":8,"length":4096,"location":"cpu:0","name":"hidden"},` +
	`{"access":"rw","addr":139637980921856,"key":10,"length":0,"location":"*","name":"empty"}],` +
	`"features":["sums"],"host":"boot-\u00e9","incarnation":"00c0ffee00000001","transports":["shm","tcp"],"version":9},` +
	`"timestamp":"2026-08-01 12:00:00.000001","zzz":"z"}`

func TestNativeDescriptor(t *testing.T) {
	text, err := EncodeDesc(native(), stamp(t, "2026-08-01 12:00:00.000001"))
	if err != nil || string(text) != nativeText {
		t.Fatalf("%v\n%s, want\n%s", err, text, nativeText)
	}
	d, pages, err := DecodeDesc(text)
	if err != nil || pages != 0 {
		t.Fatal(pages, err)
	}
	if diff := cmp.Diff(native(), d); diff != "" {
		t.Error(diff)
	}
}

// TestMemberIsIgnorable: without our member what is left is Mooncake's own.
func TestMemberIsIgnorable(t *testing.T) {
	text, err := EncodeDesc(native(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	i, j := bytes.Index(text, []byte(`"tideway":`)), bytes.Index(text, []byte(`"timestamp":`))
	d, _, err := DecodeDesc(append(text[:i:i], text[j:]...))
	if err != nil {
		t.Fatal(err)
	}
	if d.Incarnation != 0 || len(d.Buffers) != 1 || d.Buffers[0].Name != "" || d.Buffers[0].Addr != 0x7f0000000000 {
		t.Errorf("%+v", d)
	}
}

func many(n int) *segment.Desc {
	d := &segment.Desc{Name: "10.0.0.1:7070", Incarnation: 1, Version: 1, Addr: "10.0.0.1:7070", Transports: []string{"tcp"}, Buffers: make([]segment.Buffer, n)}
	for i := range d.Buffers {
		d.Buffers[i] = segment.Buffer{Name: fmt.Sprintf("layer-%06d", i), Addr: 1<<44 + uint64(i)<<14, Length: 1 << 14, Location: "cpu:0", Access: segment.ReadWrite, Key: segment.Key(i + 1)}
	}
	d.Seal()
	return d
}

// TestLongList: above the limit the member holds a pointer, and Mooncake's list
// is still whole, except in a request.
func TestLongList(t *testing.T) {
	const n = 100_000
	d := many(n)
	text, err := EncodeDesc(d, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	got, pages, err := DecodeDesc(text)
	if err != nil || pages != n || len(got.Buffers) != 0 || got.Incarnation != 1 || got.Addr != d.Addr {
		t.Fatalf("pages %d, %d buffers, %v", pages, len(got.Buffers), err)
	}
	if c := strings.Count(string(text), `{"addr":`); c != n+1 {
		t.Errorf("%d addresses, want %d in Mooncake's list", c, n+1)
	}
	request, err := EncodeRequest(d, time.Now())
	if err != nil || len(request) > 1024 {
		t.Errorf("request of %d bytes, %v", len(request), err)
	}
	few, err := EncodeDesc(many(3), time.Unix(0, 0))
	if err != nil {
		t.Fatal(err)
	}
	if request, err := EncodeRequest(many(3), time.Unix(0, 0)); err != nil || !bytes.Equal(few, request) {
		t.Errorf("a short list left out: %s, %v", request, err)
	}
}

// TestLongListIsLinear counts what is allocated for ten times as many buffers:
// time would depend on who else uses the CPUs.
func TestLongListIsLinear(t *testing.T) {
	work := func(n int) (times, bytes float64) {
		d := many(n)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		text, err := EncodeDesc(d, time.Unix(0, 0))
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := DecodeDesc(text); err != nil {
			t.Fatal(err)
		}
		runtime.ReadMemStats(&after)
		return float64(after.Mallocs - before.Mallocs), float64(after.TotalAlloc - before.TotalAlloc)
	}
	fewTimes, fewBytes := work(10_000)
	times, bytes := work(100_000)
	if times > 12*fewTimes || bytes > 15*fewBytes {
		t.Errorf("%.0f allocations of %.0f bytes for 100,000 buffers, %.0f of %.0f for 10,000; want about ten times as much", times, bytes, fewTimes, fewBytes)
	}
}

func TestMemberLimit(t *testing.T) {
	whole := 0
	for n := 1; n < 1<<16; n = n*5/4 + 1 {
		m, paged := appendMember(nil, many(n))
		if paged != (len(m) < 1000 && n > 100) {
			t.Fatalf("%d buffers: %d bytes, paged %v", n, len(m), paged)
		}
		if !paged {
			whole = len(m)
		}
	}
	if whole < MemberLimit*3/4 || whole > MemberLimit+1024 {
		t.Errorf("the longest whole member has %d bytes, limit %d", whole, MemberLimit)
	}
}

func TestDecodeRefuses(t *testing.T) {
	tcp := func(buffer string) string { return `{"buffers":[` + buffer + `],"name":"n","protocol":"tcp"}` }
	ours := func(member string) string { return `{"name":"n","tideway":` + member + `}` }
	for _, c := range []struct {
		text string
		want error
	}{
		{"null\n", errs.ErrNotFound},
		{`{"protocol":["tcp"],"name":"n"}`, errs.ErrUnsupported},
		{`{"protocol":["rdma","efa"],"name":"n"}`, errs.ErrUnsupported},
		{`{"name":"n"}`, errs.ErrUnsupported},
		{"", errs.ErrInvalid}, {"[]", errs.ErrInvalid}, {`{"name":[]}`, errs.ErrInvalid}, {`{"protocol":7}`, errs.ErrInvalid},
		{`{"tcp_data_port":65536}`, errs.ErrInvalid}, {`{"tcp_data_port":"1"}`, errs.ErrInvalid}, {`{"tcp_proto_version":-1}`, errs.ErrInvalid},
		{`{"buffers":7,"protocol":"tcp"}`, errs.ErrInvalid}, {`{"buffers":{},"protocol":"tcp"}`, errs.ErrInvalid}, {tcp("7"), errs.ErrInvalid},
		{tcp(`{"addr":1,"length":1}`), errs.ErrInvalid}, {tcp(`{"addr":0,"length":1,"name":"n"}`), errs.ErrInvalid},
		{tcp(`{"addr":1,"length":0,"name":"n"}`), errs.ErrInvalid}, {tcp(`{"addr":1.5,"length":1,"name":"n"}`), errs.ErrInvalid},
		{tcp(`{"addr":18446744073709551616,"length":1,"name":"n"}`), errs.ErrInvalid},
		{tcp(`{"addr":18446744073709551615,"length":2,"name":"n"}`), errs.ErrInvalid},
		{ours(`7`), errs.ErrInvalid}, {ours(`{}`), errs.ErrInvalid}, {ours(`{"incarnation":"1"}`), errs.ErrInvalid}, {ours(`{"incarnation":1}`), errs.ErrInvalid},
		{ours(`{"incarnation":"0000000000000000"}`), errs.ErrInvalid},
		{ours(`{"incarnation":"0000000000000001","buffers":[{"access":"rwx"}]}`), errs.ErrInvalid},
		{ours(`{"incarnation":"0000000000000001","buffers":[{"key":4294967296}]}`), errs.ErrInvalid},
		{ours(`{"incarnation":"0000000000000001","buffers":[{"addr":18446744073709551615,"length":1,"attrs":{"a":"*"}}]}`), errs.ErrInvalid},
		{ours(`{"incarnation":"0000000000000001","buffers_total":1048577}`), errs.ErrInvalid},
		{ours(`{"incarnation":"0000000000000001","features":[` + strings.Repeat(`"f",`, 65) + `]}`), errs.ErrInvalid},
		{ours(`{"incarnation":"0000000000000001","host":"` + strings.Repeat("h", 4097) + `"}`), errs.ErrInvalid},
	} {
		if d, _, err := DecodeDesc([]byte(c.text)); !errors.Is(err, c.want) || d != nil {
			t.Errorf("%.120s: %+v, %v, want %v", c.text, d, err, c.want)
		}
	}
}

func TestDecodeForgives(t *testing.T) {
	for _, c := range []struct {
		text string
		want segment.Desc
	}{
		{`{"protocol":"tcp"}`, segment.Desc{Protocol: "tcp", TCPVersion: 1, Transports: []string{TransportName}}},
		{`{"protocol":"tcp","buffers":null,"tideway":null,"timestamp":7}`, segment.Desc{Protocol: "tcp", TCPVersion: 1, Transports: []string{TransportName}}},
		{`{"protocol":["rdma","tcp"],"tideway":{"incarnation":"0000000000000001","later":{"x":[1]}}}`,
			segment.Desc{Protocol: "tcp", TCPVersion: 1, Incarnation: 1}},
	} {
		c.want.Seal()
		if d, _, err := DecodeDesc([]byte(c.text)); err != nil || !cmp.Equal(*d, c.want) {
			t.Errorf("%s: %+v, %v", c.text, d, err)
		}
	}
}

func TestTooManyBuffers(t *testing.T) {
	list := strings.Repeat(`{"addr":1,"length":1,"name":"n"},`, MaxBuffers+1)
	if _, _, err := DecodeDesc([]byte(`{"buffers":[` + list + `],"protocol":"tcp"}`)); !errors.Is(err, errs.ErrInvalid) {
		t.Error(err)
	}
}

func TestEncodeRefuses(t *testing.T) {
	if _, err := EncodeDesc(&segment.Desc{}, time.Now()); !errors.Is(err, errs.ErrInvalid) {
		t.Error(err)
	}
	if _, err := EncodeDesc(&segment.Desc{Name: "n", Protocol: "rdma"}, time.Now()); !errors.Is(err, errs.ErrUnsupported) {
		t.Error(err)
	}
}

func FuzzDesc(f *testing.F) {
	for _, s := range []string{"tcp-request.json", "tcp-two-buffers.json", "tcp-http-empty.json", "rdma.json"} {
		f.Add(golden(f, s))
	}
	f.Add([]byte(nativeText))
	f.Add([]byte(`{"name":"n","tideway":{"incarnation":"0000000000000001","paged":true,"buffers_total":7}}`))
	at := time.Unix(0, 0)
	f.Fuzz(func(t *testing.T, p []byte) {
		d, pages, err := DecodeDesc(p)
		if err != nil || d.Name == "" || d.Protocol != "tcp" {
			return
		}
		once, err := EncodeDesc(d, at)
		if err != nil {
			t.Fatal(err)
		}
		again, morePages, err := DecodeDesc(once)
		if err != nil {
			t.Fatalf("%v\n%s", err, once)
		}
		if pages == 0 && morePages == 0 && len(again.Buffers) != len(d.Buffers) {
			t.Fatalf("%d buffers became %d", len(d.Buffers), len(again.Buffers))
		}
		if twice, err := EncodeDesc(again, at); err != nil || pages == 0 && morePages == 0 && !bytes.Equal(once, twice) {
			t.Fatalf("%v\n%s\n%s", err, once, twice)
		}
	})
}

func BenchmarkDesc100k(b *testing.B) {
	d, now := many(100_000), time.Now()
	text, err := EncodeDesc(d, now)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("encode", func(b *testing.B) {
		for b.Loop() {
			_, _ = EncodeDesc(d, now)
		}
	})
	b.Run("decode", func(b *testing.B) {
		b.SetBytes(int64(len(text)))
		for b.Loop() {
			_, _, _ = DecodeDesc(text)
		}
	})
}
