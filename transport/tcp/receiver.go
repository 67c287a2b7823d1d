package tcp

import (
	"sync"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/wire"
)

// stagingSize holds the largest head of a frame (header and meta, 16 KiB of
// descriptors), the largest trailer, and many small frames at once.
const stagingSize = 64 << 10

// maxMeta is the meta that a data lane takes: wire.MaxDescs descriptors.
const maxMeta = wire.MaxDescs * wire.DescSize

// tailRoom is how much is read past a bulk payload: enough for its trailer and
// the next head, little enough that the next payload does not go through
// staging.
const tailRoom = 4 << 10

// maxReceive is how much payload one readv takes, little enough to be summed
// while it is in the cache.
const maxReceive = 2 * wire.SumPart

// bulkPayload is the size from which a payload counts as bulk.
const bulkPayload = 64 << 10

// maxPieces is how many destinations are resolved for one readv.
const maxPieces = 256

// consumer is what a receiver hands frames to.
type consumer interface {
	// begin takes a frame whose head is intact. meta is valid during the call.
	// Where the payload goes is set with receiver.expect before it returns.
	begin(h *wire.Header, meta []byte) error
	// dest returns the whole destination of a piece, nil to drop its bytes.
	// release follows once for each dest, after one system call or copy.
	dest(piece int) []byte
	release(piece int)
	// end takes the trailer of a frame whose payload has arrived; sums are then
	// in receiver.sums.
	end(h *wire.Header, trailer []byte) error
}

// The phases of a frame.
const (
	atHead = iota
	atPayload
	atTrailer
)

// receiver cuts the bytes of a lane into frames. Payload goes straight to its
// destination; heads, trailers and small frames go through staging, which is
// held only while there are bytes in it.
type receiver struct {
	to      consumer
	pools   *pools
	phase   int
	head    wire.Header
	buf     []byte // staging, nil when parked
	r, w    int    // buf[r:w] has arrived and is not yet used
	lens    []uint32
	total   uint64 // of lens
	sums    []uint64
	hash    bool        // sum each piece
	digest  wire.Digest // of the piece in hand
	piece   int         // the first piece that is not complete
	filled  int         // bytes of it that arrived
	vec     [][]byte
	dests   [][]byte // destinations resolved for the current space, from piece on
	tail    bool     // the last of vec is staging
	discard []byte
}

// expect sets the lengths of the pieces that the frame's payload consists of.
// lens is taken from r.lens[:0] by the caller; hash asks for their sums.
func (r *receiver) expect(lens []uint32, hash bool) {
	r.lens, r.hash, r.total = lens, hash, 0
	for _, n := range lens {
		r.total += uint64(n)
	}
	if cap(r.sums) < len(lens) {
		r.sums = make([]uint64, max(len(lens), 2*cap(r.sums)))
	}
	r.sums = r.sums[:len(lens)]
}

// space returns where the next bytes go.
func (r *receiver) space() [][]byte {
	if r.buf == nil {
		r.buf = r.pools.staging()
	}
	r.vec, r.dests, r.tail = r.vec[:0], r.dests[:0], true
	if r.phase == atPayload {
		room := maxReceive
		for i := r.piece; i < len(r.lens); i++ {
			if len(r.dests) == maxPieces || room <= 0 {
				r.tail = false
				return r.vec
			}
			room = r.open(i, room)
		}
		if room < 0 {
			r.tail = false
			return r.vec
		}
	}
	r.vec = append(r.vec, r.room())
	return r.vec
}

// open resolves piece i and appends what is missing of it to vec, at most room
// bytes. It returns how much room is left, negative if the piece does not fit.
func (r *receiver) open(i, room int) int {
	d := r.to.dest(i)
	r.dests = append(r.dests, d)
	if d == nil {
		d = r.waste(int(r.lens[i]))
	}
	if i == r.piece {
		d = d[r.filled:]
	}
	r.vec = append(r.vec, d[:min(len(d), room)])
	return room - len(d)
}

// waste returns n bytes that nobody reads.
func (r *receiver) waste(n int) []byte {
	if r.discard == nil {
		r.discard = r.pools.big()
	}
	return r.discard[:n]
}

// unwaste gives the buffer for dropped bytes back.
func (r *receiver) unwaste() {
	if r.discard != nil {
		r.pools.putBig(r.discard)
		r.discard = nil
	}
}

// room returns the part of staging that the next bytes may fill, after making
// place for the largest head or trailer.
func (r *receiver) room() []byte {
	if r.r == r.w {
		r.r, r.w = 0, 0
	} else if len(r.buf)-r.r < wire.HeaderSize+maxMeta {
		r.w = copy(r.buf, r.buf[r.r:r.w])
		r.r = 0
	}
	if r.head.Payload < bulkPayload {
		return r.buf[r.w:]
	}
	n := tailRoom
	if r.phase == atHead && r.w-r.r >= wire.HeaderSize {
		n += maxMeta
	}
	return r.buf[r.w:min(len(r.buf), r.w+n+r.head.TrailerSize())]
}

// got takes the n bytes that were put into space, in order.
func (r *receiver) got(n int) error {
	base := r.piece
	for k := 0; k < len(r.dests) && base+k == r.piece; k++ {
		n -= r.advance(r.dests[k], n)
	}
	for k := range r.dests {
		r.to.release(base + k)
	}
	clear(r.vec)
	clear(r.dests)
	r.vec, r.dests = r.vec[:0], r.dests[:0]
	if !r.tail {
		return nil
	}
	r.w += n
	return r.parse()
}

