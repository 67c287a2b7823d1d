package tideway_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tideway-io/tideway"
	"github.com/tideway-io/tideway/internal/testenv"
	"github.com/tideway-io/tideway/internal/wire"
	"github.com/tideway-io/tideway/segment"
)

func TestB02BatchEndsWhenAllAreQuiet(t *testing.T) {
	const piece, n = 1 << 20, 64
	px := testenv.NewProxy(t, "")
	px.Delay(100 * time.Millisecond)
	tg := startTarget(t, spec{Config: targetConfig{Listen: freeAddr(t), Advertise: px.Addr}, Buffers: []targetBuffer{{Name: "kv", Size: n * piece, Access: segment.ReadWrite}}})
	px.Target(tg.listen)
	e := open(t, tideway.Config{Lanes: 2, Retries: -1, StallTimeout: 2 * time.Second})
	_, kv := find(t, e, tg.Addr, "kv")
	src := make([]byte, n*piece)
	for i := range n {
		testenv.Fill(src[i*piece:(i+1)*piece], testenv.KeyOf(2, 1), uint64(i*piece))
	}
	reqs := make([]tideway.Request, n)
	for i := range reqs {
		reqs[i] = tideway.Request{Op: tideway.Write, Local: tideway.Bytes(src[i*piece : (i+1)*piece]), Remote: kv.At(uint64(i * piece))}
	}
	px.Inject(testenv.Fault{Dir: testenv.Up, Kind: testenv.Reset, At: px.Bytes(testenv.Up) + 5<<20})
	b, err := e.Submit(t.Context(), reqs...)
	if err != nil {
		t.Fatal(err)
	}
	_ = b.Wait(t.Context()) // some may fail
	testenv.Poison(src)     // the source is ours again
	for i, r := range b.Results() {
		if r.Err != nil {
			continue
		}
		tg.must("verify kv 2 1 %d %d", i*piece, piece)
	}
	got := make([]byte, piece)
	poison := bytes.Repeat([]byte{testenv.PoisonByte}, piece)
	time.Sleep(500 * time.Millisecond) // real time: whatever is late has time to arrive
	for i := range n {
		if _, err := kv.ReadAt(t.Context(), got, uint64(i*piece)); err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(got, poison[:64]) {
			t.Fatalf("bytes that were written after the batch had ended arrived in piece %d", i)
		}
	}
}

func TestB06RestartedPeer(t *testing.T) {
	addr := freeAddr(t)
	one := startTarget(t, spec{Config: targetConfig{Listen: addr}, Buffers: []targetBuffer{{Name: "kv", Size: 8192, Access: segment.ReadWrite}}})
	e := open(t, tideway.Config{})
	s, kv := find(t, e, addr, "kv")
	p := bytes.Repeat([]byte{0xaa}, 4096)
	if _, err := kv.WriteAt(t.Context(), p, 0); err != nil {
		t.Fatal(err)
	}
	one.kill()
	two := startTarget(t, spec{Config: targetConfig{Listen: addr}, Buffers: []targetBuffer{
		{Name: "other", Size: 8192, Access: segment.ReadWrite}, {Name: "kv", Size: 8192, Access: segment.ReadWrite}}})
	two.must("poison other")
	two.must("poison kv")
	if _, err := kv.WriteAt(t.Context(), p, 0); !errors.Is(err, tideway.ErrStale) {
		t.Errorf("the old handle against the new process: %v, want ErrStale", err)
	}
	for _, name := range []string{"other", "kv"} {
		for _, off := range []int{0, 100, 4095} {
			if got := two.ask("byte %s %d", name, off); got != "219" {
				t.Fatalf("%s was touched at %d through a handle of the dead process: %s", name, off, got)
			}
		}
	}
	kv, err := s.Buffer(t.Context(), "kv")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kv.WriteAt(t.Context(), p, 0); err != nil {
		t.Errorf("after a refresh: %v", err)
	}
}

