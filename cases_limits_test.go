package tideway_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tideway-io/tideway"
	"github.com/tideway-io/tideway/internal/testenv"
	"github.com/tideway-io/tideway/segment"
)

// descriptors counts what this process has open.
func descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list) - 1 // the directory itself
}

// limitFiles sets how many descriptors this process may have.
func limitFiles(n int) error {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return err
	}
	l.Cur = uint64(n)
	return syscall.Setrlimit(syscall.RLIMIT_NOFILE, &l)
}

// mostFiles is the limit at which this process can open nothing more, if no
// lower number is free.
func mostFiles() int {
	n, err := syscall.Dup(0)
	if err != nil {
		return 0
	}
	_ = syscall.Close(n)
	return n
}

// limitPorts sets which local ports connections of this namespace get.
func limitPorts(t *testing.T, first, last int) {
	t.Helper()
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", fmt.Appendf(nil, "%d %d", first, last), 0o644); err != nil {
		t.Fatal(err)
	}
}

// crowd starts a process with n targets and returns it and their addresses.
func crowd(t *testing.T, n int) (*target, []string) {
	t.Helper()
	tg := startTarget(t, spec{})
	addrs := strings.Fields(tg.ask("crowd %d %d", n, 1<<20))
	if len(addrs) != n {
		t.Fatalf("the target process says %q, want %d addresses", addrs, n)
	}
	return tg, addrs
}

