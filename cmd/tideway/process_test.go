package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tideway-io/tideway/internal/testenv"
	"github.com/zeebo/xxh3"
)

// patience bounds the waits for things that are expected to happen.
const patience = 20 * time.Second

// server is `tideway serve` behind a proxy, so that what moves is counted and
// can be slowed down, and so that its address outlives it.
type server struct {
	t     *testing.T
	proxy *testenv.Proxy
	args  []string
	addr  string // where it listens, behind the proxy
	*testenv.Process
}

// newServer starts a server with the offers given.
func newServer(t *testing.T, offers ...string) *server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &server{t: t, addr: l.Addr().String()}
	l.Close()
	s.proxy = testenv.NewProxy(t, s.addr)
	s.args = append([]string{"tideway", "serve", "--listen", s.addr, "--advertise", s.proxy.Addr}, offers...)
	s.start()
	return s
}

func (s *server) start() {
	s.t.Helper()
	s.Process = testenv.Start(s.t, s.args...)
	s.Expect(patience, "serving at ")
}

// slow limits both directions to so many MiB a second; 0 lifts the limit.
func (s *server) slow(mib float64) {
	s.proxy.Link(testenv.Down, mib*8*(1<<20), 0)
	s.proxy.Link(testenv.Up, mib*8*(1<<20), 0)
}

func (s *server) place(name string) string { return s.proxy.Addr + "/" + name }

// patternFile writes n pattern bytes to a file in dir.
func patternFile(t *testing.T, dir, name string, n int, round uint64) string {
	t.Helper()
	p := make([]byte, n)
	newPattern(9, round).fill(p, 0)
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, p, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func sum(t *testing.T, path string) string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	h := xxh3.New()
	if _, err := io.Copy(h, f); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", h.Sum128())
}

func fileSize(path string) uint64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return uint64(info.Size())
}

// same checks that two files hold the same bytes.
func same(t *testing.T, a, b string) {
	t.Helper()
	if sum(t, a) != sum(t, b) {
		t.Errorf("%s (%d bytes) and %s (%d bytes) differ", a, fileSize(a), b, fileSize(b))
	}
}

// holds checks that dir holds just the files named.
func holds(t *testing.T, dir string, names ...string) {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range list {
		got = append(got, f.Name())
	}
	if strings.Join(got, " ") != strings.Join(names, " ") {
		t.Errorf("%s holds %v, want %v", dir, got, names)
	}
}

// startGet starts a get and waits until at least n bytes are in the part.
func startGet(t *testing.T, s *server, name, to string, n uint64, flags ...string) *testenv.Process {
	t.Helper()
	g := testenv.Start(t, append([]string{"tideway", "get", s.place(name), to}, flags...)...)
	testenv.Eventually(t, patience, func() bool { return g.Ended() || fileSize(to+partSuffix) >= n }, "bytes in the part")
	if g.Ended() {
		t.Fatalf("get ended early: %s", g.Output())
	}
	return g
}

// within checks that a process ends with a code, in time.
func within(t *testing.T, p *testenv.Process, d time.Duration, code int) {
	t.Helper()
	if got := p.Wait(d); got != code {
		t.Fatalf("exit code %d, want %d: %s", got, code, p.Output())
	}
}

func runs(t *testing.T, args ...string) *testenv.Process {
	t.Helper()
	p := testenv.Start(t, append([]string{"tideway"}, args...)...)
	within(t, p, 60*time.Second, 0)
	return p
}

const (
	bigFile  = 96 << 20 // above what is in flight at a time
	halfFile = 24 << 20
	slowly   = 60 // MiB a second
)

// A restarted server's memory is other memory.
func TestGetStartsAgainWhenMemoryIsNew(t *testing.T) {
	testenv.NeedFull(t)
	dir := t.TempDir()
	s := newServer(t, "--memory", fmt.Sprintf("kv=%d", bigFile))
	s.slow(slowly)
	to := filepath.Join(dir, "out")
	g := startGet(t, s, "kv", to, halfFile)
	s.Kill()
	within(t, g, 2*time.Second, exitUnreachable)
	s.slow(0)
	s.start()
	src := patternFile(t, t.TempDir(), "src", bigFile, 3)
	runs(t, "put", src, s.place("kv"))
	again := runs(t, "get", s.place("kv"), to)
	if !strings.Contains(again.Output(), "restarted since") {
		t.Errorf("no word about why: %s", again.Output())
	}
	same(t, src, to)
}

// A put into memory whose owner restarts starts again and says so.
func TestPutMemoryRestarted(t *testing.T) {
	testenv.NeedFull(t)
	src := patternFile(t, t.TempDir(), "src", bigFile, 2)
	s := newServer(t, "--memory", fmt.Sprintf("kv=%d", bigFile))
	s.slow(slowly)
	p := testenv.Start(t, "tideway", "put", "--transport", "tcp", src, s.place("kv"))
	testenv.Eventually(t, patience, func() bool { return s.proxy.Bytes(testenv.Up) > halfFile }, "half of it")
	s.Kill()
	s.slow(0)
	s.start()
	within(t, p, patience, 0)
	if !strings.Contains(p.Output(), "starting again") {
		t.Errorf("no word about it: %s", p.Output())
	}
	to := filepath.Join(t.TempDir(), "out")
	runs(t, "get", s.place("kv"), to)
	same(t, src, to)
}

