package tcp

import (
	"bytes"
	"testing"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/wire"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
)

// script turns fuzz input into bytes for a machine: frames with arbitrary
// fields and correct checks, which random bytes would never hit, and raw bytes.
// A frame is a tag byte, type, flags, stream, count, sequence, and one byte each
// for the units of meta, payload and trailer that follow.
func script(in []byte) []byte {
	var out []byte
	for len(in) >= 10 {
		if in[0] == 0xff {
			n := min(int(in[1]), len(in)-2)
			out, in = append(out, in[2:2+n]...), in[2+n:]
			continue
		}
		h := wire.Header{Type: wire.Type(in[1] % 20), Flags: in[2], Stream: wire.Stream(in[3] % wire.MaxStreams), Count: uint16(in[4]), Seq: uint64(int8(in[5])), Status: errs.Code(in[9])}
		sizes := in[6:9]
		in = in[10:]
		part := func(n int) []byte {
			n = min(n, len(in))
			p := in[:n]
			in = in[n:]
			return p
		}
		meta, payload, trailer := part(int(sizes[0])*wire.OutcomeSize), part(int(sizes[1])), part(int(sizes[2]))
		out = append(out, rawFrame(h, meta, payload, trailer)...)
	}
	return append(out, in...)
}

// feed gives b to a machine in pieces of step bytes, and takes what it wants to
// send; it returns the machine's complaint.
func feed(m machine, b []byte, step int) error {
	for {
		n := 0
		if len(b) > 0 {
			for _, p := range m.space() {
				k := copy(p, b[:min(len(b), step-n)])
				n, b = n+k, b[k:]
				if k < len(p) {
					break
				}
			}
			if err := m.got(n); err != nil {
				return err
			}
			m.deliver()
		}
		for from := m.fill(); len(from) > 0; from = m.fill() {
			size := 0
			for _, p := range from {
				size += len(p)
			}
			m.sent(min(size, step))
		}
		if n == 0 {
			return nil
		}
	}
}

// frames are seeds: what honest peers send.
func seedScripts(f *testing.F) {
	frame := func(typ wire.Type, flags uint8, stream wire.Stream, count, seq byte, meta, payload, trailer []byte) []byte {
		p := []byte{0, byte(typ), flags, byte(stream), count, seq, byte(len(meta) / wire.OutcomeSize), byte(len(payload)), byte(len(trailer)), 0}
		return append(append(append(p, meta...), payload...), trailer...)
	}
	w, r, file := wire.MakeStream(false, 0, 1), wire.MakeStream(true, 0, 1), wire.MakeStream(false, wire.ToFile, 1)
	ten := bytes.Repeat([]byte{5}, 10)
	d := rawDescs(wire.Desc{Length: 10, Key: 1})
	out := make([]byte, wire.OutcomeSize)
	wire.Outcome{Length: 10}.Put(out)
	write := frame(wire.Write, wire.FlagSums, w, 1, 0, d, ten, rawTrailer(ten))
	for _, seed := range [][]byte{
		write,
		append(bytes.Clone(write), frame(wire.Write, wire.FlagSums, w, 1, 1, d, ten, rawTrailer(ten))...),
		frame(wire.Write, wire.FlagSums, w, 1, 0, d, ten, rawTrailer(nil)),
		frame(wire.Write, wire.FlagSums, file, 1, 0, d, ten, rawTrailer(ten)),
		frame(wire.Read, 0, r, 1, 0, d, nil, nil),
		frame(wire.Read, wire.FlagSnapshot, r, 1, 0, rawDescs(wire.Desc{Length: 60_000, Key: 1}), nil, nil),
		frame(wire.Read, 0, r, 2, 0, rawDescs(wire.Desc{Length: 60_000, Key: 1}, wire.Desc{Length: 10, Key: 9}), nil, nil),
		frame(wire.Cancel, 0, r, 1, 0, nil, nil, nil),
		frame(wire.Ping, 0, 0, 0, 3, nil, nil, nil),
		frame(wire.Fence, 0, 0, 0, 3, make([]byte, 8), nil, nil),
		frame(wire.Data, wire.FlagSums, r, 1, 0, out, ten, rawTrailer(ten)),
		frame(wire.Ack, 0, w, 0, 1, nil, nil, nil),
		frame(wire.Credit, 0, 0, 0, 0, bytes.Repeat([]byte{0xff}, wire.GrantSize), nil, nil),
		frame(wire.Goaway, 0, 0, 0, 0, nil, nil, nil),
		frame(99, wire.FlagOptional, 0, 0, 0, nil, ten, nil),
		{0xff, 40, 1, 2, 3},
	} {
		f.Add(seed, uint16(1000))
		f.Add(seed, uint16(1))
	}
}

