package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"strings"
	"testing"
	"testing/quick"

	"github.com/zeebo/xxh3"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/segment"
)

// TestPrefaces: no preface can be the length of a Mooncake frame, whatever the
// limit of its reader.
func TestPrefaces(t *testing.T) {
	const mooncakeMost = 128 << 20
	for _, p := range [][8]byte{PrefaceControl, PrefaceData} {
		if n := binary.LittleEndian.Uint64(p[:]); n <= mooncakeMost {
			t.Errorf("%q is %d", p, n)
		}
	}
	if PrefaceControl == PrefaceData {
		t.Error("they are the same")
	}
}

func TestHeaderRoundTrip(t *testing.T) {
	if err := quick.Check(func(h Header, meta []byte) bool {
		h.Count %= MaxDescs + 1
		h.Stream %= MaxStreams
		h.Payload %= MaxFrame + 1
		h.Meta = uint32(len(meta))
		p := append(make([]byte, HeaderSize), meta...)
		h.Put(p)
		Seal(p)
		got, err := ParseHeader(p)
		h.Check = binary.LittleEndian.Uint64(p[24:])
		return err == nil && got == h && Intact(p)
	}, nil); err != nil {
		t.Error(err)
	}
}

// TestCheckCoversHead: any bit of header or meta, and the order of two frames'
// metas, is noticed.
func TestCheckCoversHead(t *testing.T) {
	p := append(make([]byte, HeaderSize), "some meta"...)
	h := Header{Type: Write, Seq: 7, Meta: 9}
	h.Put(p)
	Seal(p)
	for at := range p {
		for bit := range 8 {
			q := bytes.Clone(p)
			q[at] ^= 1 << bit
			if Intact(q) {
				t.Errorf("byte %d bit %d is not covered", at, bit)
			}
		}
	}
	q := bytes.Clone(p)
	h.Seq = 8
	h.Put(q)
	Seal(q)
	copy(q[HeaderSize:], "other met")
	copy(q[24:32], p[24:32])
	if Intact(q) {
		t.Error("another frame's check is taken")
	}
}

