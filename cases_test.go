package tideway_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tideway-io/tideway"
	"github.com/tideway-io/tideway/internal/testenv"
	"github.com/tideway-io/tideway/segment"
)

// The tests named after cases show what goes wrong for users of transfer
// engines, and that it does not here. docs/testing.md lists them.

// open starts an engine that is closed with the test. Unless its transports are
// named it has none around the network: that is what most tests are about.
func open(t testing.TB, cfg tideway.Config) *tideway.Engine {
	t.Helper()
	if cfg.Transports == nil {
		cfg.Transports = []string{"memory", "tcp"}
	}
	e, err := tideway.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Errorf("close engine: %v", err)
		}
	})
	return e
}

func alloc(t testing.TB, e *tideway.Engine, name string, n uint64, access segment.Access) *tideway.Buffer {
	t.Helper()
	b, err := e.Alloc(n, tideway.BufferOptions{Name: name, Access: access})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// find opens a segment and one of its buffers.
func find(t testing.TB, e *tideway.Engine, addr, name string) (*tideway.Segment, *tideway.RemoteBuffer) {
	t.Helper()
	s, err := e.OpenSegment(t.Context(), addr)
	if err != nil {
		t.Fatal(err)
	}
	b, err := s.Buffer(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return s, b
}

// pattern returns n bytes of the pattern of key at offset.
func pattern(n int, key testenv.Key, offset uint64) []byte {
	p := make([]byte, n)
	testenv.Fill(p, key, offset)
	return p
}

func TestB01CompletedMeansApplied(t *testing.T) {
	const size, block = 64 << 20, 2_400_000
	tg := startTarget(t, spec{Buffers: []targetBuffer{{Name: "kv", Size: size, Access: segment.ReadWrite}, {Name: "ro", Size: 4096, Access: segment.RemoteRead}}})
	e, second := open(t, tideway.Config{}), open(t, tideway.Config{})
	_, kv := find(t, e, tg.Addr, "kv")
	_, again := find(t, second, tg.Addr, "kv")

	src := pattern(block, testenv.KeyOf(1, 0), 0)
	tg.signal(syscall.SIGSTOP)
	b, err := e.Submit(t.Context(), tideway.Request{Op: tideway.Write, Local: tideway.Bytes(src), Remote: kv.At(0)})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-b.Done():
		t.Fatalf("a write to a stopped process is complete: %v", b.Err())
	case <-time.After(time.Second): // real time: nothing must happen
	}
	tg.signal(syscall.SIGCONT)
	if err := b.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	rounds := 400
	if testing.Short() {
		rounds = 40
	}
	got := make([]byte, block)
	for round := uint64(1); round <= uint64(rounds); round++ {
		off := round * 7919 % (size - block)
		testenv.Fill(src, testenv.KeyOf(1, round), off)
		if _, err := kv.WriteAt(t.Context(), src, off); err != nil {
			t.Fatal(err)
		}
		if _, err := again.ReadAt(t.Context(), got, off); err != nil {
			t.Fatal(err)
		}
		if err := testenv.Verify(got, testenv.KeyOf(1, round), off); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
	}
	_, ro := find(t, e, tg.Addr, "ro")
	if _, err := ro.WriteAt(t.Context(), src[:10], 0); !errors.Is(err, tideway.ErrDenied) {
		t.Errorf("write to a read-only buffer: %v", err)
	}
	if _, err := kv.WriteAt(t.Context(), src[:10], size-9); !errors.Is(err, tideway.ErrInvalid) {
		t.Errorf("write past the end: %v", err)
	}
}

func TestB03CancelAndDeadline(t *testing.T) {
	px := testenv.NewProxy(t, "")
	tg := startTarget(t, spec{Config: targetConfig{Listen: freeAddr(t), Advertise: px.Addr}, Buffers: []targetBuffer{{Name: "kv", Size: 1 << 20, Access: segment.ReadWrite, Key: testenv.KeyOf(3, 0)}}})
	px.Target(tg.listen)
	e := open(t, tideway.Config{})
	_, kv := find(t, e, tg.Addr, "kv")
	p := make([]byte, 1<<20)
	if _, err := kv.ReadAt(t.Context(), p, 0); err != nil {
		t.Fatal(err)
	}
	px.BlackHole(true)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	start := time.Now()
	_, err := kv.ReadAt(ctx, p, 0)
	if took := time.Since(start); took > 400*time.Millisecond {
		t.Errorf("the read returned after %v, want 400ms at most", took)
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("err = %v, want DeadlineExceeded", err)
	}
	testenv.Poison(p)
	want := bytes.Clone(p)
	px.BlackHole(false)
	if _, err := kv.ReadAt(t.Context(), make([]byte, 1<<20), 0); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(p, want) {
		t.Error("a late byte landed after the call returned")
	}
	b, err := e.Submit(t.Context(), tideway.Request{Op: tideway.Read, Local: tideway.Bytes(p), Remote: kv.At(0), Deadline: time.Now().Add(-time.Second)})
	if err != nil {
		t.Fatal(err)
	}
	b.Cancel()
	b.Cancel()
	if err := b.Wait(t.Context()); !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
		t.Errorf("err = %v, want the deadline or the cancel", err)
	}
}

