package tcp

import (
	"errors"
	"io"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/tideway-io/tideway/errs"
)

// machine is one side of the protocol on one lane, without its descriptor: it
// says where bytes go and what to send, and never waits. An initiator or a
// target is one.
type machine interface {
	// space returns where the next bytes from the peer go, and got says how
	// many came, maybe none. Both are called with rx held, in pairs; between
	// them the memory may be written to.
	space() [][]byte
	got(n int) error
	// park gives back what a lane that waits for its peer need not hold.
	park()
	// fill returns what goes to the peer next, in order, nothing if there is
	// nothing, and sent says how much went, maybe nothing. Both are called with
	// tx held, in pairs; between them the memory may be read.
	fill() [][]byte
	sent(n int)
	// deliver hands on what got found, with no lock held, and reports whether
	// that left something to send.
	deliver() bool
	// down ends everything: no byte moves any more. It is called once, last.
	down(cause error)
}

// lane drives a machine over a link. One goroutine receives. Whoever has
// something to send takes the baton tx and writes until the socket is full;
// then the baton goes to the lane's writer, parked in the netpoller until there
// is room. tx is never held while anything waits for the peer.
//
// Locks are taken in the order recv, rx, tx, the machine's own.
type lane struct {
	link link
	m    machine

	recv    sync.Mutex // the receiving: held over readv, got and deliver
	rx, tx  sync.Mutex
	want    atomic.Bool // something may have to be sent
	blocked atomic.Bool // the socket is full, the writer waits for room
	broken  bool        // writing has ended; guarded by tx
	flushed error       // result of the flush under link.now; guarded by tx

	heard      atomic.Uint64 // grows with each sign of life from the peer
	delivering atomic.Bool   // the receiver is in the sink: silence is not the peer's
	in         atomic.Uint64 // bytes received
	out        atomic.Uint64 // bytes sent

	wake    chan struct{} // to the writer: blocked was set
	started bool          // the writer exists; guarded by tx
	writers sync.WaitGroup

	fate struct {
		sync.Mutex
		cause error
	}
	spinner *spinner // of the transport; nil: never spins
	lingers bool     // the receiver itself spins
	spin    patience // guarded by recv
	hushed  bool     // guarded by recv
	part    int      // what step is to do; guarded by recv
	found   int      // bytes that it received; guarded by recv

	closing chan struct{} // closed by fail
	ending  atomic.Bool   // the same, for hot paths
	done    chan struct{} // closed when run has returned: the lane touches nothing any more
}

func newLane(k link) *lane {
	l := &lane{link: k, wake: make(chan struct{}, 1), closing: make(chan struct{}), done: make(chan struct{})}
	k.bind(l.readable, l.writable, l.flushNow, l.step)
	return l
}

// run receives until the lane ends, for whatever reason, and then ends the
// machine. It is the lane's receiving goroutine.
func (l *lane) run() {
	err := l.link.waitRead()
	if err == nil {
		err = io.EOF
	}
	l.fail(&errs.Error{Op: "receive", Reason: errs.LaneLost, Err: err})
	l.tx.Lock()
	l.broken = true // from here on nobody starts the writer
	l.tx.Unlock()
	l.writers.Wait()
	l.recv.Lock() // from here on whoever would receive instead sees the end
	cause := l.cause()
	l.recv.Unlock()
	l.m.down(cause)
	_ = l.link.Close()
	close(l.done)
}

// fail ends the lane; only the first cause counts. It does not wait.
func (l *lane) fail(cause error) {
	l.fate.Lock()
	first := l.fate.cause == nil
	if first {
		l.fate.cause = cause
		l.ending.Store(true)
		close(l.closing)
	}
	l.fate.Unlock()
	if first {
		l.link.stop() // run does the rest
	}
}

// moved returns the bytes received, or sent.
func (l *lane) moved(in bool) uint64 {
	if in {
		return l.in.Load()
	}
	return l.out.Load()
}

// cause returns why the lane ended, nil while it lives.
func (l *lane) cause() error {
	l.fate.Lock()
	defer l.fate.Unlock()
	return l.fate.cause
}

