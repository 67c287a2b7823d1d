package mooncake

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"runtime"
	"testing"
	"testing/iotest"

	"github.com/tideway-io/tideway/errs"
)

func golden(t testing.TB, name string) []byte {
	t.Helper()
	p, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestFramesAreByteExact(t *testing.T) {
	for _, c := range []struct {
		stream, body string
		kind         Kind
	}{
		{"metadata-request.bin", "tcp-request.json", Metadata},
		{"metadata-reply.bin", "tcp-reply.json", Metadata},
		{"notify-request.bin", "notify-request.json", Notify},
		{"notify-reply.bin", "notify-reply.json", Notify},
	} {
		want, body := golden(t, c.stream), golden(t, c.body)
		if got := AppendFrame(nil, c.kind, bytes.TrimSuffix(body, []byte("\n"))); !bytes.Equal(got, want) {
			t.Errorf("%s: wrote %x, want %x", c.stream, got, want)
		}
		f, err := ReadFrame(iotest.OneByteReader(bytes.NewReader(want)), DefaultLimit)
		if err != nil || f.Kind != c.kind || !bytes.Equal(f.Body, body) {
			t.Errorf("%s: read %v %q, %v", c.stream, f.Kind, f.Body, err)
		}
		if f, n, err := ParseFrame(want, DefaultLimit); err != nil || n != len(want) || !bytes.Equal(f.Body, body) {
			t.Errorf("%s: parsed %d bytes, %v", c.stream, n, err)
		}
	}
}

func TestProbeFrames(t *testing.T) {
	if got := AppendFrame(nil, Probe, AppendProbe(nil)); !bytes.Equal(got, []byte("\x04\x00\x00\x00\x00\x00\x00\x00\x03{}\n")) {
		t.Errorf("request %q", got)
	}
	if got := AppendFrame(nil, Probe, AppendProbeAnswer(nil)); !bytes.Equal(got, []byte("\x16\x00\x00\x00\x00\x00\x00\x00\x03{\"status\":\"success\"}\n")) {
		t.Errorf("answer %q", got)
	}
}

// TestForms: the first byte after the length tells typed, untyped and unknown apart.
func TestForms(t *testing.T) {
	frame := func(body string) []byte {
		return append(binary.LittleEndian.AppendUint64(nil, uint64(len(body))), body...)
	}
	for first := range 256 {
		f, err := ReadFrame(bytes.NewReader(frame(string([]byte{byte(first)})+"{}")), 64)
		switch {
		case first <= 3 && (err != nil || f.Kind != Kind(first) || string(f.Body) != "{}"):
			t.Errorf("%#x: %v, %v", first, f, err)
		case first > 3 && first < 0x80 && (err != nil || f.Kind != Untyped || len(f.Body) != 3):
			t.Errorf("%#x: %v, %v", first, f, err)
		case first >= 0x80 && !errors.Is(err, errs.ErrInvalid):
			t.Errorf("%#x: %v, want invalid", first, err)
		}
	}
	if got := AppendFrame(nil, Untyped, []byte("{}")); !bytes.Equal(got, frame("{}\n")) {
		t.Errorf("untyped %q", got)
	}
}

func TestLengthLimits(t *testing.T) {
	for _, c := range []struct {
		n     uint64
		limit int
		ok    bool
	}{
		{0, 64, false}, {64, 64, true}, {65, 64, false}, {1 << 63, MaxLimit, false},
		{DefaultLimit, 0, true}, {DefaultLimit + 1, 0, false}, {DefaultLimit + 1, MaxLimit + 1, false},
	} {
		p := binary.LittleEndian.AppendUint64(nil, c.n)
		if c.ok {
			p = append(p, bytes.Repeat([]byte{'{'}, int(c.n))...)
		}
		if _, err := ReadFrame(bytes.NewReader(p), c.limit); (err == nil) != c.ok || err != nil && !errors.Is(err, errs.ErrInvalid) {
			t.Errorf("length %d, limit %d: %v", c.n, c.limit, err)
		}
	}
}

// TestLengthIsNotBelieved: a peer that announces the most and sends nothing
// costs next to no memory.
func TestLengthIsNotBelieved(t *testing.T) {
	p := binary.LittleEndian.AppendUint64(nil, MaxLimit)
	const runs = 1000
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range runs {
		if _, err := ReadFrame(bytes.NewReader(p), MaxLimit); !errors.Is(err, errs.ErrUnreachable) || !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
	}
	runtime.ReadMemStats(&after)
	if n := (after.TotalAlloc - before.TotalAlloc) / runs; n > 16<<10 {
		t.Errorf("%d bytes for an empty frame", n)
	}
}

func TestCutFrames(t *testing.T) {
	whole := golden(t, "metadata-request.bin")
	for n := range whole {
		if _, err := ReadFrame(bytes.NewReader(whole[:n]), DefaultLimit); !errors.Is(err, errs.ErrUnreachable) {
			t.Fatalf("%d bytes: %v", n, err)
		}
		if _, took, err := ParseFrame(whole[:n], DefaultLimit); took != 0 || err != nil {
			t.Fatalf("%d bytes: took %d, %v", n, took, err)
		}
	}
}

func FuzzFrame(f *testing.F) {
	for _, s := range []string{"metadata-request.bin", "notify-reply.bin"} {
		f.Add(golden(f, s))
	}
	f.Add([]byte("\x04\x00\x00\x00\x00\x00\x00\x00\x02[]\n"))
	f.Fuzz(func(t *testing.T, p []byte) {
		read, rerr := ReadFrame(bytes.NewReader(p), DefaultLimit)
		parsed, n, perr := ParseFrame(p, DefaultLimit)
		if (n > 0 && perr == nil) != (rerr == nil) {
			t.Fatalf("read: %v, parsed %d: %v", rerr, n, perr)
		}
		if rerr != nil {
			return
		}
		if read.Kind != parsed.Kind || !bytes.Equal(read.Body, parsed.Body) || n > len(p) {
			t.Fatalf("read %v, parsed %v", read, parsed)
		}
		if body, ok := bytes.CutSuffix(read.Body, []byte("\n")); ok && (read.Kind != Untyped || len(body) > 0 && body[0] > 3) {
			if got := AppendFrame(nil, read.Kind, body); !bytes.Equal(got, p[:n]) {
				t.Fatalf("wrote %x, want %x", got, p[:n])
			}
		}
	})
}