func TestB04PeerDeath(t *testing.T) {
	const size = 64 << 20
	for _, way := range []struct {
		name  string
		do    func(tg *target, px *testenv.Proxy)
		bound time.Duration
	}{
		{"kill", func(tg *target, _ *testenv.Proxy) { tg.kill() }, 2 * time.Second},
		{"stop", func(tg *target, _ *testenv.Proxy) { tg.signal(syscall.SIGSTOP) }, 3 * time.Second},
		{"black hole", func(_ *target, px *testenv.Proxy) { px.BlackHole(true) }, 3 * time.Second},
	} {
		t.Run(way.name, func(t *testing.T) {
			px := testenv.NewProxy(t, "")
			px.Link(testenv.Up, 800e6, time.Millisecond)
			tg := startTarget(t, spec{Config: targetConfig{Listen: freeAddr(t), Advertise: px.Addr}, Buffers: []targetBuffer{{Name: "kv", Size: size, Access: segment.ReadWrite}}})
			px.Target(tg.listen)
			other := startTarget(t, spec{Buffers: []targetBuffer{{Name: "kv", Size: 1 << 20, Access: segment.ReadWrite}}})
			e := open(t, tideway.Config{StallTimeout: time.Second})
			_, kv := find(t, e, tg.Addr, "kv")
			_, ok := find(t, e, other.Addr, "kv")
			src := make([]byte, size/16)
			reqs := make([]tideway.Request, 64)
			for i := range reqs {
				reqs[i] = tideway.Request{Op: tideway.Write, Local: tideway.Bytes(src), Remote: kv.At(uint64(i%16) * size / 16)}
			}
			b, err := e.Submit(t.Context(), reqs...)
			if err != nil {
				t.Fatal(err)
			}
			testenv.Eventually(t, 5*time.Second, func() bool { return px.Bytes(testenv.Up) > 8<<20 }, "no bytes moved")
			way.do(tg, px)
			died := time.Now()
			for range 50 {
				if _, err := ok.WriteAt(t.Context(), src[:1<<20], 0); err != nil {
					t.Fatalf("another peer is disturbed: %v", err)
				}
			}
			select {
			case <-b.Done():
			case <-time.After(way.bound - time.Since(died)): // real time: the bound that is promised
				t.Fatalf("not over %v after the peer's end", way.bound)
			}
			if err := b.Err(); !errors.Is(err, tideway.ErrUnreachable) {
				t.Errorf("err = %v, want ErrUnreachable", err)
			}
		})
	}
}

