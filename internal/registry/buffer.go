package registry

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
)

// Buffer is one registered range. Its methods may be called from any goroutine.
type Buffer struct {
	pub   segment.Buffer // as published; unchanged once Register returned it
	bytes []byte         // the memory, nil for a file
	file  transport.File
	free  func() error
	reg   *Registry

	// state is the closing bit, the count of local uses and the count of pins.
	// The bit is never cleared, so whoever sees both counts at 0 after it was
	// set knows that nobody will ever be inside again.
	state atomic.Uint64
	// ending is made before the closing bit is set and not changed after.
	ending *ending

	ready    chan struct{} // closed when attach is over
	failed   error         // why it ended badly; read after ready
	attached bool          // Detach is owed; after ready guarded by ending.turn

	// Guarded by reg.mu:
	refs      int
	published bool
}

// The layout of Buffer.state: bit 63, 31 bits, 32 bits.
const (
	closing = 1 << 63
	oneUse  = 1 << 32
	onePin  = 1
	inside  = closing - 1 // both counts
	pinMask = oneUse - 1
)

// ending is what the close of a buffer needs besides.
type ending struct {
	turn  chan struct{} // holds one token while somebody is in end
	quiet chan struct{} // gets a token when the counts reach 0 after the closing bit
	gone  bool          // guarded by turn
}

// Desc returns the buffer as peers see it. It is shared: do not change it.
func (b *Buffer) Desc() *segment.Buffer { return &b.pub }

// Bytes returns the memory, nil for a file.
func (b *Buffer) Bytes() []byte { return b.bytes }

// File returns the file, nil for memory.
func (b *Buffer) File() transport.File { return b.file }

// String names the buffer and its range for people.
func (b *Buffer) String() string {
	name := b.pub.Name
	if name == "" {
		name = "(unnamed)"
	}
	if b.file != nil {
		return fmt.Sprintf("%s, a file of %d bytes", name, b.pub.Length)
	}
	return fmt.Sprintf("%s [%#x, %#x)", name, b.pub.Addr, b.pub.Addr+b.pub.Length)
}

// last is the address of the last byte. Only memory has one, and never none.
func (b *Buffer) last() uint64 { return b.pub.Addr + (b.pub.Length - 1) }

// again counts a reference for a registration that is identical to b, and
// refuses one that is not. Callers hold reg.mu.
func (b *Buffer) again(other *Buffer) error {
	x, y := &b.pub, &other.pub
	if x.Addr != y.Addr || x.Length != y.Length {
		return errs.New(errs.Overlap, "register buffer", "%v overlaps the registered %v: register the whole range once, or close that buffer first", other, b)
	}
	if x.Name != y.Name || x.Access != y.Access || x.Location != y.Location {
		return errs.New(errs.Overlap, "register buffer", "%v (%v, %v) is registered as %v (%v, %v): the same range may be registered again only with the same name, access and location",
			other, y.Access, y.Location, b, x.Access, x.Location)
	}
	if other.free != nil {
		return errs.New(errs.Invalid, "register buffer", "%v is registered already: a repeated registration cannot bring a Free of its own", b)
	}
	if b.refs == 0 {
		e := errs.New(errs.Busy, "register buffer", "%v is being closed: wait for Close to return", b)
		e.Retryable = true
		return e
	}
	b.refs++
	return nil
}

// await waits for whoever registered the identical range first to finish.
func (b *Buffer) await(ctx context.Context) error {
	select {
	case <-b.ready:
		return b.failed
	case <-ctx.Done():
	}
	_ = b.Close(ctx) // gives the reference back; the first one is still there
	return &errs.Error{Op: "register buffer", Detail: b.String(), Reason: errs.Of(ctx.Err()), Err: context.Cause(ctx)}
}

// pin resolves a peer's range.
func (b *Buffer) pin(op transport.Op, offset, length uint64) (transport.Pin, errs.Code) {
	if b.state.Add(onePin)&closing != 0 {
		b.Unpin()
		return b.reg.refuse(errs.Revoked)
	}
	if code := b.check(op, offset, length); code != errs.OK {
		b.Unpin()
		return b.reg.refuse(code)
	}
	if b.file != nil {
		return transport.Pin{File: b.file, Offset: int64(offset), Holder: b}, errs.OK
	}
	end := offset + length
	return transport.Pin{Bytes: b.bytes[offset:end:end], Holder: b}, errs.OK
}

// check says whether peers may do op with the range.
func (b *Buffer) check(op transport.Op, offset, length uint64) errs.Code {
	var need segment.Access
	switch op {
	case transport.Read:
		need = segment.RemoteRead
	case transport.Write:
		need = segment.RemoteWrite
	default:
		return errs.Invalid
	}
	if b.pub.Access&need == 0 {
		return errs.Denied
	}
	if !within(b.pub.Length, offset, length) {
		return errs.OutOfRange
	}
	return errs.OK
}

