package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tideway-io/tideway/internal/testenv"
)

// A server that is told to end during a get ends in time with 0; the get has
// nothing wrong and can be gone on with.
func TestServeEndsDuringGet(t *testing.T) {
	testenv.NeedFull(t)
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		src := patternFile(t, t.TempDir(), "src", bigFile, 1)
		s := newServer(t, "--file", "data="+src, "--grace", "2s")
		s.slow(slowly)
		to := filepath.Join(t.TempDir(), "out")
		g := startGet(t, s, "data", to, halfFile)
		s.Signal(sig)
		within(t, s.Process, 4*time.Second, 0)
		if code := g.Wait(patience); code != exitUnreachable && code != 0 {
			t.Fatalf("exit code %d: %s", code, g.Output())
		}
		s.slow(0)
		s.start()
		runs(t, "get", s.place("data"), to)
		same(t, src, to)
	}
}

// While transfers cannot end, serve waits for its grace, and a second signal
// ends it at once.
func TestServeSecondSignal(t *testing.T) {
	testenv.NeedFull(t)
	src := patternFile(t, t.TempDir(), "src", bigFile, 1)
	s := newServer(t, "--file", "data="+src, "--grace", "1m")
	s.slow(slowly)
	g := startGet(t, s, "data", filepath.Join(t.TempDir(), "out"), halfFile)
	s.proxy.BlackHole(true)
	s.Signal(syscall.SIGTERM)
	testenv.Eventually(t, patience, func() bool { return refused(s.addr) }, "nobody new is served")
	if s.Ended() {
		t.Fatalf("it did not wait: %s", s.Output())
	}
	s.Signal(syscall.SIGTERM)
	within(t, s.Process, 2*time.Second, 143)
	g.Kill()
}

// refused reports whether a segment at addr cannot be opened any more.
func refused(addr string) bool {
	p := exec.Command("tideway", "ls", addr)
	return p.Run() != nil
}

// A file that is cut short under its readers is an error and not a crash, and
// what it then is, is offered.
func TestServedFileIsCut(t *testing.T) {
	testenv.NeedFull(t)
	src := patternFile(t, t.TempDir(), "src", bigFile, 1)
	s := newServer(t, "--file", "data="+src)
	s.slow(slowly)
	to := filepath.Join(t.TempDir(), "out")
	g := startGet(t, s, "data", to, 4<<20)
	if err := os.Truncate(src, 1<<20); err != nil {
		t.Fatal(err)
	}
	s.slow(0)
	if code := g.Wait(patience); code == 0 {
		same(t, src, to) // it began again and got what there is now
	}
	testenv.Eventually(t, patience, func() bool {
		ls := runs(t, "ls", s.proxy.Addr)
		return strings.Contains(ls.Output(), "1 MiB")
	}, "what there is now is offered")
	runs(t, "get", s.place("data"), to)
	same(t, src, to)
}
