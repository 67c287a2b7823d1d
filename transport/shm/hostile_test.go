package shm

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/mem"
	"github.com/tideway-io/tideway/internal/sys"
	"github.com/tideway-io/tideway/internal/testenv"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
)

// descriptors are what a hostile peer may send instead of a memfd of size bytes
// with seals. Each is open until the test ends; -1 is none.
func descriptors(t *testing.T, size int64, seals int) map[string]int {
	t.Helper()
	out := map[string]int{"none": -1}
	keep := func(name string, fd int, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		out[name] = fd
		t.Cleanup(func() { _ = unix.Close(fd) })
	}
	memfd := func(name string, size int64, seals int) {
		fd, err := sys.NewMemfd(name, size, seals)
		keep(name, fd, err)
	}
	memfd("one page short", size-4096, seals)
	memfd("empty", 0, seals)
	memfd("too long", size+4096, seals)
	memfd("without seals", size, 0)
	memfd("free to shrink", size, seals&^sys.SealShrink)
	memfd("free to grow", size, seals&^sys.SealGrow)
	var pipe [2]int
	err := unix.Pipe2(pipe[:], unix.O_CLOEXEC)
	keep("a pipe", pipe[0], err)
	keep("its other end", pipe[1], err)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, make([]byte, 10), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(file, size); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(file, unix.O_RDWR|unix.O_CLOEXEC, 0)
	keep("a file", fd, err)
	fd, err = unix.Open("/dev/zero", unix.O_RDWR|unix.O_CLOEXEC, 0)
	keep("/dev/zero", fd, err)
	// Huge pages are there or not when they are touched.
	if fd, err := unix.MemfdCreate("huge", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_HUGETLB); err == nil {
		_ = unix.Ftruncate(fd, (size+mem.HugePage-1)&^(mem.HugePage-1))
		keep("huge pages", fd, sys.Seal(fd, seals))
	}
	return out
}