// Blocked standard input and output do not keep a command from ending.
func TestInterruptedWhileBlocked(t *testing.T) {
	dir := t.TempDir()
	s := newServer(t, "--memory", "kv=8MiB")
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	end, err := os.OpenFile(fifo, os.O_RDWR, 0) // so that neither side waits for the other to open
	if err != nil {
		t.Fatal(err)
	}
	defer end.Close()
	put := testenv.Start(t, "tideway", "put", fifo, s.place("kv"))
	get := testenv.Start(t, "tideway", "get", s.place("kv"), fifo)
	for _, p := range []*testenv.Process{put, get} {
		testenv.Eventually(t, patience, func() bool { return hasOpen(p.Pid, fifo) }, "the pipe is open")
		p.Signal(syscall.SIGTERM)
		within(t, p, 2*time.Second, 143)
	}
}

// Nor does a pipe that nobody opens at its other end.
func TestInterruptedWhileOpening(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	cause := &signalError{syscall.SIGTERM}
	for name, open := range map[string]func(context.Context) error{
		"put": func(ctx context.Context) error { _, err := openSource(ctx, fifo, nil); return err },
		"get": func(ctx context.Context) error { _, err := (&get{to: fifo}).destination(ctx, identity{}); return err },
	} {
		ctx, cancel := context.WithCancelCause(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- open(ctx) }()
		cancel(cause)
		select {
		case err := <-ended:
			if !errors.Is(err, cause) {
				t.Errorf("%s: %v, want %v", name, err, cause)
			}
		case <-time.After(patience):
			t.Errorf("%s still waits for the other end of the pipe", name)
		}
	}
	end, err := os.OpenFile(fifo, os.O_RDWR, 0) // the other end, for both
	if err != nil {
		t.Fatal(err)
	}
	defer end.Close()
}

// hasOpen reports whether a process has a file open.
func hasOpen(pid int, path string) bool {
	fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && to == path {
			return true
		}
	}
	return false
}

// The second process of bench and demo ends with the first, however that ends.
func TestChildEndsWithParent(t *testing.T) {
	for _, args := range [][]string{{"bench", "--duration", "1m"}, {"demo", "--size", "64GiB"}} {
		for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGINT} {
			p := testenv.Start(t, append([]string{"tideway"}, args...)...)
			var child int
			testenv.Eventually(t, patience, func() bool { child = childOf(p.Pid); return child != 0 }, "the second process")
			p.Signal(sig)
			within(t, p, 5*time.Second, 128+int(sig))
			testenv.Eventually(t, patience, func() bool { return syscall.Kill(child, 0) != nil || zombie(child) }, "the second process ends")
		}
	}
}

// childOf returns the process that serves for a bench or demo, 0 if there is none.
func childOf(pid int) int {
	list, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, name := range list {
		text, _ := os.ReadFile(name)
		var child int
		if n, _ := fmt.Sscan(string(text), &child); n == 1 {
			return child
		}
	}
	return 0
}

// zombie reports whether a process has ended and waits for a parent to notice.
func zombie(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := cutLast(string(text), ')')
	return err != nil || strings.HasPrefix(rest, " Z")
}

// A bench whose target dies prints what it had, counts what failed and says who
// is gone, once.
func TestBenchTargetDied(t *testing.T) {
	s := newServer(t, "--memory", "m=64MiB")
	b := testenv.Start(t, "tideway", "bench", s.proxy.Addr, "--transport", "tcp", "--duration", "1m", "-o", "jsonl")
	testenv.Eventually(t, patience, func() bool { return s.proxy.Bytes(testenv.Down) > 256<<20 }, "it is under way")
	s.Kill()
	within(t, b, 5*time.Second, exitUnreachable)
	var row benchRow
	if err := json.Unmarshal([]byte(b.Stdout()), &row); err != nil || row.Errors == 0 || row.Bytes == 0 || row.Verified {
		t.Errorf("%+v, %v", row, err)
	}
	if n := strings.Count(b.Output(), "\n"); n > 6 {
		t.Errorf("%d lines: %s", n, b.Output())
	}
}

// A bench whose own target dies or is stopped ends in bounded time, says which,
// and leaves no process behind. (Mapped memory can be read while its owner is
// stopped.)
func TestBenchOwnTargetGone(t *testing.T) {
	for _, c := range []struct {
		via  string
		sig  syscall.Signal
		word string
	}{{"tcp", syscall.SIGKILL, "has ended"}, {"tcp", syscall.SIGSTOP, "is stopped"}, {"shm", syscall.SIGKILL, "has ended"}} {
		b := testenv.Start(t, "tideway", "bench", "--transport", c.via, "--duration", "1m", "--stall-timeout", "1s", "-o", "jsonl")
		child := 0
		testenv.Eventually(t, patience, func() bool {
			child = childOf(b.Pid)
			used, _ := processCPU(b.Pid)
			return child != 0 && used > 500*time.Millisecond
		}, "bytes move")
		if err := syscall.Kill(child, c.sig); err != nil {
			t.Fatal(err)
		}
		within(t, b, patience, exitUnreachable)
		if !strings.Contains(b.Output(), c.word) {
			t.Errorf("%s, after %v: %s", c.via, c.sig, b.Output())
		}
		testenv.Eventually(t, patience, func() bool { return syscall.Kill(child, 0) != nil }, "the second process is gone")
	}
}