// readable receives until the socket is empty, which is false, or the lane has
// ended. The socket is read until it says so: with edge-triggered polling a
// short read alone could hide the end of the stream.
func (l *lane) readable() bool {
	l.recv.Lock()
	defer l.recv.Unlock()
	for !l.ending.Load() {
		if l.receive() > 0 || l.lingers && l.linger() || l.unhush() && l.receive() > 0 {
			continue
		}
		if !l.ending.Load() {
			return false
		}
	}
	return true
}

// receive takes what has come, at most what one call brings, and returns how much
// that was: nothing if the socket is empty or the lane has ended. The caller holds
// recv.
func (l *lane) receive() int {
	if l.ending.Load() {
		return 0
	}
	l.rx.Lock()
	n, err := l.link.readv(l.m.space())
	fault := l.m.got(n)
	if err == errAgain {
		l.m.park()
	}
	l.rx.Unlock()
	if n > 0 {
		l.heard.Add(1)
		l.in.Add(uint64(n))
		l.delivering.Store(true)
		if l.m.deliver() {
			l.want.Store(true)
		}
		l.delivering.Store(false)
		l.pump()
	}
	switch {
	case fault != nil:
		l.fail(fault)
	case err != nil && err != errAgain:
		l.fail(&errs.Error{Op: "receive", Reason: errs.LaneLost, Err: err})
	}
	return n
}

// post says that there is something to send and sends it, unless somebody else
// is sending or the socket is full.
func (l *lane) post() {
	l.want.Store(true)
	l.pump()
}

// pump sends what is wanted. Whoever lets go of tx calls it afterwards: a poster
// that found the baton taken relies on its holder to look again.
func (l *lane) pump() {
	for l.want.Load() && !l.blocked.Load() {
		if !l.tx.TryLock() {
			return
		}
		err := l.link.now()
		if err == nil {
			err = l.flushed
		}
		l.settle(err)
		l.tx.Unlock()
		if err != nil && err != errAgain {
			return
		}
	}
}

func (l *lane) flushNow() { l.flushed = l.flush() }

// flush sends until the machine has nothing more, which is nil, or the socket
// is full. The caller holds tx.
func (l *lane) flush() error {
	for !l.ending.Load() && !l.broken {
		l.want.Store(false)
		from := l.m.fill()
		if len(from) == 0 {
			return nil
		}
		n, err := l.link.writev(from)
		l.m.sent(n)
		l.out.Add(uint64(n))
		if err != nil {
			return err
		}
		l.want.Store(true)
	}
	l.want.Store(false)
	return nil
}

// settle decides what follows a flush that ended with err. The caller holds tx.
func (l *lane) settle(err error) {
	switch {
	case err == nil:
		return
	case err == errAgain:
		l.want.Store(true)
		l.blocked.Store(true)
		l.wakeWriter()
		return
	case errors.Is(err, unix.EPIPE), errors.Is(err, unix.ECONNRESET):
		// What the peer sent before it left may still be unread: the receiver
		// takes it and then ends the lane.
		l.broken = true
		l.want.Store(false)
		return
	}
	l.broken = true
	l.fail(&errs.Error{Op: "send", Reason: errs.LaneLost, Err: err})
}

func (l *lane) wakeWriter() {
	if !l.started {
		if l.broken {
			return
		}
		l.started = true
		l.writers.Go(l.write)
	}
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// write is the writer: it takes the baton whenever the socket was full.
func (l *lane) write() {
	for {
		select {
		case <-l.closing:
			return
		case <-l.wake:
		}
		if err := l.link.waitWrite(); err != nil {
			l.fail(&errs.Error{Op: "send", Reason: errs.LaneLost, Err: err})
			return
		}
		l.pump()
	}
}

// writable sends after the socket was full; false means that it is again.
func (l *lane) writable() bool {
	l.tx.Lock()
	defer l.tx.Unlock()
	before := l.out.Load()
	err := l.flush()
	if l.out.Load() != before {
		l.heard.Add(1) // room appeared, so the peer is reading
	}
	if err == errAgain {
		l.want.Store(true)
		return false
	}
	l.settle(err)
	l.blocked.Store(false)
	return true
}
