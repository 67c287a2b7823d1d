package shm

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/mem"
	"github.com/tideway-io/tideway/internal/registry"
	"github.com/tideway-io/tideway/internal/sys"
	"github.com/tideway-io/tideway/internal/testenv"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/topology"
	"github.com/tideway-io/tideway/transport"
)

// TestLentForReading: what a peer is given for a buffer that it may only read
// cannot be mapped to write, by no means, while the owner still writes.
func TestLentForReading(t *testing.T) {
	testenv.Leak(t)
	e := start(t, options{})
	b := e.must(e.alloc("b", 8192, segment.RemoteRead))
	f := newFakeInitiator(t, e.engine)
	m, fd := f.fetch(1)
	if m.code != errs.OK || m.writable || m.size != 8192 || fd < 0 {
		t.Fatalf("%+v and descriptor %d", m, fd)
	}
	defer sys.Close(fd)
	if err := sized(fd, 8192, pageSeals|sys.SealFuture|sys.SealSeals); err != nil {
		t.Error(err)
	}
	if _, _, err := mem.Map(fd, 8192, true); !errors.Is(err, unix.EPERM) {
		t.Errorf("map it to write: %v, want %v", err, unix.EPERM)
	}
	p, unmap, err := mem.Map(fd, 8192, false)
	if err != nil {
		t.Fatal(err)
	}
	defer unmap()
	if err := unix.Mprotect(p, unix.PROT_READ|unix.PROT_WRITE); err == nil {
		t.Error("a mapping to read was made one to write")
	}
	for name, err := range map[string]error{
		"write": errorOf(unix.Pwrite(fd, []byte{1}, 0)), "shrink": unix.Ftruncate(fd, 0), "grow": unix.Ftruncate(fd, 1<<20),
		"punch a hole":     unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 4096),
		"seal":             sys.Seal(fd, sys.SealShrink),
		"open it to write": reopened(fd),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	b.Bytes()[5] = 77
	if p[5] != 77 {
		t.Error("the peer does not see what the owner writes")
	}
}

func errorOf(_ int, err error) error { return err }