func TestHeaderBounds(t *testing.T) {
	for name, h := range map[string]Header{
		"count": {Count: MaxDescs + 1}, "meta": {Meta: MaxMeta + 1}, "payload": {Payload: MaxFrame + 1}, "stream": {Stream: MaxStreams},
		"all": {Count: math.MaxUint16, Meta: math.MaxUint32, Payload: math.MaxUint32, Stream: math.MaxUint16},
	} {
		p := make([]byte, HeaderSize)
		h.Put(p)
		if _, err := ParseHeader(p); !errors.Is(err, errs.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	most := Header{Count: MaxDescs, Meta: MaxMeta, Payload: MaxFrame, Stream: MaxStreams - 1, Seq: math.MaxUint64}
	p := make([]byte, HeaderSize)
	most.Put(p)
	if got, err := ParseHeader(p); err != nil || got != most {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestTrailerSize(t *testing.T) {
	for _, c := range []struct {
		h    Header
		want int
	}{
		{Header{Type: Write, Count: 3}, 8}, {Header{Type: Write, Count: 3, Flags: FlagSums}, 32}, {Header{Type: Data, Count: 1, Flags: FlagSums}, 16},
		{Header{Type: Data, Flags: FlagSnapshot}, 8}, {Header{Type: Read, Count: 3, Flags: FlagSums}, 0}, {Header{Type: Ack, Count: 3, Flags: FlagSums}, 0},
		{Header{Type: Call}, 0}, {Header{Type: Call, Flags: FlagSums}, 8}, {Header{Type: Notify, Flags: FlagSums, Count: 9}, 8}, {Header{Type: 99, Flags: 0xff}, 0},
	} {
		if got := c.h.TrailerSize(); got != c.want {
			t.Errorf("%+v: %d, want %d", c.h, got, c.want)
		}
	}
}

func TestStreams(t *testing.T) {
	seen := make(map[Stream]bool)
	for _, read := range []bool{false, true} {
		for kind := range uint8(4) {
			for class := range uint8(8) {
				s := MakeStream(read, kind, class)
				if s >= MaxStreams || seen[s] || s.Reads() != read || s.Kind() != kind || s.Class() != class {
					t.Errorf("%d of %v %d %d", s, read, kind, class)
				}
				seen[s] = true
			}
		}
	}
}

func TestSmallStructs(t *testing.T) {
	p := make([]byte, GrantSize)
	if err := quick.Check(func(d Desc, o Outcome, x Exception, g Grant) bool {
		d.Put(p)
		okDesc := ParseDesc(p) == d
		o.Put(p)
		okOutcome := ParseOutcome(p) == o
		x.Put(p)
		okException := ParseException(p) == x
		g.Put(p)
		return okDesc && okOutcome && okException && ParseGrant(p) == g
	}, nil); err != nil {
		t.Error(err)
	}
	if n := testing.AllocsPerRun(100, func() {
		Desc{1, 2, 3}.Put(p)
		_ = ParseDesc(p)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestEndWords(t *testing.T) {
	for _, c := range errs.Codes() {
		if c == errs.OK {
			continue
		}
		if got, err := ParseEnd(Aborted(c)); err != nil || got != c {
			t.Errorf("%v: %v, %v", c, got, err)
		}
	}
	if c, err := ParseEnd(EndWhole); err != nil || c != errs.OK {
		t.Error(c, err)
	}
	for _, word := range []uint64{1, 2, 1 << 16, 0xd0<<16 | 3, 1<<32 | 1, math.MaxUint64} {
		if c, err := ParseEnd(word); err == nil {
			t.Errorf("%#x: %v", word, c)
		}
	}
}

func TestGreetingRoundTrip(t *testing.T) {
	if err := quick.Check(func(g Greeting) bool {
		g.Name, g.Detail = g.Name[:min(len(g.Name), maxText)], g.Detail[:min(len(g.Detail), maxText)]
		got, err := ParseGreeting(g.Append(nil))
		return err == nil && got == g
	}, nil); err != nil {
		t.Error(err)
	}
	if n := len((&Greeting{}).Append(nil)); n != 0 {
		t.Errorf("zero fields take %d bytes", n)
	}
	long := Greeting{Name: strings.Repeat("n", 2*maxText)}
	if g, err := ParseGreeting(long.Append(nil)); err != nil || len(g.Name) != maxText {
		t.Error(len(g.Name), err)
	}
}

// TestGreetingOfALaterVersion: fields that this one does not know are skipped.
func TestGreetingOfALaterVersion(t *testing.T) {
	p := []byte{200, 0, 3, 0, 1, 2, 3}
	p = (&Greeting{From: 7}).Append(p)
	p = append(p, 0xff, 0xff, 0, 0)
	if g, err := ParseGreeting(p); err != nil || g != (Greeting{From: segment.Incarnation(7)}) {
		t.Errorf("%+v, %v", g, err)
	}
}

func TestGreetingsThatAreRefused(t *testing.T) {
	for name, p := range map[string][]byte{
		"half a field": {1, 0, 8}, "a field beyond the end": {1, 0, 8, 0, 1}, "a number of 4 bytes": {3, 0, 4, 0, 1, 2, 3, 4},
		"a long name": append([]byte{tagName, 0, 1, 4}, make([]byte, 1025)...),
	} {
		if g, err := ParseGreeting(p); !errors.Is(err, errs.ErrInvalid) {
			t.Errorf("%s: %+v, %v", name, g, err)
		}
	}
}

func FuzzHeader(f *testing.F) {
	for _, v := range loadVectors(f).Frames {
		f.Add(unhex(f, v.Bytes)[len(v.Preface):])
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		h, err := ParseHeader(p)
		if err != nil {
			return
		}
		if h.Count > MaxDescs || h.Meta > MaxMeta || h.Payload > MaxFrame || h.Stream >= MaxStreams || h.TrailerSize() > MaxDescs*SumSize+EndSize {
			t.Fatalf("%+v", h)
		}
		q := make([]byte, HeaderSize)
		h.Put(q)
		binary.LittleEndian.PutUint64(q[24:], h.Check)
		if !bytes.Equal(q, p[:HeaderSize]) {
			t.Fatalf("%x became %x", p[:HeaderSize], q)
		}
		if head := HeaderSize + int(h.Meta); len(p) >= head {
			_ = Intact(p[:head])
		}
	})
}

func FuzzGreeting(f *testing.F) {
	for _, v := range loadVectors(f).Frames {
		if v.Greeting != nil {
			f.Add(v.Greeting.Append(nil))
		}
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		g, err := ParseGreeting(p)
		if err != nil {
			return
		}
		if again, err := ParseGreeting(g.Append(nil)); err != nil || again != g {
			t.Fatalf("%+v became %+v, %v", g, again, err)
		}
	})
}

// FuzzMeta: descriptors, outcomes, exceptions and grants are any bytes.
func FuzzMeta(f *testing.F) {
	f.Add(bytes.Repeat([]byte{0xff}, GrantSize))
	f.Fuzz(func(t *testing.T, p []byte) {
		q := make([]byte, GrantSize)
		if len(p) >= DescSize {
			if ParseDesc(p).Put(q); !bytes.Equal(q[:DescSize], p[:DescSize]) {
				t.Fatalf("%x became %x", p[:DescSize], q)
			}
		}
		if len(p) >= OutcomeSize {
			if ParseOutcome(p).Put(q); !bytes.Equal(q[:6], p[:6]) {
				t.Fatalf("%x became %x", p[:6], q)
			}
		}
		if len(p) >= GrantSize {
			if ParseGrant(p).Put(q); !bytes.Equal(q[8:], p[8:GrantSize]) || !bytes.Equal(q[:4], p[:4]) {
				t.Fatalf("%x became %x", p[:GrantSize], q)
			}
		}
		if len(p) >= EndSize {
			word := binary.LittleEndian.Uint64(p)
			if code, err := ParseEnd(word); err == nil && (code == errs.OK) != (word == EndWhole) {
				t.Fatalf("%#x is %v", word, code)
			}
		}
	})
}

// TestSum: the sum of a payload is the same whole and in parts, is plain xxh3-64
// up to one part, and depends on every part.
func TestSum(t *testing.T) {
	p := make([]byte, MaxFrame)
	for i := range p {
		p[i] = byte(i*7 + i>>11)
	}
	for _, n := range []int{0, 1, 1000, SumPart - 1, SumPart, SumPart + 1, 2 * SumPart, 3*SumPart + 5, MaxFrame - 1, MaxFrame} {
		var d Digest
		d.Add(1) // of another payload
		d.Reset()
		parts := 0
		for at := 0; at < n || at == 0; at += SumPart {
			d.Add(xxh3.Hash(p[at:min(n, at+SumPart)]))
			parts++
		}
		if got := Sum(p[:n]); got != d.Sum() {
			t.Errorf("%d bytes: whole %#x, in %d parts %#x", n, got, parts, d.Sum())
		}
		if n <= SumPart && Sum(p[:n]) != xxh3.Hash(p[:n]) {
			t.Errorf("%d bytes: not their xxh3-64", n)
		}
		for at := 0; at < n; at += SumPart / 2 {
			was := Sum(p[:n])
			if p[at] ^= 1; Sum(p[:n]) == was {
				t.Errorf("%d bytes: byte %d does not matter", n, at)
			}
			p[at] ^= 1
		}
	}
	if got, want := Sum(p[:300_000]), uint64(0x6b51dc8a761a37ca); got != want {
		t.Errorf("300,000 bytes: %#x, want %#x", got, want)
	}
}