func TestB05Corruption(t *testing.T) {
	const size = 8 << 20
	for _, kind := range []testenv.Kind{testenv.Flip, testenv.Delete, testenv.Repeat, testenv.Swap} {
		for _, dir := range []testenv.Dir{testenv.Up, testenv.Down} {
			t.Run(fmt.Sprint(kind, dir), func(t *testing.T) {
				px := testenv.NewProxy(t, "")
				tg := startTarget(t, spec{Config: targetConfig{Listen: freeAddr(t), Advertise: px.Addr}, Buffers: []targetBuffer{{Name: "kv", Size: size, Access: segment.ReadWrite}}})
				px.Target(tg.listen)
				e := open(t, tideway.Config{StallTimeout: 2 * time.Second})
				_, kv := find(t, e, tg.Addr, "kv")
				got := make([]byte, size)
				for round := range uint64(6) {
					key := testenv.KeyOf(5, round)
					px.Inject(testenv.Fault{Dir: dir, Kind: kind, At: px.Bytes(dir) + 100_000 + 900_000*round, Len: 64})
					if _, err := kv.WriteAt(t.Context(), pattern(size, key, 0), 0); err != nil {
						if !errors.Is(err, tideway.ErrChecksum) && !errors.Is(err, tideway.ErrUnreachable) {
							t.Errorf("round %d: %v", round, err)
						}
						continue
					}
					tg.must("verify kv 5 %d 0 %d", round, size)
					if _, err := kv.ReadAt(t.Context(), got, 0); err != nil {
						if !errors.Is(err, tideway.ErrChecksum) && !errors.Is(err, tideway.ErrUnreachable) {
							t.Errorf("round %d: %v", round, err)
						}
						continue
					}
					if err := testenv.Verify(got, key, 0); err != nil {
						t.Fatalf("round %d: wrong bytes were delivered as success: %v", round, err)
					}
				}
			})
		}
	}
}

func TestB07LateRegistrations(t *testing.T) {
	tg := startTarget(t, spec{Buffers: []targetBuffer{{Name: "a", Size: 4096, Access: segment.ReadWrite}}})
	e := open(t, tideway.Config{})
	s, _ := find(t, e, tg.Addr, "a")
	tg.must("alloc b 8192")
	b, err := s.Buffer(t.Context(), "b")
	if err != nil {
		t.Fatalf("a buffer registered after the segment was opened: %v", err)
	}
	p := make([]byte, 8192)
	if _, err := b.WriteAt(t.Context(), p, 0); err != nil {
		t.Fatal(err)
	}
	if err := e.Do(t.Context(), tideway.Request{Op: tideway.Read, Local: tideway.Bytes(p), Remote: s.At(b.Desc().Addr)}); err != nil {
		t.Errorf("by address: %v", err)
	}
	tg.must("close b")
	tg.must("alloc b 4096")
	if _, err := b.WriteAt(t.Context(), p, 0); !errors.Is(err, tideway.ErrStale) {
		t.Errorf("write to a closed buffer: %v, want ErrStale", err)
	}
	if b, err = s.Buffer(t.Context(), "b"); err != nil || b.Len() != 4096 {
		t.Fatalf("after a refresh: %v, %v", b, err)
	}
	if _, err := b.WriteAt(t.Context(), p, 0); !errors.Is(err, tideway.ErrInvalid) {
		t.Errorf("the old length against the new buffer: %v", err)
	}
	if _, err := b.WriteAt(t.Context(), p[:4096], 0); err != nil {
		t.Error(err)
	}
}