// FuzzTarget: whatever a peer sends, a target does not panic, writes only where
// it may, keeps no pins, and holds no more than it granted.
func FuzzTarget(f *testing.F) {
	seedScripts(f)
	f.Fuzz(func(t *testing.T, in []byte, step uint16) {
		memory := newTestMemory()
		backing := make([]byte, 3*65536)
		memory.add(backing[65536:2*65536:2*65536], segment.ReadWrite)
		memory.add(bytes.Repeat([]byte{0xAA}, 100), segment.RemoteRead)
		tr := &Transport{env: transport.Env{Memory: memory, Now: time.Now, Limits: defaultLimits()}}
		tr.writePlaces, tr.readPlaces = newPlaces(tr, true), newPlaces(tr, false)
		tr.in.lanes = map[laneID]*inbound{}
		l := &lane{closing: make(chan struct{}), wake: make(chan struct{}, 1)}
		l.blocked.Store(true) // nobody sends but feed
		target := newTarget(&inbound{t: tr, lane: l}, true)
		_ = feed(target, script(in), int(step)+1)
		for _, st := range target.mu.streams {
			if st != nil && (st.reads.len() > windowSlots || len(st.bad) > windowSlots) {
				t.Errorf("stream %d holds %d reads and %d exceptions", st.id, st.reads.len(), len(st.bad))
			}
		}
		close(l.closing)
		target.down(nil)
		if n := memory.pinned(); n != 0 {
			t.Errorf("%d pins are left", n)
		}
		if bytes.Count(backing[:65536], []byte{0}) != 65536 || bytes.Count(backing[2*65536:], []byte{0}) != 65536 {
			t.Error("memory beside the buffer was written")
		}
		if n := tr.writePlaces.count() + tr.readPlaces.count(); n != 0 {
			t.Errorf("%d frame buffers are held", n)
		}
	})
}

// silent takes an initiator's notices.
type silent struct{}

func (silent) goaway(errs.Code)              {}
func (silent) drained()                      {}
func (silent) fenced(fence)                  {}
func (silent) ponged(uint64)                 {}
func (silent) unsure([]transport.Completion) {}
func (silent) lost(*initiator, error)        {}

// FuzzInitiator: whatever a target answers, an initiator does not panic, writes
// only into ranges of its reads, and completes each slice at most once.
func FuzzInitiator(f *testing.F) {
	seedScripts(f)
	f.Fuzz(func(t *testing.T, in []byte, step uint16) {
		sink := newTestSink()
		tr := &Transport{env: transport.Env{Sink: sink, Now: time.Now, Limits: defaultLimits()}}
		i := newInitiator(tr, &lane{}, silent{}, &wire.Greeting{Slots: 100, Bytes: 1 << 20, Features: uint64(wire.FeatureSums)})
		backing := make([]byte, 300)
		var s []transport.Slice
		for k := range 8 {
			x := transport.Slice{Op: transport.Read, Class: 1, Local: backing[100+10*k : 110+10*k : 110+10*k], Buffer: &segment.Buffer{Key: 1}, Tag: transport.Tag(k)}
			if k%2 == 1 {
				x.Op, x.Local = transport.Write, make([]byte, 10)
			}
			s = append(s, x)
		}
		if n, _ := i.accept(s, 1<<20); n != len(s) {
			t.Fatal(n)
		}
		_ = feed(i, nil, 1<<20)
		_ = feed(i, script(in), int(step)+1)
		i.cancel(map[transport.Tag]struct{}{1: {}, 2: {}})
		i.down(errs.New(errs.LaneLost, "test", "over"))
		if len(sink.twice) > 0 {
			t.Errorf("slices %v completed twice", sink.twice)
		}
		for k := range 8 {
			unwritten := backing[100+10*k : 110+10*k]
			if k%2 == 1 && !bytes.Equal(unwritten, make([]byte, 10)) {
				t.Error("memory beside the reads was written")
			}
		}
		if bytes.Count(backing[:100], []byte{0}) != 100 || bytes.Count(backing[180:], []byte{0}) != 120 {
			t.Error("memory beside the reads was written")
		}
	})
}

// TestSplitFrames: frames arrive the same whatever pieces the bytes come in.
func TestSplitFrames(t *testing.T) {
	for _, step := range []int{1, 2, 3, 31, 33, 48, 1000, 1 << 20} {
		memory := newTestMemory()
		mem := make([]byte, 200_000)
		memory.add(mem, segment.ReadWrite)
		tr := &Transport{env: transport.Env{Memory: memory, Now: time.Now, Limits: defaultLimits()}}
		target := newTarget(&inbound{t: tr, lane: &lane{}}, true)
		want := make([]byte, len(mem))
		pattern(want, uint64(step))
		var stream []byte
		at, seq := 0, uint64(0)
		for _, parts := range [][]int{{10}, {0, 5, 0}, {4096, 1, 4096}, {150_000}, {0}, {300, 300}} {
			var descs []wire.Desc
			var payloads [][]byte
			for _, n := range parts {
				descs = append(descs, wire.Desc{Offset: uint64(at), Length: uint32(n), Key: 1})
				payloads = append(payloads, want[at:at+n])
				at += n
			}
			stream = append(stream, rawFrame(wire.Header{Type: wire.Write, Flags: wire.FlagSums, Count: uint16(len(parts)), Seq: seq}, rawDescs(descs...), bytes.Join(payloads, nil), rawTrailer(payloads...))...)
			seq += uint64(len(parts))
		}
		if err := feed(target, stream, step); err != nil {
			t.Errorf("step %d: %v", step, err)
		}
		if !bytes.Equal(mem[:at], want[:at]) {
			t.Errorf("step %d: memory differs", step)
		}
		if st := target.mu.streams[0]; st.acked != seq || len(st.bad) != 0 {
			t.Errorf("step %d: %d of %d acknowledged, %d exceptions", step, st.acked, seq, len(st.bad))
		}
	}
}