// advance counts up to n bytes that arrived in the current piece, whose whole
// destination is d, and returns how many were its.
func (r *receiver) advance(d []byte, n int) int {
	size := int(r.lens[r.piece])
	m := min(n, size-r.filled)
	was := r.filled
	r.filled += m
	if r.hash && d != nil {
		r.digestPiece(d, was)
	}
	if r.filled == size {
		r.piece, r.filled = r.piece+1, 0
	}
	return m
}

// digestPiece sums each part of the current piece as soon as it is there: it is
// in the cache now. Before, was bytes had arrived.
func (r *receiver) digestPiece(d []byte, was int) {
	if len(d) <= wire.SumPart {
		if r.filled == len(d) {
			r.sums[r.piece] = sum(d)
		}
		return
	}
	if was == 0 {
		r.digest.Reset()
	}
	at := was / wire.SumPart * wire.SumPart
	for ; r.filled-at >= wire.SumPart; at += wire.SumPart {
		r.digest.Add(sum(d[at : at+wire.SumPart]))
	}
	if r.filled == len(d) {
		if at < len(d) {
			r.digest.Add(sum(d[at:]))
		}
		r.sums[r.piece] = r.digest.Sum()
	}
}

// parse uses what is in staging.
func (r *receiver) parse() error {
	for {
		switch r.phase {
		case atHead:
			if ok, err := r.parseHead(); !ok {
				return err
			}
		case atPayload:
			if !r.copyPayload() {
				return nil
			}
			r.phase = atTrailer
		case atTrailer:
			n := r.head.TrailerSize()
			if r.w-r.r < n {
				return nil
			}
			trailer := r.buf[r.r : r.r+n]
			r.r += n
			r.phase = atHead
			r.unwaste()
			if err := r.to.end(&r.head, trailer); err != nil {
				return err
			}
		}
	}
}

// parseHead reports whether a whole head was there and begins its frame.
func (r *receiver) parseHead() (bool, error) {
	if r.w-r.r < wire.HeaderSize {
		return false, nil
	}
	h, err := wire.ParseHeader(r.buf[r.r:r.w])
	if err != nil {
		return false, err
	}
	if h.Meta > maxMeta {
		return false, errs.New(errs.Invalid, "receive", "meta of %d bytes, a data lane takes %d", h.Meta, maxMeta)
	}
	size := wire.HeaderSize + int(h.Meta)
	if r.w-r.r < size {
		return false, nil
	}
	head := r.buf[r.r : r.r+size]
	if !wire.Intact(head) {
		return false, errs.New(errs.Checksum, "receive", "head of a frame of type %d does not match its check", h.Type)
	}
	r.r += size
	r.head, r.phase = h, atPayload
	r.piece, r.filled = 0, 0
	r.expect(r.lens[:0], false)
	if err := r.to.begin(&r.head, head[wire.HeaderSize:]); err != nil {
		return false, err
	}
	if r.total != uint64(h.Payload) {
		return false, errs.New(errs.Invalid, "receive", "frame of type %d with %d bytes of payload for requests of %d", h.Type, h.Payload, r.total)
	}
	return true, nil
}

// copyPayload moves payload from staging to its destination and reports whether
// all of it has arrived.
func (r *receiver) copyPayload() bool {
	for r.piece < len(r.lens) {
		have := r.w - r.r
		if have == 0 && r.lens[r.piece] > 0 {
			return false
		}
		i := r.piece
		d := r.to.dest(i)
		if d != nil {
			move(d[r.filled:], r.buf[r.r:r.w])
		}
		r.r += r.advance(d, have)
		r.to.release(i)
	}
	return true
}

// park gives staging back if nothing is in it.
func (r *receiver) park() {
	if r.r == r.w && r.buf != nil {
		r.pools.putStaging(r.buf)
		r.buf, r.r, r.w = nil, 0, 0
	}
}

// drop ends the receiver: nothing comes any more.
func (r *receiver) drop() {
	r.r, r.w, r.vec, r.dests = 0, 0, nil, nil
	r.park()
	r.unwaste()
}

// pools are the buffers that the lanes of one transport share.
type pools struct {
	stagings  sync.Pool // *[stagingSize]byte
	scratches sync.Pool // *[scratchSize]byte
	bigs      sync.Pool // *[wire.MaxFrame]byte
	once      sync.Once
	zeros     []byte
}

func (p *pools) staging() []byte {
	if b, ok := p.stagings.Get().(*[stagingSize]byte); ok {
		return b[:]
	}
	return new([stagingSize]byte)[:]
}

func (p *pools) putStaging(b []byte) { p.stagings.Put((*[stagingSize]byte)(b)) }

func (p *pools) scratch() []byte {
	if b, ok := p.scratches.Get().(*[scratchSize]byte); ok {
		return b[:0]
	}
	return new([scratchSize]byte)[:0]
}

func (p *pools) putScratch(b []byte) { p.scratches.Put((*[scratchSize]byte)(b[:scratchSize])) }

// big is a buffer for one whole frame's payload.
func (p *pools) big() []byte {
	if b, ok := p.bigs.Get().(*[wire.MaxFrame]byte); ok {
		return b[:]
	}
	return new([wire.MaxFrame]byte)[:]
}

func (p *pools) putBig(b []byte) { p.bigs.Put((*[wire.MaxFrame]byte)(b[:wire.MaxFrame])) }

// zero returns n bytes of zeros that are only read. They stand in for memory that
// may not be touched any more.
func (p *pools) zero(n int) []byte {
	p.once.Do(func() { p.zeros = make([]byte, wire.MaxFrame) })
	return p.zeros[:n]
}
