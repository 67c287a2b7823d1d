package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/zeebo/xxh3"

	"github.com/tideway-io/tideway/errs"
)

var rewrite = flag.Bool("rewrite", false, "compute the bytes in testdata/vectors.json anew from its fields")

const vectorFile = "testdata/vectors.json"

// vector is one frame in the form that testdata/vectors.json has, for anybody's
// second implementation: its fields, and its bytes. Numbers are decimal, bytes
// are hexadecimal.
type vector struct {
	Name    string    `json:"name"`
	About   string    `json:"about"`
	Preface string    `json:"preface,omitempty"` // text before the frame
	Type    Type      `json:"type"`
	Flags   uint8     `json:"flags,omitempty"`
	Stream  Stream    `json:"stream,omitempty"`
	Count   uint16    `json:"count,omitempty"`
	Status  errs.Code `json:"status,omitempty"`
	Seq     uint64    `json:"seq,omitempty"`

	// At most one of these is the meta.
	Greeting   *Greeting   `json:"greeting,omitempty"`
	Descs      []Desc      `json:"descs,omitempty"`
	Outcomes   []Outcome   `json:"outcomes,omitempty"`
	Exceptions []Exception `json:"exceptions,omitempty"`
	Grant      *Grant      `json:"grant,omitempty"`
	Session    uint64      `json:"session,omitempty"`
	Text       string      `json:"text,omitempty"`

	Payload string `json:"payload,omitempty"`
	Summed  string `json:"summed,omitempty"` // what the sums are of, if not the payload: it was cut short
	End     uint64 `json:"end,omitempty"`    // end word of Write and Data
	Bytes   string `json:"bytes"`
}

// bad is a head that must be refused.
type bad struct {
	Name  string `json:"name"`
	Why   string `json:"why"`
	Bytes string `json:"bytes"`
}

type vectorSet struct {
	Frames  []vector `json:"frames"`
	Refused []bad    `json:"refused"`
}

func loadVectors(t testing.TB) vectorSet {
	t.Helper()
	text, err := os.ReadFile(vectorFile)
	if err != nil {
		t.Fatal(err)
	}
	var set vectorSet
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&set); err != nil {
		t.Fatal(err)
	}
	return set
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	p, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// meta encodes whichever of the meta's forms is set.
func (v *vector) meta() []byte {
	var p []byte
	grow := func(n int) []byte {
		p = append(p, make([]byte, n)...)
		return p[len(p)-n:]
	}
	for _, d := range v.Descs {
		d.Put(grow(DescSize))
	}
	for _, o := range v.Outcomes {
		o.Put(grow(OutcomeSize))
	}
	for _, x := range v.Exceptions {
		x.Put(grow(OutcomeSize))
	}
	switch {
	case v.Greeting != nil:
		p = v.Greeting.Append(p)
	case v.Grant != nil:
		v.Grant.Put(grow(GrantSize))
	case v.Session != 0:
		p = binary.LittleEndian.AppendUint64(p, v.Session)
	}
	return append(p, v.Text...)
}

// pieces cuts the payload into what each sum is over.
func (v *vector) pieces(payload []byte) [][]byte {
	var out [][]byte
	cut := func(n uint32) {
		out = append(out, payload[:n])
		payload = payload[n:]
	}
	switch v.Type {
	case Write:
		for _, d := range v.Descs {
			cut(d.Length)
		}
	case Data:
		for _, o := range v.Outcomes {
			cut(o.Length)
		}
	default:
		out = append(out, payload)
	}
	return out
}

// summed is what the sums are of.
func (v *vector) summed(t testing.TB) []byte {
	if v.Summed != "" {
		return unhex(t, v.Summed)
	}
	return unhex(t, v.Payload)
}

func (v *vector) encode(t testing.TB) []byte {
	payload, meta := unhex(t, v.Payload), v.meta()
	p := append([]byte(v.Preface), make([]byte, HeaderSize)...)
	at := len(v.Preface)
	h := Header{Type: v.Type, Flags: v.Flags, Stream: v.Stream, Count: v.Count, Status: v.Status, Seq: v.Seq, Meta: uint32(len(meta)), Payload: uint32(len(payload))}
	h.Put(p[at:])
	p = append(p, meta...)
	Seal(p[at:])
	p = append(p, payload...)
	if h.TrailerSize() == 0 {
		return p
	}
	if v.Flags&FlagSums != 0 {
		for _, piece := range v.pieces(v.summed(t)) {
			p = binary.LittleEndian.AppendUint64(p, xxh3.Hash(piece))
		}
	}
	if v.Type == Write || v.Type == Data {
		p = binary.LittleEndian.AppendUint64(p, v.End)
	}
	return p
}

