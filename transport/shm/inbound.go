package shm

import (
	"crypto/subtle"
	"errors"
	"net"
	"os"
	"sync"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/sys"
	"github.com/tideway-io/tideway/transport"
)

// acceptPause is how long the listener rests after an error, which is a lack of
// descriptors or memory.
const acceptPause = 50 * time.Millisecond

// accept serves connections until Close, each in a goroutine, so many at a time.
func (t *Transport) accept() {
	places := make(chan struct{}, t.maxLinks())
	for {
		c, err := t.listener.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			select {
			case <-time.After(acceptPause):
			case <-t.stop:
			}
			continue
		}
		select {
		case places <- struct{}{}:
			t.serving.Go(func() {
				t.serve(c)
				<-places
			})
		default:
			_ = c.Close() // the peer takes another transport, and tries again later
		}
	}
}

// inbound is a link whose initiator is a peer.
type inbound struct {
	t       *Transport
	link    *link
	pid     int
	life    proof
	desk    desk
	lanes   [2]lane // what is urgent, the rest
	drained bool    // guarded by t.in
	mu      struct {
		sync.Mutex
		closed bool
		idle   sync.Cond // a lane became inactive after closed
		queued int       // requests that have not ended
		spare  []*batch
		lent   map[uint64]chan<- bool // allocations that the peer was given; who waits until it gives one back
		mute   bool                   // it did not give one back in time, and has said nothing since
	}
}

// serve greets one connection and answers its messages until it ends.
func (t *Transport) serve(c *net.UnixConn) {
	p, err := sys.NewPackets(c)
	if err != nil {
		_ = c.Close()
		return
	}
	in, err := t.greetSoon(c, p)
	if err != nil {
		t.log.Debug("same-host peer not let in", "err", err)
		_ = c.Close()
		return
	}
	if t.admit(in) {
		err = in.receive()
		t.log.Debug("same-host peer has gone", "pid", in.pid, "err", err)
	}
	in.close()
}

// greetSoon is greet that ends with the transport or after helloTimeout.
func (t *Transport) greetSoon(c *net.UnixConn, p *sys.Packets) (*inbound, error) {
	_ = c.SetDeadline(time.Now().Add(helloTimeout))
	t.in.Lock()
	t.in.greeting[c] = struct{}{}
	closed := t.in.closed
	t.in.Unlock()
	if closed {
		_ = c.SetDeadline(time.Unix(1, 0))
	}
	in, err := t.greet(p)
	t.in.Lock()
	delete(t.in.greeting, c)
	t.in.Unlock()
	_ = c.SetDeadline(time.Time{})
	return in, err
}

// greet reads the hello, and welcomes a peer of this user who knows the secret.
func (t *Transport) greet(p *sys.Packets) (*inbound, error) {
	pid, uid, err := p.Peer()
	if err != nil {
		return nil, err
	}
	if uid != os.Geteuid() {
		return nil, refuse(errs.Denied, "greet", "process %d is user %d, this one is user %d", pid, uid, os.Geteuid())
	}
	b := make([]byte, maxMessage)
	n, fd, err := p.Receive(b)
	if err != nil {
		return nil, err
	}
	defer closeFD(fd)
	var m message
	if err := m.parse(b[:n]); err != nil {
		return nil, err
	}
	if m.kind != kindHello || subtle.ConstantTimeCompare(m.secret[:], t.offer.secret[:]) != 1 {
		return nil, refuse(errs.Denied, "greet", "process %d does not say what this engine told its peers", pid)
	}
	in := &inbound{t: t, link: &link{p: p}, pid: pid, life: m.life}
	in.mu.idle.L, in.mu.lent = &in.mu, map[uint64]chan<- bool{}
	in.lanes[0].in, in.lanes[1].in = in, in
	w := message{head: head{kind: kindWelcome}, from: t.env.Self.Incarnation, life: t.life.proof}
	if w.code, w.text = t.unwelcome(&m); w.code == errs.OK {
		if in.desk, err = openDesk(fd); err != nil {
			w.code, w.text = errs.Invalid, "your desk: "+err.Error()
		} else if err := attachable(pid, &m.life); err != nil {
			w.text = err.Error() // welcome all the same: it can map memory
		}
	}
	if err := p.WaitSend(w.append(nil), t.table.fd); err != nil || w.code != errs.OK {
		in.desk.close()
		return nil, refuse(w.code, "greet", "process %d: %s %v", pid, w.text, err)
	}
	return in, nil
}

// unwelcome says why a peer with the right secret is not let in.
func (t *Transport) unwelcome(m *message) (errs.Code, string) {
	t.in.Lock()
	defer t.in.Unlock()
	switch {
	case m.code != version:
		return errs.Unsupported, "this engine speaks version 1"
	case m.to != t.env.Self.Incarnation:
		return errs.Restarted, "this is incarnation " + t.env.Self.Incarnation.String()
	case t.in.draining || t.in.closed:
		return errs.Draining, "this engine is shutting down"
	}
	return errs.OK, ""
}

