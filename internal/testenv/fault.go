package testenv

// Dir is a direction through a Proxy.
type Dir int

// The directions, seen from who connects.
const (
	Up   Dir = 0 // from the client to the target
	Down Dir = 1 // from the target to the client
)

// Kind is what a fault does to a stream.
type Kind int

// The faults.
const (
	Flip   Kind = iota + 1 // one bit of the byte at At is changed
	Delete                 // Len bytes from At never arrive, those behind them do
	Repeat                 // Len bytes from At arrive twice
	Swap                   // Len bytes from At and the Len bytes behind them change places
	Close                  // the stream ends cleanly before the byte at At
	Reset                  // the connection is reset before the byte at At, which may take some earlier ones with it
	Stall                  // from the byte at At on nothing moves on this connection, in neither direction
)

// Fault is one accident that happens once, to the bytes of one direction. Held
// back bytes (Repeat, Swap) are let go when the stream ends before it has them all.
type Fault struct {
	Dir  Dir
	Kind Kind
	// Conn is the connection it happens to, 1 for the first that was accepted;
	// At then counts that connection's bytes. 0 means any: At counts the bytes
	// of all connections in this direction, in the order they are read.
	Conn int
	At   uint64 // first byte concerned, from 0; one that has passed means the next
	Len  int    // bytes concerned, for Delete, Repeat and Swap
}

// span is how many bytes from At a fault must see to do its work.
func (f Fault) span() int {
	switch f.Kind {
	case Flip:
		return 1
	case Delete, Repeat:
		return f.Len
	case Swap:
		return 2 * f.Len
	}
	return 0
}

// editor applies faults to one stream that comes in pieces.
type editor struct {
	next func(pos, n int) (f Fault, at int, ok bool) // first fault in [pos, pos+n) of this piece
	now  Fault                                       // in force while need > 0
	need int                                         // bytes it still waits for
	held []byte                                      // bytes it has
}

// edit returns what is to be sent for a piece of the stream, and the kind of the
// fault that ends the stream behind it, or 0. The result is buf itself when
// nothing happens to it.
func (e *editor) edit(buf []byte) (out []byte, ends Kind) {
	var pos int
	for pos < len(buf) {
		if e.need > 0 {
			n := min(e.need, len(buf)-pos)
			e.held = append(e.held, buf[pos:pos+n]...)
			pos, e.need = pos+n, e.need-n
			if e.need == 0 {
				out = append(out, e.release()...)
			}
			continue
		}
		f, at, ok := e.next(pos, len(buf)-pos)
		if !ok && pos == 0 {
			return buf, 0
		}
		if !ok {
			return append(out, buf[pos:]...), 0
		}
		out, pos = append(out, buf[pos:at]...), at
		if f.Kind >= Close {
			return out, f.Kind
		}
		e.now, e.need, e.held = f, f.span(), nil
	}
	return out, 0
}

// release returns what the fault in force makes of the bytes held.
func (e *editor) release() []byte {
	h, n := e.held, e.now.Len
	e.held, e.need = nil, 0
	switch {
	case e.now.Kind == Flip && len(h) == 1:
		h[0] ^= 0x40
	case e.now.Kind == Delete:
		return nil
	case e.now.Kind == Repeat:
		return append(h[:len(h):len(h)], h...)
	case e.now.Kind == Swap && len(h) == 2*n:
		return append(h[n:n+n:n+n], h[:n]...)
	}
	return h
}

// rest returns what is held when the stream ends.
func (e *editor) rest() []byte {
	if e.now.Kind == Repeat {
		return e.held
	}
	return e.release()
}