// TestVectorsEncode: from fields to bytes.
func TestVectorsEncode(t *testing.T) {
	set := loadVectors(t)
	types := make(map[Type]bool)
	for i := range set.Frames {
		v := &set.Frames[i]
		types[v.Type] = true
		got := hex.EncodeToString(v.encode(t))
		if *rewrite {
			v.Bytes = got
		} else if got != v.Bytes {
			t.Errorf("%s:\n%s, want\n%s", v.Name, got, v.Bytes)
		}
	}
	for typ := Hello; typ <= Reply; typ++ {
		if !types[typ] {
			t.Errorf("no vector of type %d", typ)
		}
	}
	if *rewrite {
		text, err := json.MarshalIndent(set, "", " ")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(vectorFile, append(text, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// TestVectorsDecode: from bytes to fields.
func TestVectorsDecode(t *testing.T) {
	for _, v := range loadVectors(t).Frames {
		p, ok := bytes.CutPrefix(unhex(t, v.Bytes), []byte(v.Preface))
		h, err := ParseHeader(p)
		if err != nil || !ok {
			t.Errorf("%s: %v", v.Name, err)
			continue
		}
		head := p[:HeaderSize+int(h.Meta)]
		if !Intact(head) || len(p) != len(head)+int(h.Payload)+h.TrailerSize() {
			t.Errorf("%s: intact %v, %d bytes, want %d+%d+%d", v.Name, Intact(head), len(p), len(head), h.Payload, h.TrailerSize())
			continue
		}
		got := vector{
			Name: v.Name, About: v.About, Preface: v.Preface, Bytes: v.Bytes, Type: h.Type, Flags: h.Flags, Stream: h.Stream, Count: h.Count,
			Status: h.Status, Seq: h.Seq, Summed: v.Summed, Payload: hex.EncodeToString(p[len(head) : len(head)+int(h.Payload)]),
		}
		got.read(t, head[HeaderSize:], p[len(head)+int(h.Payload):])
		if diff := cmp.Diff(v, got); diff != "" {
			t.Errorf("%s:\n%s", v.Name, diff)
		}
	}
}

// read decodes meta and trailer as the type says.
func (v *vector) read(t testing.TB, meta, trailer []byte) {
	switch v.Type {
	case Hello, Welcome:
		g, err := ParseGreeting(meta)
		if err != nil {
			t.Fatal(err)
		}
		v.Greeting = &g
	case Write, Read:
		for k := range int(v.Count) {
			v.Descs = append(v.Descs, ParseDesc(meta[k*DescSize:]))
		}
	case Data:
		for k := range int(v.Count) {
			v.Outcomes = append(v.Outcomes, ParseOutcome(meta[k*OutcomeSize:]))
		}
	case Ack:
		for k := range int(v.Count) {
			v.Exceptions = append(v.Exceptions, ParseException(meta[k*OutcomeSize:]))
		}
	case Credit:
		g := ParseGrant(meta)
		v.Grant = &g
	case Fence, Fenced:
		v.Session = binary.LittleEndian.Uint64(meta)
	default:
		v.Text = string(meta)
	}
	if v.Flags&FlagSums != 0 {
		for k, piece := range v.pieces(v.summed(t)) {
			if sum := binary.LittleEndian.Uint64(trailer[k*SumSize:]); sum != xxh3.Hash(piece) {
				t.Errorf("%s: sum %d is %#x", v.Name, k, sum)
			}
		}
	}
	if v.Type == Write || v.Type == Data {
		v.End = binary.LittleEndian.Uint64(trailer[len(trailer)-EndSize:])
		if _, err := ParseEnd(v.End); err != nil {
			t.Errorf("%s: %v", v.Name, err)
		}
	}
}

// TestVectorsRefused: heads that are wrong in one way each.
func TestVectorsRefused(t *testing.T) {
	for _, b := range loadVectors(t).Refused {
		p := unhex(t, b.Bytes)
		h, err := ParseHeader(p)
		if err == nil && len(p) >= HeaderSize+int(h.Meta) && Intact(p[:HeaderSize+int(h.Meta)]) {
			if _, err = ParseGreeting(p[HeaderSize:]); err == nil {
				t.Errorf("%s: taken, though %s", b.Name, b.Why)
			}
		}
	}
}

// TestDocShowsTheVectors: the examples in docs/wire.md are the bytes of the
// vectors that they name.
func TestDocShowsTheVectors(t *testing.T) {
	text, err := os.ReadFile("../../docs/wire.md")
	if err != nil {
		t.Fatal(err)
	}
	shown := 0
	for _, v := range loadVectors(t).Frames {
		_, after, ok := strings.Cut(string(text), "<!-- vector: "+v.Name+" -->\n```\n")
		if !ok {
			continue
		}
		shown++
		block, _, _ := strings.Cut(after, "```")
		var got strings.Builder
		for line := range strings.Lines(block) {
			bare, _, _ := strings.Cut(line, "#")
			got.WriteString(strings.Join(strings.Fields(bare), ""))
		}
		if got.String() != v.Bytes {
			t.Errorf("%s: the page shows\n%s, want\n%s", v.Name, got.String(), v.Bytes)
		}
	}
	if n := strings.Count(string(text), "<!-- vector: "); n != shown || shown < 4 {
		t.Errorf("%d examples, %d of them are vectors", n, shown)
	}
	for _, c := range errs.Codes() {
		if !strings.Contains(string(text), "`"+c.String()+"`") {
			t.Errorf("the page does not list code %v", c)
		}
	}
}
