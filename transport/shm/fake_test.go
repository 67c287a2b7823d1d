package shm

import (
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/sys"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
)

// fakeTarget is a peer of which the test plays the target.
type fakeTarget struct {
	testing.TB
	card  card
	l     *net.UnixListener
	table *table
	life  *life
	p     *sys.Packets
	desk  desk
	hello message
}

func newFakeTarget(t testing.TB) *fakeTarget {
	t.Helper()
	f := &fakeTarget{TB: t, life: newLife()}
	f.card.Incarnation = segment.Incarnation(rand.Uint64() | 1)
	l, name, err := listen()
	if err == nil {
		f.table, err = newTable(f.card.Incarnation)
	}
	if err != nil {
		t.Fatal(err)
	}
	f.l = l
	secret := newSecret()
	f.card.Offer = append(append([]byte{version}, secret[:]...), name...)
	t.Cleanup(func() {
		_ = l.Close()
		f.hangUp()
		f.table.close()
	})
	return f
}

func (f *fakeTarget) hangUp() {
	if f.p != nil {
		_ = f.p.Close()
		f.desk.close()
		f.p = nil
	}
}

// welcome takes one connection and answers its hello with m and a descriptor.
func (f *fakeTarget) welcome(m message, fd int) (err error) {
	_ = f.l.SetDeadline(time.Now().Add(10 * time.Second))
	c, err := f.l.AcceptUnix()
	if err != nil {
		return err
	}
	if f.p, err = sys.NewPackets(c); err != nil {
		return err
	}
	b := make([]byte, maxMessage)
	n, desk, err := f.p.Receive(b)
	if err != nil {
		return err
	}
	defer closeFD(desk)
	if err := f.hello.parse(b[:n]); err != nil {
		return err
	}
	if f.desk, err = openDesk(desk); err != nil {
		return err
	}
	return f.p.WaitSend(m.append(nil), fd)
}

// honest is a welcome without tricks.
func (f *fakeTarget) honest() message {
	return message{head: head{kind: kindWelcome}, from: f.card.Incarnation, life: f.life.proof}
}

// join connects e to f, which welcomes it with m and a descriptor.
func (f *fakeTarget) join(e *testEngine, m message, fd int) (transport.Endpoint, error) {
	f.Helper()
	welcomed := make(chan error, 1)
	go func() { welcomed <- f.welcome(m, fd) }()
	ep, err := e.tr.Connect(e.Context(), e.meet(f.card))
	if werr := <-welcomed; werr != nil {
		f.Fatal(werr)
	}
	return ep, err
}

// connect is join of an honest target.
func (f *fakeTarget) connect(e *testEngine) *endpoint {
	f.Helper()
	ep, err := f.join(e, f.honest(), f.table.fd)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = ep.Close() })
	return ep.(*endpoint)
}

// publish enters a registration into the table.
func (f *fakeTarget) publish(en entry) *segment.Buffer {
	f.Helper()
	slot, ok := f.table.add(en)
	if !ok {
		f.Fatal("no room in the table")
	}
	return &segment.Buffer{
		Key: en.key, Addr: en.addr, Length: en.length, Access: en.access, Location: "cpu:0",
		Attrs: map[string][]byte{Name: appendSlot(nil, slot)},
	}
}

// fakeInitiator is a peer of which the test plays the initiator.
type fakeInitiator struct {
	testing.TB
	p    *sys.Packets
	desk desk
	life *life
	seq  uint32
}

// newFakeInitiator connects to e without tricks.
func newFakeInitiator(t testing.TB, e *engine) *fakeInitiator {
	t.Helper()
	f := &fakeInitiator{TB: t, life: newLife(), p: dial(t, e.card())}
	d, fd, err := newDesk()
	if err != nil {
		t.Fatal(err)
	}
	f.desk = d
	t.Cleanup(f.desk.close)
	m := helloTo(e.card(), f.life)
	send(t, f.p, m.append(nil), fd)
	closeFD(fd)
	w, table := receive(t, f.p)
	closeFD(table)
	if w.kind != kindWelcome || w.code != errs.OK || w.text != "" {
		t.Fatalf("the welcome is %+v", w)
	}
	return f
}

func helloTo(c card, l *life) message {
	to, err := parseOffer(c.Offer)
	if err != nil {
		panic(err)
	}
	return message{head: head{kind: kindHello, code: version}, secret: to.secret, from: 77, to: c.Incarnation, life: l.proof}
}

// pull asks for WRITEs, in the slots from 0.
func (f *fakeInitiator) pull(class transport.Class, rs ...request) {
	f.Helper()
	b := appendHead(nil, head{kind: kindPull, class: class})
	for i := range rs {
		f.seq++
		rs[i].slot, rs[i].seq = uint32(i), f.seq
		f.desk.slot(uint32(i)).Store(uint64(f.seq)<<32 | slotPosted)
		b = appendRequest(b, &rs[i])
	}
	setCount(b, len(rs))
	send(f, f.p, b, -1)
}

// codes reads answers until n WRITEs have ended, and returns how, by slot.
func (f *fakeInitiator) codes(n int) map[uint32]errs.Code {
	f.Helper()
	out := map[uint32]errs.Code{}
	for len(out) < n {
		m, fd := receive(f, f.p)
		closeFD(fd)
		if m.kind != kindPulled {
			f.Fatalf("a message of kind %d, want the end of WRITEs", m.kind)
		}
		for i := range int(m.count) {
			r := m.result(i)
			if _, twice := out[r.slot]; twice {
				f.Fatalf("slot %d ended twice", r.slot)
			}
			out[r.slot] = r.code
		}
	}
	return out
}

// fetch asks for an allocation.
func (f *fakeInitiator) fetch(id uint64) (message, int) {
	f.Helper()
	send(f, f.p, (&message{head: head{kind: kindFetch}, id: id}).append(nil), -1)
	return receive(f, f.p)
}

// fetched is fetch of what is lent, and does not keep it.
func (f *fakeInitiator) fetched(id uint64) {
	f.Helper()
	m, fd := f.fetch(id)
	for m.kind == kindRevoked {
		m, fd = receive(f, f.p)
	}
	closeFD(fd)
	if m.kind != kindFetched || m.code != errs.OK {
		f.Fatalf("allocation %d: %+v", id, m)
	}
}