func TestB14SurvivorLives(t *testing.T) {
	survivor := open(t, tideway.Config{StallTimeout: time.Second})
	alloc(t, survivor, "own", 1<<20, segment.ReadWrite)
	var targets []*target
	var bufs []*tideway.RemoteBuffer
	for range 4 {
		tg := startTarget(t, spec{Buffers: []targetBuffer{{Name: "kv", Size: 1 << 20, Access: segment.ReadWrite}}})
		_, kv := find(t, survivor, tg.Addr, "kv")
		targets, bufs = append(targets, tg), append(bufs, kv)
	}
	for range 20 {
		garbage(t, survivor.Addr())
	}
	p := make([]byte, 1<<20)
	for i := range 1000 {
		if i == 500 {
			targets[1].kill()
		}
		err := survivor.Do(t.Context(), tideway.Request{Op: tideway.Write, Local: tideway.Bytes(p[:4096]), Remote: bufs[i%4].At(0)})
		if err != nil && (i < 500 || i%4 != 1) {
			t.Fatalf("transfer %d: %v", i, err)
		}
	}
	other := open(t, tideway.Config{})
	_, own := find(t, other, survivor.Addr(), "own")
	if _, err := own.WriteAt(t.Context(), p, 0); err != nil {
		t.Error(err)
	}
}

// garbage sends a random opening, right and wrong prefaces among them.
func garbage(t *testing.T, addr string) {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	p := make([]byte, 4096)
	for i := range p {
		p[i] = byte(rand.Uint32())
	}
	switch rand.IntN(4) {
	case 0:
		copy(p, wire.PrefaceData[:])
	case 1:
		copy(p, wire.PrefaceControl[:])
	case 2:
		binary.LittleEndian.PutUint64(p, 100)
	}
	_, _ = c.Write(p[:rand.IntN(len(p))]) // the other side may have closed it
}