// TestHostileWelcome: whatever a target answers, Connect fails in words and
// leaves nothing behind.
func TestHostileWelcome(t *testing.T) {
	testenv.Leak(t)
	e := start(t, options{})
	f := newFakeTarget(t)
	fds := descriptors(t, tableSize, pageSeals)
	plain, err := sys.NewMemfd("no table", tableSize, pageSeals)
	if err != nil {
		t.Fatal(err)
	}
	defer sys.Close(plain)
	other, err := newTable(f.card.Incarnation ^ 2)
	if err != nil {
		t.Fatal(err)
	}
	defer other.close()
	fds["zeros"], fds["the table of another"] = plain, other.fd
	try := func(name string, m message, fd int, want errs.Code) {
		t.Helper()
		clear(e.tr.refused.until)
		ep, err := f.join(e, m, fd)
		if err == nil {
			_ = ep.Close()
		}
		if errs.Of(err) != want {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
		f.hangUp()
	}
	for name, fd := range fds {
		try(name, f.honest(), fd, errs.Unsupported)
	}
	m := f.honest()
	m.from ^= 4
	try("another incarnation", m, f.table.fd, errs.Restarted)
	m = f.honest()
	m.code, m.text = errs.Draining, "going"
	try("draining", m, f.table.fd, errs.Draining)
	m.code = 0x7777
	try("an unknown code", m, f.table.fd, errs.LaneLost)
	try("a drain", message{head: head{kind: kindDrain}}, f.table.fd, errs.Unsupported)
	try("no message", message{head: head{kind: 99}}, f.table.fd, errs.Unsupported)
	clear(e.tr.refused.until)
	if ep, err := f.join(e, f.honest(), f.table.fd); err != nil {
		t.Errorf("an honest welcome: %v", err)
	} else {
		_ = ep.Close()
	}
}

// TestHostileLend: a target lends what is not what it said. Nothing faults, and
// attach serves instead where it can.
func TestHostileLend(t *testing.T) {
	e := start(t, options{})
	const size = 1 << 20
	fds := descriptors(t, size, pageSeals)
	add := func(name string, seals int) {
		fd, err := sys.NewMemfd(name, size, seals)
		if err != nil {
			t.Fatal(err)
		}
		fds[name] = fd
		t.Cleanup(func() { _ = sys.Close(fd) })
	}
	add("good", pageSeals)
	add("sealed", pageSeals|sys.SealFuture)
	memory := pattern(size, 5)
	for name, fd := range fds {
		for _, writable := range []bool{true, false} {
			f := newFakeTarget(t)
			b := f.publish(entry{key: 9, access: segment.ReadWrite, addr: uint64(mem.Addr(memory)), length: size, allocation: 3})
			beyond := f.publish(entry{key: 10, access: segment.ReadWrite, addr: 1, length: size, allocation: 3, offset: size - 50})
			wraps := f.publish(entry{key: 11, access: segment.ReadWrite, addr: 1, length: size, allocation: 3, offset: 1<<64 - 50})
			ep := f.connect(e)
			local := make([]byte, 100)
			tags := e.post(ep, transport.Slice{Op: transport.Write, Local: local, Buffer: b}, transport.Slice{Op: transport.Read, Local: local, Buffer: b})
			m, extra := receive(t, f.p)
			closeFD(extra)
			if m.kind != kindFetch || m.id != 3 {
				t.Fatalf("%+v, want a fetch", m)
			}
			send(t, f.p, (&message{head: head{kind: kindFetched}, id: 3, size: size, writable: writable}).append(nil), fd)
			done := e.await(tags...)
			write, read := errs.Unsupported, errs.Unsupported
			if name == "good" && writable {
				write, read = errs.OK, errs.OK
			}
			if name == "sealed" && !writable { // what the table says of writing is a lie
				read = errs.OK
			}
			if done[0].Code != write || done[1].Code != read {
				t.Errorf("%s, writable %v: WRITE %v, READ %v; want %v and %v", name, writable, done[0].Code, done[1].Code, write, read)
			}
			if read != errs.OK {
				e.ok(e.do(ep, transport.Read, local, b, 7))
				if string(local) != string(memory[7:107]) {
					t.Errorf("%s: attach read something else", name)
				}
				continue
			}
			for _, bad := range []*segment.Buffer{beyond, wraps} {
				if c := e.do(ep, transport.Read, local, bad, 0); c.Code != errs.Unsupported {
					t.Errorf("a range beyond what was lent: %v", c.Code)
				}
			}
			if write != errs.OK { // alone, from Post itself
				if c := e.do(ep, transport.Write, local, b, 0); c.Code != errs.Unsupported {
					t.Errorf("a WRITE to memory lent for reading: %v", c.Code)
				}
			}
		}
	}
}

// TestHostileTable: addresses that lead nowhere, and lines that change.
func TestHostileTable(t *testing.T) {
	e := start(t, options{})
	f := newFakeTarget(t)
	ep := f.connect(e)
	local := make([]byte, 100)
	for _, addr := range []uint64{0, 1, 1 << 47, 1<<63 - 1, 1<<64 - 100} {
		for _, op := range []transport.Op{transport.Read} {
			b := f.publish(entry{key: segment.Key(addr | 1), access: segment.ReadWrite, addr: addr, length: 1 << 62})
			if c := e.do(ep, op, local, b, 50); c.Code != errs.Unsupported {
				t.Errorf("%v at %#x: %v", op, addr, c.Code)
			}
		}
	}
	for _, attrs := range [][]byte{nil, {1}, {255, 255, 255, 255}, {0, 0, 16, 0}, make([]byte, 5)} {
		tags := e.post(ep, transport.Slice{Op: transport.Read, Local: local, Buffer: &segment.Buffer{Key: 4242, Attrs: map[string][]byte{Name: attrs}}})
		m, _ := receive(t, f.p)
		if m.kind != kindAsk || m.key != 4242 {
			t.Fatalf("%+v, want a question", m)
		}
		send(t, f.p, (&message{head: head{kind: kindAnswer, code: errs.OK}, id: m.id}).append(nil), -1)
		if c := e.await(tags...)[0]; c.Code != errs.Unsupported {
			t.Errorf("allowed, but not in the table: %v", c.Code)
		}
	}
}

// TestHostileMessages: a target that breaks the rules loses the link, and with it
// the slices, exactly once.
func TestHostileMessages(t *testing.T) {
	e := start(t, options{})
	for name, b := range map[string][]byte{
		"one byte": {1}, "a hello": helloBytes(), "a kind that is not": appendHead(nil, head{kind: 200}), "a pull": appendHead(nil, head{kind: kindPull}),
		"too long": make([]byte, maxMessage+1), "a count without items": appendHead(nil, head{kind: kindPulled, count: 3}),
	} {
		f := newFakeTarget(t)
		b0 := f.publish(entry{key: 9, access: segment.ReadWrite, addr: 1, length: 1 << 20})
		ep := f.connect(e)
		tags := e.post(ep, transport.Slice{Op: transport.Write, Local: make([]byte, 9), Buffer: b0})
		send(t, f.p, b, -1)
		if c := e.await(tags...)[0]; c.Code != errs.LaneLost || c.InDoubt {
			t.Errorf("%s: a slice ended with %v, in doubt: %v", name, c.Code, c.InDoubt)
		}
		if _, err := ep.Post([]transport.Slice{{Op: transport.Write, Local: make([]byte, 9), Buffer: b0}}); errs.Of(err) != errs.LaneLost {
			t.Errorf("%s: Post afterwards: %v", name, err)
		}
	}
	// What is merely of no use is ignored.
	f := newFakeTarget(t)
	ep := f.connect(e)
	junk := appendHead(nil, head{kind: kindPulled, count: 1})
	for _, b := range [][]byte{
		appendResult(junk, result{slot: 7, seq: 1}), appendResult(junk, result{slot: 1 << 31}), (&message{head: head{kind: kindAnswer}, id: 1}).append(nil),
		(&message{head: head{kind: kindFetched}, id: 1, size: 4096}).append(nil), (&message{head: head{kind: kindRevoked}, id: 1}).append(nil),
	} {
		send(t, f.p, b, f.table.fd) // and a descriptor, which is closed
	}
	b := f.publish(entry{key: 9, access: segment.ReadWrite, addr: uint64(f.life.addr), length: lifeSize})
	e.ok(e.do(ep, transport.Read, make([]byte, lifeSize), b, 0))
}

func helloBytes() []byte { return (&message{head: head{kind: kindHello}}).append(nil) }

// TestStrangers: who does not know the secret, or brings no desk, gets nothing.
func TestStrangers(t *testing.T) {
	testenv.Leak(t)
	e := start(t, options{})
	l := newLife()
	desk, fd, err := newDesk()
	if err != nil {
		t.Fatal(err)
	}
	defer desk.close()
	defer sys.Close(fd)
	refused := func(name string, b []byte, fd int) {
		t.Helper()
		p := dial(t, e.card())
		send(t, p, b, fd)
		if n, got, err := p.Receive(make([]byte, maxMessage)); err == nil {
			closeFD(got)
			t.Errorf("%s: an answer of %d bytes", name, n)
		}
		_ = p.Close()
	}
	good := helloTo(e.card(), l)
	bad := good
	bad.secret[3] ^= 1
	refused("a wrong secret", bad.append(nil), fd)
	refused("noise", []byte("GET / HTTP/1.1\r\n\r\n"), -1)
	refused("a pull first", appendHead(nil, head{kind: kindPull}), fd)
	answered := func(name string, m message, fd int, want errs.Code) {
		t.Helper()
		p := dial(t, e.card())
		send(t, p, m.append(nil), fd)
		w, table := receive(t, p)
		closeFD(table)
		if w.kind != kindWelcome || w.code != want {
			t.Errorf("%s: %+v, want %v", name, w, want)
		}
		_ = p.Close()
	}
	answered("good", good, fd, errs.OK)
	other := good
	other.to ^= 8
	answered("for another incarnation", other, fd, errs.Restarted)
	other = good
	other.code = 2
	answered("of version 2", other, fd, errs.Unsupported)
	for name, fd := range descriptors(t, deskSize, pageSeals) {
		answered("with "+name+" as desk", good, fd, errs.Invalid)
	}
	elsewhere := good
	elsewhere.life.addr = 4096
	answered("whose memory cannot be read", elsewhere, fd, errs.OK) // it may still map
}

// TestTooManyStrangers: those who connect and say nothing take the places only
// for a while, and no more than there are.
func TestTooManyStrangers(t *testing.T) {
	e := start(t, options{maxIn: 2})
	other := start(t, options{})
	var strangers []*sys.Packets
	for range 6 {
		strangers = append(strangers, dial(t, e.card()))
	}
	testenv.Eventually(t, 5*time.Second, func() bool {
		e.tr.in.Lock()
		defer e.tr.in.Unlock()
		return len(e.tr.in.greeting) == 2
	}, "two of them are listened to")
	if _, err := other.tr.Connect(t.Context(), other.meet(e.card())); !errors.Is(err, errs.ErrUnreachable) {
		t.Errorf("connect while strangers have all places: %v", err)
	}
	for _, p := range strangers {
		_ = p.Close()
	}
	testenv.Eventually(t, 5*time.Second, func() bool {
		ep, err := other.tr.Connect(t.Context(), other.meet(e.card()))
		if err == nil {
			_ = ep.Close()
		}
		return err == nil
	}, "they have left")
}

// TestRuleBreakers: an initiator that asks for too much, or for nonsense, is cut
// off, and the buffers do not change.
func TestRuleBreakers(t *testing.T) {
	testenv.Leak(t)
	e := start(t, options{})
	b := e.must(e.heap("b", 1<<20, segment.ReadWrite))
	testenv.Fill(b.Bytes(), testenv.KeyOf(1, 0), 0)
	source := make([]byte, 1<<20)
	desk, err := sys.NewMemfd("a descriptor", 4096, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer sys.Close(desk)
	one := request{key: b.Desc().Key, size: 4096, addr: uint64(mem.Addr(source))}
	for name, act := range map[string]func(f *fakeInitiator){
		"a slot that is not": func(f *fakeInitiator) {
			r := one
			r.slot, r.seq = deskSlots, 1
			m := appendRequest(appendHead(nil, head{kind: kindPull, count: 1}), &r)
			send(t, f.p, m, -1)
		},
		"no bytes": func(f *fakeInitiator) { f.pull(0, request{}) },
		"no items": func(f *fakeInitiator) { send(t, f.p, appendHead(nil, head{kind: kindPull}), -1) },
		"a welcome": func(f *fakeInitiator) {
			send(t, f.p, (&message{head: head{kind: kindWelcome}}).append(nil), desk)
		},
	} {
		f := newFakeInitiator(t, e.engine)
		act(f)
		for {
			n, fd, err := f.p.Receive(make([]byte, maxMessage))
			closeFD(fd)
			if err != nil {
				if !strings.Contains(err.Error(), "EOF") && !strings.Contains(err.Error(), "reset") {
					t.Errorf("%s: %v", name, err)
				}
				break
			}
			_ = n // the end of a slice that came first
		}
		_ = f.p.Close()
	}
	if err := verify(b.Bytes(), 1); err != nil {
		t.Error(err)
	}
}

// TestAnotherLife: what was read out of a process that is not the one that asked
// is not left for peers to see.
func TestAnotherLife(t *testing.T) {
	e := start(t, options{})
	b := e.must(e.heap("b", 8192, segment.ReadWrite))
	testenv.Poison(b.Bytes())
	source := pattern(8192, 1)
	f := newFakeInitiator(t, e.engine)
	f.life.end()
	f.pull(1, request{key: b.Desc().Key, size: 4096, addr: uint64(mem.Addr(source))}, request{key: b.Desc().Key, offset: 4096, size: 4096, addr: uint64(mem.Addr(source))})
	for err := error(nil); err == nil; _, _, err = f.p.Receive(make([]byte, maxMessage)) {
	}
	testenv.Eventually(t, 5*time.Second, func() bool { return b.TryClose() == nil }, "nobody is inside")
	if !bytes.Equal(b.Bytes(), make([]byte, 8192)) {
		t.Error("bytes of another process are there")
	}
}

// TestDeafInitiator: one that asks and never reads is cut off before the answers
// that wait for it take much memory.
func TestDeafInitiator(t *testing.T) {
	e := start(t, options{})
	f := newFakeInitiator(t, e.engine)
	ask := (&message{head: head{kind: kindAsk}, op: transport.Read, key: 1, size: 1}).append(nil)
	cut := false
	for range 1 << 20 {
		if err := f.p.WaitSend(ask, -1); err != nil {
			cut = true
			break
		}
	}
	if !cut {
		t.Error("a million questions were taken from a peer that reads no answer")
	}
}