// within reports whether [offset, offset+length) lies in [0, size); it cannot
// overflow.
func within(size, offset, length uint64) bool { return offset <= size && length <= size-offset }

// Unpin implements transport.Unpinner.
func (b *Buffer) Unpin() { b.leave(onePin) }

// Use holds the buffer for n transfers that have it as their local range, until
// Done for as many. It reports false once the buffer is closing.
func (b *Buffer) Use(n int) bool {
	if b.state.Add(uint64(n)*oneUse)&closing != 0 {
		b.Done(n)
		return false
	}
	return true
}

// Done ends the use by n transfers.
func (b *Buffer) Done(n int) { b.leave(uint64(n) * oneUse) }

func (b *Buffer) leave(unit uint64) {
	if b.state.Add(-unit) == closing {
		select {
		case b.ending.quiet <- struct{}{}:
		default: // the token is there already
		}
	}
}

// Held returns how many pins and local uses there are now.
func (b *Buffer) Held() (pins, uses int64) {
	s := b.state.Load()
	return int64(s & pinMask), int64((s &^ closing) / oneUse)
}

// Close ends one registration. Unless others of the identical range remain, the
// buffer is withdrawn: new requests for it are refused at once, those that are
// inside are waited for, then its memory is given back. If ctx ends first the
// error is errs.Busy and says who is inside: the buffer stays withdrawn and its
// memory mapped, and Close can be called again. Once it has succeeded, further
// calls do nothing.
func (b *Buffer) Close(ctx context.Context) error {
	if b.shared() {
		return nil
	}
	return b.end(ctx)
}

// shared gives one of several references back, or withdraws the buffer and
// reports false.
func (b *Buffer) shared() bool {
	b.reg.mu.Lock()
	defer b.reg.mu.Unlock()
	if b.refs > 1 {
		b.refs--
		return true
	}
	b.withdraw()
	return false
}

// TryClose is Close that does not wait: if somebody is inside, the error is
// errs.Busy and the buffer is as it was.
func (b *Buffer) TryClose() error {
	b.reg.mu.Lock()
	b.arm()
	if b.refs == 1 && !b.state.CompareAndSwap(0, closing) {
		b.reg.mu.Unlock()
		return b.busy("still in use, and open")
	}
	b.reg.mu.Unlock()
	now, cancel := context.WithCancel(context.Background())
	cancel()
	return b.Close(now)
}

// arm makes ending, which must be there before the closing bit is. Callers hold
// reg.mu.
func (b *Buffer) arm() {
	if b.ending == nil {
		b.ending = &ending{turn: make(chan struct{}, 1), quiet: make(chan struct{}, 1)}
	}
}

// withdraw refuses new pins and uses and takes the buffer out of what is
// published; done again it changes nothing. Callers hold reg.mu.
func (b *Buffer) withdraw() {
	b.arm()
	b.state.Or(closing)
	b.refs = 0
	if b.published {
		b.published = false
		b.reg.changed(b)
	}
}

// end waits until nobody is inside the withdrawn buffer, forgets it and gives
// its memory back. Several callers take turns, and the first to get through
// does it for all.
func (b *Buffer) end(ctx context.Context) error {
	e := b.ending
	if !wait(ctx, b.ready) {
		return b.busy("the transports are still preparing it")
	}
	if !put(ctx, e.turn) {
		return b.busy("another Close of it is waiting")
	}
	defer func() { <-e.turn }()
	if e.gone {
		return nil
	}
	var err error
	if b.attached && b.reg.opts.Detach != nil {
		err = b.reg.opts.Detach(&b.pub)
	}
	b.attached = false
	if b.state.Load()&inside != 0 && !wait(ctx, e.quiet) {
		return b.busy("withdrawn, its memory stays mapped")
	}
	e.gone = true
	b.reg.remove(b) // before free: the addresses may be somebody else's right after
	if b.free != nil {
		err = errors.Join(err, b.free())
	}
	if err != nil {
		return because("close buffer", b.String(), err)
	}
	return nil
}

// wait receives from c. It reports false if ctx ended and there is nothing.
func wait(ctx context.Context, c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
	}
	select {
	case <-c:
		return true
	case <-ctx.Done():
		return false
	}
}

// put sends to c. It reports false if ctx ended and there is no room.
func put(ctx context.Context, c chan<- struct{}) bool {
	select {
	case c <- struct{}{}:
		return true
	default:
	}
	select {
	case c <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// busy says who is inside.
func (b *Buffer) busy(state string) error {
	pins, uses := b.Held()
	e := errs.New(errs.Busy, "close buffer", "%v: %s, %d accesses by peers and %d own transfers are inside: wait for them or cancel them, then close it again", b, state, pins, uses)
	e.Retryable = true
	return e
}