// reopened tries to get a descriptor to write from one that a peer was given,
// and to use it.
func reopened(fd int) error {
	name, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
	if err != nil || !strings.Contains(name, "memfd:tideway-buffer") {
		return errors.Join(err, errors.New(name))
	}
	again, err := unix.Open("/proc/self/fd/"+strconv.Itoa(fd), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(again)
	_, unmap, err := mem.Map(again, 4096, true)
	if err == nil {
		_ = unmap()
	}
	return err
}

// TestLentForWriting: the size stays whatever a peer tries, and no peer seals
// the pages for the others.
func TestLentForWriting(t *testing.T) {
	e := start(t, options{})
	b := e.must(e.alloc("b", 8192, segment.ReadWrite))
	f := newFakeInitiator(t, e.engine)
	m, fd := f.fetch(1)
	if m.code != errs.OK || !m.writable || m.size != 8192 {
		t.Fatalf("%+v", m)
	}
	defer sys.Close(fd)
	for name, err := range map[string]error{
		"shrink": unix.Ftruncate(fd, 0), "grow": unix.Ftruncate(fd, 1<<20), "seal": sys.Seal(fd, sys.SealFuture), "seal against writes": sys.Seal(fd, unix.F_SEAL_WRITE),
	} {
		if !errors.Is(err, unix.EPERM) {
			t.Errorf("%s: %v, want %v", name, err, unix.EPERM)
		}
	}
	b.Bytes()[8191] = 1 // it is there
	if m, fd := f.fetch(2); m.code != errs.Revoked || fd != -1 {
		t.Errorf("an allocation that is not: %+v and descriptor %d", m, fd)
	}
	if err := b.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if m, _ := receive(t, f.p); m.kind != kindRevoked || m.id != 1 {
		t.Errorf("%+v, want that the allocation is revoked", m)
	}
	if m, fd := f.fetch(1); m.code != errs.Revoked || fd != -1 {
		t.Errorf("an allocation that was freed: %+v and descriptor %d", m, fd)
	}
}

// mapped reports whether peers are told to map b.
func mapped(t *testing.T, ep *endpoint, b *registry.Buffer) bool {
	t.Helper()
	got, code := ep.bind(b.Desc())
	if code != errs.OK {
		t.Fatal(code)
	}
	return got.allocation != 0
}

// TestPartsOfOneAllocation: one memfd is lent for one buffer and one access, and
// again when all who had it have given it back.
func TestPartsOfOneAllocation(t *testing.T) {
	e, other := start(t, options{}), start(t, options{})
	memory, free, err := e.tr.Alloc(1<<20, "cpu:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = free() })
	part := func(at, n int, access segment.Access) *registry.Buffer {
		t.Helper()
		return e.must(e.reg.Register(t.Context(), registry.Registration{Bytes: memory[at : at+n], Access: access}))
	}
	ep := other.connect(e.card())
	rw, ro, more := part(0, 5000, segment.ReadWrite), part(5000, 5000, segment.RemoteRead), part(10_000, 5000, segment.RemoteWrite)
	if !mapped(t, ep, rw) || mapped(t, ep, ro) || mapped(t, ep, more) {
		t.Errorf("mapped: %v, %v, %v; want only the first", mapped(t, ep, rw), mapped(t, ep, ro), mapped(t, ep, more))
	}
	other.ok(other.do(ep, transport.Write, pattern(5000, 1), rw.Desc(), 0))
	other.ok(other.do(ep, transport.Read, make([]byte, 5000), ro.Desc(), 0))
	for round := range uint64(3) {
		if err := rw.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if rw = part(0, 5000, segment.ReadWrite); !mapped(t, ep, rw) {
			t.Error("memory that was given back is not lent again")
		}
		other.ok(other.do(ep, transport.Write, pattern(5000, round), rw.Desc(), 0))
		if err := verify(rw.Bytes(), round); err != nil {
			t.Error(err)
		}
	}
	if err := rw.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if b := part(0, 5000, segment.RemoteRead); mapped(t, ep, b) {
		t.Error("memory that was lent for writing is lent for reading only")
	}
}

// TestNotGivenBack: an initiator that keeps what it was lent costs Close a moment,
// once, and the memory is not lent again.
func TestNotGivenBack(t *testing.T) {
	e, other := start(t, options{}), start(t, options{})
	ep := other.connect(e.card())
	f := newFakeInitiator(t, e.engine)
	memory, free, err := e.tr.Alloc(4096, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = free() })
	register := func() *registry.Buffer {
		return e.must(e.reg.Register(t.Context(), registry.Registration{Bytes: memory, Access: segment.ReadWrite}))
	}
	closed := func(b *registry.Buffer) time.Duration {
		began := time.Now()
		if err := b.Close(t.Context()); err != nil {
			t.Error(err)
		}
		return time.Since(began)
	}
	b := register()
	f.fetched(1)
	if took := closed(b); took < settleTime || took > 20*settleTime {
		t.Errorf("Close took %v, want %v", took, settleTime)
	}
	if mapped(t, ep, register()) {
		t.Error("memory that a peer may still write is lent again")
	}
	// It is not waited for again.
	const buffers = 50
	var all []*registry.Buffer
	for i := range uint64(buffers) {
		all = append(all, e.must(e.alloc("", 4096, segment.ReadWrite)))
		f.fetched(2 + i)
	}
	began := time.Now()
	for _, b := range all {
		closed(b)
	}
	if took := time.Since(began); took > buffers*settleTime/2 {
		t.Errorf("%d buffers were closed in %v", buffers, took)
	}
	// A link that ends does not give anything back either.
	last := e.must(e.alloc("", 4096, segment.RemoteWrite))
	f.fetched(2 + buffers)
	_ = f.p.Close()
	testenv.Eventually(t, 5*time.Second, func() bool {
		e.tr.own.mu.Lock()
		defer e.tr.own.mu.Unlock()
		return e.tr.own.mu.byID[2+buffers].spent
	}, "what it had is known to be astray")
	closed(last)
}

// TestLentForReadingIsNotWaitedFor: nobody can write there.
func TestLentForReadingIsNotWaitedFor(t *testing.T) {
	e := start(t, options{})
	f := newFakeInitiator(t, e.engine)
	began := time.Now()
	for i := range uint64(20) {
		b := e.must(e.alloc("", 4096, segment.RemoteRead))
		f.fetched(1 + i)
		if err := b.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if took := time.Since(began); took > 10*settleTime {
		t.Errorf("20 buffers took %v", took)
	}
}

// TestUnmappedWhenRevoked: a peer gives the pages back when the last buffer in
// them is closed, also when it closes while they are asked for.
func TestUnmappedWhenRevoked(t *testing.T) {
	e, other := start(t, options{}), start(t, options{})
	ep := other.connect(e.card())
	count := func() int {
		ep.mu.Lock()
		defer ep.mu.Unlock()
		return len(ep.mu.mappings)
	}
	for range 50 {
		b := e.must(e.alloc("b", 1<<20, segment.ReadWrite))
		tags := other.post(ep, transport.Slice{Op: transport.Write, Local: make([]byte, 10), Buffer: b.Desc()})
		if err := b.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if c := other.await(tags...)[0]; c.Code != errs.OK && c.Code != errs.Revoked {
			t.Error(c.Code)
		}
	}
	testenv.Eventually(t, 5*time.Second, func() bool { return count() == 0 }, "all are unmapped")
	text, err := os.ReadFile("/proc/self/maps")
	if n := strings.Count(string(text), "memfd:tideway-buffer"); n != 0 || err != nil {
		t.Errorf("%d mappings are left, %v", n, err)
	}
}

// TestFullTable: buffers beyond the table's room go by another transport.
func TestFullTable(t *testing.T) {
	e, other := start(t, options{}), start(t, options{})
	first := e.must(e.heap("first", 100, segment.ReadWrite))
	e.tr.table.mu.next = tableSlots
	b := e.must(e.heap("b", 100, segment.ReadWrite))
	ep := other.connect(e.card())
	if c := other.do(ep, transport.Read, make([]byte, 10), b.Desc(), 0); c.Code != errs.Unsupported {
		t.Errorf("a buffer that is not in the table: %v, want unsupported", c.Code)
	}
	if err := first.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	second := e.must(e.heap("second", 100, segment.ReadWrite)) // in the place of the first
	other.ok(other.do(ep, transport.Read, make([]byte, 10), second.Desc(), 0))
	if c := other.do(ep, transport.Read, make([]byte, 10), first.Desc(), 0); c.Code != errs.Revoked {
		t.Errorf("a buffer whose place is taken: %v, want revoked", c.Code)
	}
}

// TestManyBuffers: an endpoint forgets some of them and goes on.
func TestManyBuffers(t *testing.T) {
	e, other := start(t, options{}), start(t, options{})
	ep := other.connect(e.card())
	b := e.must(e.heap("b", 100, segment.ReadWrite))
	for range 2*maxBindings + 10 {
		again := *b.Desc() // as a descriptor that was fetched anew has it
		other.ok(other.do(ep, transport.Read, make([]byte, 10), &again, 0))
	}
	if n := len(ep.mu.bindings); n > maxBindings {
		t.Errorf("%d buffers are remembered, the limit is %d", n, maxBindings)
	}
}

func TestAllocRefuses(t *testing.T) {
	e := start(t, options{})
	for _, c := range []struct {
		n    uint64
		at   topology.Location
		want error
	}{{0, "cpu:0", errs.ErrInvalid}, {1 << 62, "", errs.ErrInvalid}, {4096, "cuda:0", errs.ErrUnsupported}, {1 << 40, topology.Any, nil}} {
		p, free, err := e.tr.Alloc(c.n, c.at)
		if !errors.Is(err, c.want) {
			t.Errorf("Alloc(%d, %s): %v, want %v", c.n, c.at, err, c.want)
		}
		if err == nil {
			p[len(p)-1] = 1
			if err := errors.Join(free(), free()); err != nil {
				t.Errorf("free, twice: %v", err)
			}
		}
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	low := limit
	low.Cur = 3
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &low); err != nil {
		t.Fatal(err)
	}
	defer unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)
	if _, _, err := e.tr.Alloc(4096, ""); !errors.Is(err, errs.ErrOverloaded) || !strings.Contains(err.Error(), "ulimit -n") {
		t.Errorf("without descriptors: %v", err)
	}
}

// TestNotForMemoryOfDevices: buffers that are no host memory are left alone.
func TestNotForMemoryOfDevices(t *testing.T) {
	e := start(t, options{})
	for _, b := range []segment.Buffer{{Addr: 4096, Length: 10, Location: "cuda:0", Access: segment.ReadWrite}, {Length: 10, Location: topology.File, Access: segment.ReadWrite}} {
		if attrs, err := e.tr.Register(context.Background(), &b); attrs != nil || err != nil {
			t.Errorf("%s: %x, %v", b.Location, attrs, err)
		}
	}
}

// TestMostAllocations: allocations leave half of the descriptors alone, say what
// to do, and take in again what is freed.
func TestMostAllocations(t *testing.T) {
	for limit, want := range map[uint64]int{0: 0, 1: 0, 1024: 512, 1 << 20: maxAllocations, unix.RLIM_INFINITY: maxAllocations} {
		if got := half(limit); got != want {
			t.Errorf("of %d descriptors, allocations may take %d, want %d", limit, got, want)
		}
	}
	var said bytes.Buffer
	e := start(t, options{logger: slog.New(slog.NewTextHandler(&said, nil))})
	const most = 5
	e.tr.own.most = most
	var all []*registry.Buffer
	for range most {
		all = append(all, e.must(e.alloc("", 4096, segment.ReadWrite)))
	}
	for range 2 {
		if _, err := e.alloc("", 4096, segment.ReadWrite); !errors.Is(err, errs.ErrOverloaded) || !strings.Contains(err.Error(), "5 allocations") || !strings.Contains(err.Error(), "ulimit -n") {
			t.Errorf("one more: %v", err)
		}
	}
	if n := strings.Count(said.String(), "cannot map"); n != 1 {
		t.Errorf("it was said %d times, want once: %s", n, said.String())
	}
	if err := all[0].Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	e.must(e.alloc("", 4096, segment.ReadWrite))
	if e.tr.own.mu.held != most {
		t.Errorf("%d are counted, want %d", e.tr.own.mu.held, most)
	}
}
