package tcp

import (
	"math/bits"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/wire"
	"github.com/tideway-io/tideway/transport"
)

// copyLimit is the payload up to which copying into the frame costs less than
// another range.
const copyLimit = 1 << 10

// The window of one lane: what is accepted and not ended, whatever the peer
// grants. It bounds the memory of this side.
const (
	windowSlots = wire.DefaultSlots
	windowBytes = 64 << 20
)

// streamOf returns the stream that a slice belongs to.
func streamOf(s *transport.Slice) wire.Stream {
	kind := wire.ToMemory
	if s.Buffer.Location == "file" {
		kind = wire.ToFile
	}
	return wire.MakeStream(s.Op == transport.Read, kind, uint8(min(s.Class, 7)))
}

// accept takes a prefix of s, at most budget bytes beyond the first slice, and
// says why it took no more: OK if budget or s ended.
func (i *initiator) accept(s []transport.Slice, budget uint64) (n int, code errs.Code) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.mu.dead {
		return 0, errs.LaneLost
	}
	var taken uint64
	for ; n < len(s) && (n == 0 || taken < budget); n++ {
		size := uint64(len(s[n].Local))
		// A lane with nothing live takes one more, whatever completed early and
		// still holds a place: "later" must have something to wait for.
		if i.mu.live > 0 && (i.mu.slots >= windowSlots || i.mu.bytes+size > windowBytes) {
			code = errs.Overloaded
			break
		}
		i.push(&s[n])
		taken += size
	}
	i.load.Store(i.mu.bytes)
	return n, code
}

func (i *initiator) push(s *transport.Slice) {
	id := streamOf(s)
	st := i.mu.streams[id]
	if st == nil {
		st = &outStream{id: id}
		i.mu.streams[id] = st
	}
	st.ops.push(op{
		local: s.Local, offset: s.Offset, tag: s.Tag, length: uint32(len(s.Local)), key: uint32(s.Buffer.Key),
		snap: s.Retry > 0 && s.Op == transport.Read,
	})
	i.mu.active |= 1 << id
	i.mu.slots++
	i.mu.live++
	i.mu.bytes += uint64(len(s.Local))
}

// fill is machine.fill: it plans the next frames unless a plan is in hand.
func (i *initiator) fill() [][]byte {
	if i.snd.busy() {
		return i.snd.window()
	}
	i.mu.Lock()
	if i.mu.dead || i.mu.active == 0 && i.mu.ping == 0 && !i.mu.ponging && len(i.mu.fences)+len(i.mu.cancels) == 0 {
		i.mu.Unlock()
		return nil
	}
	i.snd.start()
	i.controls()
	for i.mu.active != 0 {
		id := nextBit(i.mu.active, i.mu.turn)
		if !i.frame(i.mu.streams[id]) {
			break
		}
		i.mu.turn = id + 1
	}
	i.mu.Unlock()
	for k := range i.frames {
		wire.Seal(i.frames[k].head)
	}
	if !i.snd.busy() {
		i.snd.finish()
		return nil
	}
	return i.snd.window()
}

// nextBit returns the first bit set in mask from position at on, around.
func nextBit(mask uint64, at int) int {
	at &= 63
	return (bits.TrailingZeros64(bits.RotateLeft64(mask, -at)) + at) & 63
}

// sent is machine.sent.
func (i *initiator) sent(n int) {
	if !i.snd.busy() {
		return
	}
	i.snd.advance(n)
	if k := i.shipped; k < len(i.frames) && i.frames[k].end <= i.snd.gone {
		i.mu.Lock()
		for ; k < len(i.frames) && i.frames[k].end <= i.snd.gone; k++ {
			f := &i.frames[k]
			f.st.written = f.first + uint64(f.count)
		}
		i.mu.Unlock()
		i.shipped = k
	}
	if !i.snd.busy() {
		clear(i.frames)
		i.frames, i.shipped = i.frames[:0], 0
		i.snd.finish()
	}
}

// controls plans the frames that are not requests.
func (i *initiator) controls() {
	if i.mu.ping != 0 {
		wire.Seal(i.snd.control(wire.Header{Type: wire.Ping, Seq: i.mu.ping}))
		i.mu.ping = 0
	}
	if i.mu.ponging {
		wire.Seal(i.snd.control(wire.Header{Type: wire.Pong, Seq: i.mu.pong}))
		i.mu.ponging = false
	}
	for _, f := range i.mu.fences {
		i.snd.fence(wire.Fence, f)
	}
	for _, c := range i.mu.cancels {
		wire.Seal(i.snd.control(wire.Header{Type: wire.Cancel, Stream: c.id, Count: c.count, Seq: c.first}))
	}
	i.mu.fences, i.mu.cancels = i.mu.fences[:0], i.mu.cancels[:0]
}

// frame plans one frame of a stream, as long as fits, and reports whether it
// did.
func (i *initiator) frame(st *outStream) bool {
	n, payload := i.measure(st)
	if n == 0 {
		return false
	}
	h := wire.Header{Type: wire.Write, Stream: st.id, Count: uint16(n), Seq: st.framed, Meta: uint32(n * wire.DescSize), Payload: uint32(payload)}
	if st.id.Reads() {
		h.Type, h.Payload = wire.Read, 0
		if st.ops.at(st.framed).snap {
			h.Flags |= wire.FlagSnapshot
		}
	} else if i.sums {
		h.Flags |= wire.FlagSums
	}
	f := sentFrame{st: st, first: st.framed, count: n, payload: int32(len(i.snd.payloads))}
	f.head = i.snd.control(h)
	for k := range n {
		o := st.ops.at(st.framed + uint64(k))
		wire.Desc{Offset: o.offset, Length: o.length, Key: o.key}.Put(f.head[wire.HeaderSize+k*wire.DescSize:])
	}
	if h.Type == wire.Write {
		for k := range n {
			if p := st.ops.at(st.framed + uint64(k)).local; len(p) <= copyLimit {
				i.snd.copied(p)
			} else {
				i.snd.referred(p)
			}
		}
		f.trailer = i.snd.trailer(&h, f.payload)
		i.snd.payload += payload
	}
	f.end = i.snd.size
	i.frames = append(i.frames, f)
	st.framed += uint64(n)
	i.mu.spent.Slots += uint64(n)
	i.mu.spent.Bytes += uint64(payload)
	if st.framed == st.ops.tail {
		i.mu.active &^= 1 << st.id
	}
	return true
}

// measure returns how many of a stream's ops go into its next frame, and their
// bytes.
func (i *initiator) measure(st *outStream) (n, payload int) {
	room, slots := i.snd.room()-frameRoom, i.snd.slots()-2
	budget := planPayload - i.snd.payload
	writes, snap := !st.id.Reads(), st.ops.at(st.framed).snap
	for n < wire.MaxDescs && st.framed+uint64(n) < st.ops.tail {
		o := st.ops.at(st.framed + uint64(n))
		size := int(o.length)
		if o.snap != snap || i.mu.spent.Slots+uint64(n) >= i.mu.grant.Slots || i.mu.spent.Bytes+uint64(payload+size) > i.mu.grant.Bytes {
			break
		}
		if room -= wire.DescSize + wire.SumSize; writes {
			if budget -= size; size > copyLimit {
				slots -= 2
			} else {
				room -= size
			}
		}
		if room < 0 || slots < 0 || budget < 0 {
			break
		}
		n, payload = n+1, payload+size
	}
	return n, payload
}