// TestB21Pool loads 30 peers, some of which restart, with 200 local ports and
// 128 descriptors.
func TestB21Pool(t *testing.T) {
	testenv.NeedRoot(t)
	if !isInside() {
		inside(t, testenv.NewLab(t).Host("a"))
		return
	}
	const peers = 30
	limitPorts(t, 40000, 40199)
	tg, addrs := crowd(t, peers)
	if err := limitFiles(128); err != nil {
		t.Fatal(err)
	}
	e := open(t, tideway.Config{})
	segs := make([]*tideway.Segment, peers)
	p := make([]byte, 128<<10)
	var one sync.Mutex // looking a buffer up again
	write := func(i, n int) error {
		one.Lock()
		b, err := segs[i].Buffer(t.Context(), "kv")
		one.Unlock()
		if err == nil {
			_, err = b.WriteAt(t.Context(), p[:n], 0)
		}
		return err
	}
	for i, addr := range addrs {
		segs[i] = must(e.OpenSegment(t.Context(), addr))(t)
		if err := errors.Join(write(i, 4096), write(i, 128<<10)); err != nil {
			t.Fatal(err)
		}
	}
	before := descriptors(t)
	rounds := 200
	if testing.Short() {
		rounds = 40
	}
	var done, overloaded atomic.Int64
	for round := range rounds {
		if round%10 == 9 {
			tg.must("reopen %d %d", round/10%peers, 1<<20)
			if err := segs[round/10%peers].Refresh(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		var wg sync.WaitGroup
		for i := range peers {
			wg.Go(func() {
				switch err := write(i, 4096+i%2*(64<<10)); {
				case err == nil:
					done.Add(1)
				case errors.Is(err, tideway.ErrOverloaded):
					overloaded.Add(1)
				default:
					t.Errorf("round %d, peer %d: %v", round, i, err)
				}
			})
		}
		wg.Wait()
	}
	if done.Load() != int64(peers*rounds) {
		t.Errorf("%d of %d transfers, %d overloaded", done.Load(), peers*rounds, overloaded.Load())
	}
	testenv.Eventually(t, 5*time.Second, func() bool { return descriptors(t) <= before }, "descriptors, as many as before: ", before)
	fewLanes(t, e)
}

// fewLanes checks that no peer has more connections than a path needs.
func fewLanes(t *testing.T, e *tideway.Engine) {
	t.Helper()
	for _, q := range e.Inspect().Peers {
		for _, path := range q.Paths {
			if len(path.Rails) == 1 && path.Rails[0].Lanes > 3 {
				t.Errorf("%d connections to %s", path.Rails[0].Lanes, q.Segment)
			}
		}
	}
}

// overloads opens segments until one is refused, and checks how.
func overloads(t *testing.T, open func(i int) error) {
	t.Helper()
	for i := range 64 {
		err := open(i)
		if err == nil {
			continue
		}
		var typed *tideway.Error
		if !errors.Is(err, tideway.ErrOverloaded) || errors.Is(err, tideway.ErrUnreachable) || !errors.As(err, &typed) || !typed.Retryable {
			t.Errorf("peer %d: %v, want a retryable ErrOverloaded", i, err)
		}
		if i == 0 {
			t.Error("not even one fits")
		}
		return
	}
	t.Error("64 fit, so nothing was exhausted")
}

// TestB21NoDescriptors runs out of descriptors: new peers wait, the others go
// on, and when there is room again so do the new ones.
func TestB21NoDescriptors(t *testing.T) {
	testenv.NeedRoot(t)
	if !isInside() {
		inside(t, testenv.NewLab(t).Host("a")) // a process of its own
		return
	}
	_, addrs := crowd(t, 21)
	e := open(t, tideway.Config{})
	_, kv := find(t, e, addrs[20], "kv")
	p := make([]byte, 4096)
	if _, err := kv.WriteAt(t.Context(), p, 0); err != nil {
		t.Fatal(err)
	}
	if err := limitFiles(mostFiles() + 6); err != nil {
		t.Fatal(err)
	}
	var failed int
	overloads(t, func(i int) error {
		failed = i
		return pullAny(t, e, addrs[i%20])
	})
	for range 100 {
		if _, err := kv.WriteAt(t.Context(), p, 0); err != nil {
			t.Fatalf("a peer that was connected before: %v", err)
		}
	}
	if err := limitFiles(1024); err != nil {
		t.Fatal(err)
	}
	if err := pullAny(t, e, addrs[failed%20]); err != nil {
		t.Errorf("with descriptors again: %v", err)
	}
}

// pullAny reads a little from a peer.
func pullAny(t *testing.T, e *tideway.Engine, addr string) error {
	s, err := e.OpenSegment(t.Context(), addr)
	if err != nil {
		return err
	}
	b, err := s.Buffer(t.Context(), "kv")
	if err != nil {
		return err
	}
	_, err = b.ReadAt(t.Context(), make([]byte, 16), 0)
	return err
}

// TestB21NoPorts runs out of local ports towards one peer.
func TestB21NoPorts(t *testing.T) {
	testenv.NeedRoot(t)
	if !isInside() {
		inside(t, testenv.NewLab(t).Host("a"))
		return
	}
	_, addrs := crowd(t, 2)
	first := open(t, tideway.Config{Listen: "127.0.0.1:39000"})
	_, kv := find(t, first, addrs[0], "kv")
	p := make([]byte, 4096)
	if _, err := kv.WriteAt(t.Context(), p, 0); err != nil {
		t.Fatal(err)
	}
	limitPorts(t, 39100, 39107)
	var last *tideway.Engine
	overloads(t, func(i int) error {
		last = open(t, tideway.Config{Listen: fmt.Sprintf("127.0.0.1:%d", 39001+i)})
		return pullAny(t, last, addrs[0])
	})
	if _, err := kv.WriteAt(t.Context(), p, 0); err != nil {
		t.Errorf("an engine that was connected before: %v", err)
	}
	if err := pullAny(t, last, addrs[1]); err != nil {
		t.Errorf("another peer, where ports are free: %v", err)
	}
	limitPorts(t, 39100, 39199)
	if err := pullAny(t, last, addrs[0]); err != nil {
		t.Errorf("with ports again: %v", err)
	}
}

// TestB21FullTarget is a target that can accept nothing more: who comes waits,
// who is there goes on.
func TestB21FullTarget(t *testing.T) {
	tg := startTarget(t, spec{Buffers: []targetBuffer{{Name: "kv", Size: 1 << 20, Access: segment.ReadWrite}}})
	e := open(t, tideway.Config{})
	_, kv := find(t, e, tg.Addr, "kv")
	p := make([]byte, 4096)
	if _, err := kv.WriteAt(t.Context(), p, 0); err != nil {
		t.Fatal(err)
	}
	tg.must("limit 0")
	late := open(t, tideway.Config{ConnectTimeout: 20 * time.Second})
	result := make(chan error, 1)
	go func() { result <- pullAny(t, late, tg.Addr) }()
	for range 100 {
		if _, err := kv.WriteAt(t.Context(), p, 0); err != nil {
			t.Fatalf("a peer that was connected before: %v", err)
		}
	}
	select {
	case err := <-result:
		t.Fatalf("a new peer of a full target: %v, want it to wait", err)
	case <-time.After(200 * time.Millisecond): // real time: nothing must happen
	}
	tg.must("limit 1000")
	if err := <-result; err != nil {
		t.Errorf("a new peer, after there was room again: %v", err)
	}
}