// admit adds a link to those that are told what happens.
func (t *Transport) admit(in *inbound) bool {
	t.in.Lock()
	defer t.in.Unlock()
	if t.in.closed || t.in.draining {
		return false
	}
	t.in.links[in] = struct{}{}
	return true
}

// receive answers messages until the link ends or the peer breaks the rules.
func (in *inbound) receive() error {
	b := make([]byte, maxMessage)
	var m message
	for {
		n, fd, err := in.link.p.Receive(b)
		if err != nil {
			return err
		}
		closeFD(fd) // none is expected
		if err := m.parse(b[:n]); err != nil {
			return err
		}
		if err := in.handle(&m); err != nil {
			return err
		}
	}
}

func (in *inbound) handle(m *message) error {
	switch m.kind {
	case kindAsk:
		pin, code := in.t.env.Memory.Pin(m.op, m.key, m.offset, m.size)
		if code == errs.OK {
			pin.Unpin()
		}
		in.reply(&message{head: head{kind: kindAnswer, code: code}, id: m.id}, -1)
	case kindFetch:
		in.lend(m.id)
	case kindPull:
		return in.take(m)
	case kindSettled:
		in.settled(m.id)
	case kindDrained:
		in.t.in.Lock()
		in.drained = true
		in.t.signal()
		in.t.in.Unlock()
	default:
		return refuse(errs.Invalid, "serve", "an initiator sent a message of kind %d", m.kind)
	}
	return nil
}

// signal wakes Drain; t.in is held.
func (t *Transport) signal() {
	close(t.in.moved)
	t.in.moved = make(chan struct{})
}

func (in *inbound) reply(m *message, fd int) { in.link.send(m.append(nil), fd) }

// lend gives the peer an allocation to map.
func (in *inbound) lend(id uint64) {
	in.mu.Lock()
	_, again := in.mu.lent[id]
	if !again { // before it is looked up, so that revoke cannot slip through between
		in.mu.lent[id] = nil
	}
	in.mu.Unlock()
	fd, size, writable, code := in.t.own.lend(id)
	if code != errs.OK && !again {
		in.mu.Lock()
		if in.mu.lent[id] == nil { // else it has been revoked, and the peer will say so
			delete(in.mu.lent, id)
		}
		in.mu.Unlock()
	}
	in.reply(&message{head: head{kind: kindFetched, code: code}, id: id, size: size, writable: writable}, fd)
}

// revoke asks the peer to give an allocation back, if it has it. back, if not nil,
// gets true when it has, false when it is known that it will not.
func (in *inbound) revoke(id uint64, back chan<- bool) (asked bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if _, asked = in.mu.lent[id]; !asked {
		return false
	}
	in.reply(&message{head: head{kind: kindRevoked}, id: id}, -1)
	if in.mu.mute && back != nil {
		back <- false
		back = nil
	}
	in.mu.lent[id] = back
	return true
}

// settled notes that the peer does not have an allocation any more.
func (in *inbound) settled(id uint64) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if back := in.mu.lent[id]; back != nil {
		back <- true
	}
	delete(in.mu.lent, id)
	in.mu.mute = false
}

// giveUp stops waiting for an allocation, and for others until the peer gives
// one back.
func (in *inbound) giveUp(id uint64) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.mu.lent[id] != nil {
		in.mu.lent[id], in.mu.mute = nil, true
	}
}

// settleTime is how long Unregister waits for peers that may be in the middle of
// a copy: such a step takes some 100 µs.
const settleTime = 100 * time.Millisecond

// settle asks the peers that have an allocation to give it back, and reports
// whether all have. One that is stopped does not; it may store into the pages
// when it wakes.
func (t *Transport) settle(id uint64) bool {
	var asked []*inbound
	t.in.Lock()
	back := make(chan bool, len(t.in.links))
	t.in.Unlock()
	t.eachLink(func(in *inbound) {
		if len(asked) < cap(back) && in.revoke(id, back) {
			asked = append(asked, in)
		}
	})
	late, all := time.NewTimer(settleTime), true
	defer late.Stop()
	for range asked {
		select {
		case ok := <-back:
			all = all && ok
		case <-late.C:
			for _, in := range asked {
				in.giveUp(id)
			}
			return false
		}
	}
	return all
}

// close ends the link: the reads under way first, so that a peer who learns of
// the end knows that nobody reads its memory any more.
func (in *inbound) close() {
	in.mu.Lock()
	in.mu.closed = true
	for in.lanes[0].active || in.lanes[1].active {
		in.mu.idle.Wait()
	}
	for id, back := range in.mu.lent {
		in.t.own.stray(id)
		if back != nil {
			back <- false
		}
	}
	clear(in.mu.lent)
	in.mu.Unlock()
	in.link.close()
	in.desk.close()
	in.t.in.Lock()
	delete(in.t.in.links, in)
	in.t.signal()
	in.t.in.Unlock()
}

// Classes below this one have a lane of their own.
const urgentClasses = 1

func (in *inbound) lane(c transport.Class) *lane {
	if c < urgentClasses {
		return &in.lanes[0]
	}
	return &in.lanes[1]
}