func TestB15PortClash(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	_, err = tideway.Open(t.Context(), tideway.Config{Listen: taken.Addr().String()})
	if !errors.Is(err, tideway.ErrPortInUse) {
		t.Errorf("err = %v, want ErrPortInUse", err)
	}
	var wg sync.WaitGroup
	addrs := make(chan string, 30)
	for range 30 {
		wg.Go(func() {
			e, err := tideway.Open(t.Context(), tideway.Config{})
			if err != nil {
				t.Error(err)
				return
			}
			addrs <- e.Addr()
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if len(addrs) != 30 {
		t.Errorf("%d of 30 engines started", len(addrs))
	}
}

func TestB16PortFallback(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	b := open(t, tideway.Config{Listen: taken.Addr().String(), PortFallback: true})
	if b.Addr() == taken.Addr().String() {
		t.Fatal("the address advertised is not the one bound")
	}
	alloc(t, b, "kv", 4096, segment.ReadWrite)
	a := open(t, tideway.Config{})
	find(t, a, b.Addr(), "kv")
	taken.Close()
	start := time.Now()
	if _, err := a.OpenSegment(t.Context(), taken.Addr().String()); !errors.Is(err, tideway.ErrUnreachable) {
		t.Errorf("the wrong port: %v", err)
	}
	if took := time.Since(start); took > 500*time.Millisecond {
		t.Errorf("a refused connection took %v", took)
	}
}

func TestB17IPv6(t *testing.T) {
	for _, listen := range []string{"[::1]:0", "::1", "localhost:0"} {
		b := open(t, tideway.Config{Listen: listen})
		alloc(t, b, "kv", 4096, segment.ReadWrite)
		a := open(t, tideway.Config{})
		_, kv := find(t, a, b.Addr(), "kv")
		if _, err := kv.WriteAt(t.Context(), []byte("x"), 0); err != nil {
			t.Errorf("%s: %v", listen, err)
		}
	}
}

func TestB19Spellings(t *testing.T) {
	b := open(t, tideway.Config{})
	alloc(t, b, "kv", 4096, segment.ReadWrite)
	a := open(t, tideway.Config{})
	_, port, _ := net.SplitHostPort(b.Addr())
	for _, name := range []string{b.Addr(), "localhost:" + port} {
		_, kv := find(t, a, name, "kv")
		if _, err := kv.WriteAt(t.Context(), []byte(name), 0); err != nil {
			t.Error(err)
		}
	}
	if n := len(a.Inspect().Peers); n != 1 {
		t.Errorf("two spellings of one engine are %d peers", n)
	}
	start := time.Now()
	if _, err := a.OpenSegment(t.Context(), "no-such-host.invalid:1"); !errors.Is(err, tideway.ErrUnreachable) {
		t.Errorf("an unknown host: %v", err)
	}
	if took := time.Since(start); took > time.Second {
		t.Errorf("an unknown host took %v", took)
	}
	if _, err := a.OpenSegment(t.Context(), "localhost:"+portOf(a)); !errors.Is(err, tideway.ErrInvalid) {
		t.Errorf("oneself by another name: %v, want a self-dial error", err)
	}
}

func portOf(e *tideway.Engine) string {
	_, port, _ := net.SplitHostPort(e.Addr())
	return port
}

func TestB23DoubleRegistration(t *testing.T) {
	e := open(t, tideway.Config{})
	p := make([]byte, 3<<20)
	one := must(e.Register(p[:1<<20], tideway.BufferOptions{}))(t)
	two := must(e.Register(p[:1<<20], tideway.BufferOptions{}))(t)
	if _, err := e.Register(p[1<<19:3<<19], tideway.BufferOptions{}); !errors.Is(err, tideway.ErrInvalid) {
		t.Errorf("overlap: %v", err)
	}
	if _, err := e.Register(p[4096:8192], tideway.BufferOptions{}); !errors.Is(err, tideway.ErrInvalid) {
		t.Errorf("contained: %v", err)
	}
	next := must(e.Register(p[1<<20:2<<20], tideway.BufferOptions{}))(t)
	for _, b := range []*tideway.Buffer{one, one, next, next} { // a handle counts once
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := e.Register(p, tideway.BufferOptions{}); !errors.Is(err, tideway.ErrInvalid) {
		t.Errorf("over a registration that is still held: %v", err)
	}
	if err := two.Close(); err != nil {
		t.Error(err)
	}
	whole := must(e.Register(p, tideway.BufferOptions{}))(t)
	if err := whole.Close(); err != nil {
		t.Error(err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var won []*tideway.Buffer
	for i := range 16 {
		wg.Go(func() {
			if b, err := e.Register(p[i*4096:(i+2)*4096], tideway.BufferOptions{}); err == nil {
				mu.Lock()
				won = append(won, b)
				mu.Unlock()
			} else if !errors.Is(err, tideway.ErrInvalid) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if len(won) == 0 || len(won) > 8 {
		t.Errorf("%d of 16 overlapping registrations were taken", len(won))
	}
	for _, b := range won {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
}

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func TestB26Edges(t *testing.T) {
	const size = 65537 + 100
	b := open(t, tideway.Config{})
	buf := alloc(t, b, "kv", size, segment.ReadWrite)
	a := open(t, tideway.Config{})
	_, kv := find(t, a, b.Addr(), "kv")
	key := testenv.KeyOf(26, 0)
	testenv.Fill(buf.Bytes(), key, 0)
	edges := []uint64{0, 1, 4095, 4096, 4097, 65535, 65536, 65537, size - 1, size, size + 1}
	for _, off := range edges {
		for _, n := range edges {
			p := make([]byte, n)
			err := a.Do(t.Context(), tideway.Request{Op: tideway.Read, Local: tideway.Bytes(p), Remote: kv.At(off)})
			if off+n > size {
				if !errors.Is(err, tideway.ErrInvalid) {
					t.Errorf("read %d at %d of %d: %v, want out of range", n, off, size, err)
				}
				continue
			}
			if err != nil {
				t.Errorf("read %d at %d: %v", n, off, err)
			} else if err := testenv.Verify(p, key, off); err != nil {
				t.Errorf("read %d at %d: %v", n, off, err)
			}
		}
	}
	err := a.Do(t.Context(), tideway.Request{Op: tideway.Read, Local: tideway.Bytes(make([]byte, 2)), Remote: kv.At(math.MaxUint64 - 1)})
	if !errors.Is(err, tideway.ErrInvalid) {
		t.Errorf("overflow: %v", err)
	}
}

func TestB34PartialFailure(t *testing.T) {
	tg := startTarget(t, spec{Buffers: []targetBuffer{{Name: "kv", Size: 1 << 20, Access: segment.ReadWrite}}})
	dead := startTarget(t, spec{Buffers: []targetBuffer{{Name: "kv", Size: 4096, Access: segment.ReadWrite}}})
	e := open(t, tideway.Config{})
	s, kv := find(t, e, tg.Addr, "kv")
	_, gone := find(t, e, dead.Addr, "kv")
	dead.kill()
	p := make([]byte, 4096)
	reqs := make([]tideway.Request, 10)
	for i := range reqs {
		reqs[i] = tideway.Request{Op: tideway.Write, Local: tideway.Bytes(p), Remote: kv.At(uint64(i) * 4096)}
	}
	reqs[2].Remote = kv.At(1<<20 - 4095)
	reqs[5].Remote = gone.At(0)
	reqs[8].Remote = s.At(64)
	b, err := e.Submit(t.Context(), reqs...)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Wait(t.Context()); err == nil {
		t.Fatal("three requests are bad and the batch is fine")
	}
	want := map[int]error{2: tideway.ErrInvalid, 5: tideway.ErrUnreachable, 8: tideway.ErrNotFound}
	for i, r := range b.Results() {
		if !errors.Is(r.Err, want[i]) {
			t.Errorf("request %d: %v, want %v", i, r.Err, want[i])
		}
		var e *tideway.Error
		if r.Err != nil && (!errors.As(r.Err, &e) || e.Segment == "") {
			t.Errorf("request %d: the error does not say where: %v", i, r.Err)
		}
		if r.Err == nil && r.Bytes != 4096 {
			t.Errorf("request %d moved %d bytes", i, r.Bytes)
		}
	}
}

func TestB54OwnSegment(t *testing.T) {
	e := open(t, tideway.Config{})
	buf := alloc(t, e, "kv", 8<<20, segment.ReadWrite)
	_, kv := find(t, e, e.Name(), "kv")
	src := pattern(8<<20, testenv.KeyOf(54, 0), 0)
	if _, err := kv.WriteAt(t.Context(), src, 0); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(src, buf.Bytes()) {
		t.Error("the bytes did not arrive")
	}
	got, err := io.ReadAll(kv.Reader(t.Context()))
	if err != nil || !bytes.Equal(got, src) {
		t.Errorf("read back: %v", err)
	}
}