func TestB22ManyBuffers(t *testing.T) {
	n, each := 100_000, 16<<10
	if testenv.Race {
		n = 10_000
	}
	b := open(t, tideway.Config{})
	mem := make([]byte, n*each)
	for i := range n {
		if _, err := b.Register(mem[i*each:(i+1)*each], tideway.BufferOptions{Access: segment.ReadWrite}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 5 {
		e := open(t, tideway.Config{})
		s, err := e.OpenSegment(t.Context(), b.Addr())
		if err != nil {
			t.Fatal(err)
		}
		if len(s.Buffers()) != n {
			t.Fatalf("%d buffers, want %d", len(s.Buffers()), n)
		}
		p := make([]byte, 4096)
		for range 100 {
			addr := s.Buffers()[rand.IntN(n)].Addr + uint64(rand.IntN(each-4096))
			if err := e.Do(t.Context(), tideway.Request{Op: tideway.Write, Local: tideway.Bytes(p), Remote: s.At(addr)}); err != nil {
				t.Fatalf("peer %d: %v", i, err)
			}
		}
	}
}

func TestB24UnregisterDuringTransfer(t *testing.T) {
	const size = 256 << 20
	tg := startTarget(t, spec{Buffers: []targetBuffer{{Name: "kv", Size: size, Access: segment.ReadWrite}}})
	e := open(t, tideway.Config{})
	_, kv := find(t, e, tg.Addr, "kv")
	for _, op := range []tideway.Op{tideway.Write, tideway.Read} {
		local := make([]byte, size)
		var reqs []tideway.Request
		for range 8 {
			reqs = append(reqs, tideway.Request{Op: op, Local: tideway.Bytes(local), Remote: kv.At(0)})
		}
		b, err := e.Submit(t.Context(), reqs...)
		if err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, 5*time.Second, func() bool { return inFlight(e) > 0 }, "nothing in flight")
		tg.must("close kv")
		if err := b.Wait(t.Context()); !errors.Is(err, tideway.ErrStale) {
			t.Errorf("%v: %v, want ErrStale", op, err)
		}
		tg.must("alloc kv %d", size)
		_, kv = find(t, e, tg.Addr, "kv")
	}
}

func TestB28NoLeaks(t *testing.T) {
	n := 20_000
	if !testenv.Large() {
		n = 2000
	}
	b := open(t, tideway.Config{})
	alloc(t, b, "kv", 1<<20, segment.ReadWrite)
	e := open(t, tideway.Config{})
	s, kv := find(t, e, b.Addr(), "kv")
	p := make([]byte, 512)
	round := func(n int) {
		for i := range n {
			req := tideway.Request{Op: tideway.Write, Local: tideway.Bytes(p), Remote: kv.At(0)}
			ctx, cancel := context.WithCancel(t.Context())
			switch i % 10 {
			case 0:
				req.Remote = s.At(1)
			case 1:
				req.Remote = kv.At(1 << 20)
			case 2:
				cancel()
			}
			_ = e.Do(ctx, req) // a third fails on purpose
			cancel()
		}
	}
	round(1000)
	before := heap()
	goroutines := runtime.NumGoroutine()
	round(n)
	if c := e.Inspect().Counts; c.BatchesLive != 0 || c.QueuedRequests != 0 || c.QueuedBytes != 0 {
		t.Errorf("left over: %+v", c)
	}
	testenv.Eventually(t, 5*time.Second, func() bool { return runtime.NumGoroutine() <= goroutines+2 }, "goroutines")
	if after := heap(); after > before+4<<20 {
		t.Errorf("the heap grew from %d to %d bytes", before, after)
	}
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestB49ManyEngines opens and closes engines one after the other, each of which
// writes to one that stays, in the ways that an engine can end.
func TestB49ManyEngines(t *testing.T) {
	n := 1000
	if testing.Short() {
		n = 50
	}
	owner := open(t, tideway.Config{})
	alloc(t, owner, "kv", 1<<20, segment.ReadWrite)
	p := make([]byte, 1<<20)
	life := func(i int) {
		e, err := tideway.Open(t.Context(), tideway.Config{})
		if err != nil {
			t.Fatal(err)
		}
		local := alloc(t, e, "", 1<<20, segment.ReadWrite)
		_, kv := find(t, e, owner.Addr(), "kv")
		b, err := e.Submit(t.Context(),
			tideway.Request{Op: tideway.Write, Local: tideway.Bytes(p), Remote: kv.At(0)},
			tideway.Request{Op: tideway.Read, Local: local.Range(0, 1<<20), Remote: kv.At(0)})
		if err != nil {
			t.Fatal(err)
		}
		if i%3 == 0 {
			if err := b.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if i%3 == 1 {
			err = e.Shutdown(t.Context())
		}
		if err = errors.Join(err, e.Close()); err != nil {
			t.Fatal(err)
		}
		select {
		case <-b.Done():
		default:
			t.Fatalf("engine %d is closed and its batch is not done", i)
		}
		if err := b.Err(); err != nil && i%3 != 2 || err != nil && !errors.Is(err, tideway.ErrClosed) {
			t.Fatalf("engine %d: %v", i, err)
		}
	}
	life(0)
	testenv.Leak(t)
	for i := range n {
		life(i)
	}
}

func TestB33Drain(t *testing.T) {
	const size = 64 << 20
	tg := startTarget(t, spec{Buffers: []targetBuffer{{Name: "kv", Size: size, Access: segment.ReadWrite}}})
	e := open(t, tideway.Config{})
	_, kv := find(t, e, tg.Addr, "kv")
	b, err := e.Submit(t.Context(), tideway.Request{Op: tideway.Read, Local: tideway.Bytes(make([]byte, size)), Remote: kv.At(0)})
	if err != nil {
		t.Fatal(err)
	}
	tg.signal(syscall.SIGTERM)
	err = b.Wait(t.Context())
	if err != nil && !errors.Is(err, tideway.ErrClosed) && !errors.Is(err, tideway.ErrUnreachable) {
		t.Errorf("the transfer under way: %v", err)
	}
	select {
	case err := <-tg.done:
		tg.done <- err
		if err != nil {
			t.Errorf("the target ended with %v", err)
		}
	case <-time.After(8 * time.Second): // real time: the grace and some
		t.Fatal("the target did not end")
	}
	if _, err := kv.ReadAt(t.Context(), make([]byte, 10), 0); !errors.Is(err, tideway.ErrUnreachable) && !errors.Is(err, tideway.ErrClosed) {
		t.Errorf("a read after the end: %v", err)
	}
}

func TestB39HostilePeer(t *testing.T) {
	b := open(t, tideway.Config{})
	buf := alloc(t, b, "kv", 1<<20, segment.RemoteRead)
	testenv.Fill(buf.Bytes(), testenv.KeyOf(39, 0), 0)
	e := open(t, tideway.Config{})
	_, kv := find(t, e, b.Addr(), "kv")
	before := heap()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				garbage(t, b.Addr())
			}
		})
	}
	half := make([]net.Conn, 0, 300)
	for range 300 {
		if c, err := net.Dial("tcp", b.Addr()); err == nil {
			half = append(half, c)
		}
	}
	wg.Wait()
	got := make([]byte, 1<<20)
	if _, err := kv.ReadAt(t.Context(), got, 0); err != nil {
		t.Fatal(err)
	}
	if err := testenv.Verify(got, testenv.KeyOf(39, 0), 0); err != nil {
		t.Error(err)
	}
	if after := heap(); after > before+64<<20 {
		t.Errorf("the heap grew from %d to %d bytes", before, after)
	}
	for _, c := range half {
		c.Close()
	}
}

func TestB46NoDelayedAck(t *testing.T) {
	tg := startTarget(t, spec{Buffers: []targetBuffer{{Name: "kv", Size: 1 << 20, Access: segment.ReadWrite}}})
	e := open(t, tideway.Config{})
	_, kv := find(t, e, tg.Addr, "kv")
	p := make([]byte, 4096)
	slow := 0
	const n, delayed = 10_000, 30 * time.Millisecond // the kernel delays an acknowledgement for 40 ms
	for range n {
		start := time.Now()
		if _, err := kv.ReadAt(t.Context(), p, 0); err != nil {
			t.Fatal(err)
		}
		if time.Since(start) > delayed {
			slow++
		}
	}
	if limit := n / 100; slow > limit {
		t.Errorf("%d of %d reads took more than %v, want %d at most", slow, n, delayed, limit)
	}
}

func TestB53NotificationAfterBytes(t *testing.T) {
	const size = 4 << 20
	tg := startTarget(t, spec{Buffers: []targetBuffer{{Name: "kv", Size: size, Access: segment.ReadWrite}}})
	e := open(t, tideway.Config{Lanes: 4})
	s, kv := find(t, e, tg.Addr, "kv")
	for round := range uint64(20) {
		b := e.NewBatch()
		for off := uint64(0); off < size; off += size / 8 {
			p := pattern(size/8, testenv.KeyOf(53, round), off)
			if err := b.Add(t.Context(), tideway.Request{Op: tideway.Write, Local: tideway.Bytes(p), Remote: kv.At(off)}); err != nil {
				t.Fatal(err)
			}
		}
		if err := b.NotifyOnSuccess(s, tideway.Notification{Name: "done", Body: []byte("x")}); err != nil {
			t.Fatal(err)
		}
		b.Seal()
		if got := tg.ask("receive"); got != "ok done x" {
			t.Fatal(got)
		}
		tg.must("verify kv 53 %d 0 %d", round, size)
		if err := b.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func TestB25MoreThan4GiB(t *testing.T) {
	testenv.NeedLarge(t)
	const size = 6 << 30
	mem, err := syscall.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE|syscall.MAP_NORESERVE)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Munmap(mem)
	b := open(t, tideway.Config{})
	buf := must(b.Register(mem, tideway.BufferOptions{Name: "big", Access: segment.ReadWrite}))(t)
	e := open(t, tideway.Config{})
	_, big := find(t, e, b.Addr(), "big")
	key := testenv.KeyOf(25, 0)
	seams := []uint64{1<<31 - 1, 1 << 31, 1<<32 - 1, 1 << 32, 1<<32 + 1, size - 4096}
	for _, at := range seams {
		testenv.Fill(mem[at-4096:at+4096], key, at-4096)
	}
	pages := alloc(t, e, "", 1<<32+1, segment.LocalOnly) // off the heap, where the race detector keeps no shadow
	for _, n := range []uint64{1<<31 - 1, 1 << 31, 1<<32 + 1} {
		local := pages.Bytes()[:n]
		if _, err := big.ReadAt(t.Context(), local, size-n); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(local, mem[size-n:]) {
			t.Errorf("%d bytes that end with the buffer differ", n)
		}
	}
	if _, err := big.ReadAt(t.Context(), make([]byte, 4096), size-4095); !errors.Is(err, io.EOF) {
		t.Errorf("past the end: %v", err)
	}
	if err := buf.CloseContext(t.Context()); err != nil {
		t.Error(err)
	}
}

// inFlight returns the bytes that e has posted and that have not completed.
func inFlight(e *tideway.Engine) uint64 {
	var n uint64
	for _, p := range e.Inspect().Peers {
		for _, q := range p.Paths {
			for _, r := range q.Rails {
				n += r.InFlight
			}
		}
	}
	return n
}
