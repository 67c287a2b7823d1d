package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tideway-io/tideway/internal/testenv"
)

// A put that loses its server leaves the old file, and the next server removes
// what was begun.
func TestPutServerDied(t *testing.T) {
	testenv.NeedFull(t)
	dir := t.TempDir()
	old := patternFile(t, dir, "data", 1<<20, 1)
	want := sum(t, old)
	src := patternFile(t, t.TempDir(), "src", bigFile, 2)
	s := newServer(t, "--file", "data="+old, "--access", "rw")
	s.slow(slowly)
	p := testenv.Start(t, "tideway", "put", src, s.place("data"))
	testenv.Eventually(t, patience, func() bool { return s.proxy.Bytes(testenv.Up) > halfFile }, "half of it")
	s.Kill()
	within(t, p, patience, exitUnreachable)
	if sum(t, old) != want {
		t.Error("the old file changed")
	}
	if list, _ := filepath.Glob(tempPrefix(old) + "*"); len(list) != 1 {
		t.Errorf("begun: %v", list)
	}
	s.start()
	holds(t, dir, "data")
	s.slow(0)
	runs(t, "put", src, s.place("data"))
	same(t, src, old)
}

// A put whose client is killed is given up, and one that is interrupted is
// withdrawn at once.
func TestPutClientDied(t *testing.T) {
	testenv.NeedFull(t)
	dir := t.TempDir()
	old := patternFile(t, dir, "data", 1<<20, 1)
	want := sum(t, old)
	src := patternFile(t, t.TempDir(), "src", bigFile, 2)
	s := newServer(t, "--file", "data="+old, "--access", "rw", "--put-timeout", "1s")
	s.slow(slowly)
	for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGINT} {
		before := s.proxy.Bytes(testenv.Up)
		p := testenv.Start(t, "tideway", "put", src, s.place("data"))
		testenv.Eventually(t, patience, func() bool { return s.proxy.Bytes(testenv.Up) > before+halfFile }, "half of it")
		if list, _ := filepath.Glob(tempPrefix(old) + "*"); len(list) != 1 {
			t.Errorf("begun: %v", list)
		}
		p.Signal(sig)
		within(t, p, patience, 128+int(sig))
		testenv.Eventually(t, patience, func() bool {
			list, _ := filepath.Glob(tempPrefix(old) + "*")
			return len(list) == 0
		}, "the temporary file is gone")
		if sum(t, old) != want {
			t.Error("the old file changed")
		}
	}
}

// A server that ends takes the puts under way with it.
func TestServeEndsDuringPut(t *testing.T) {
	testenv.NeedFull(t)
	dir := t.TempDir()
	old := patternFile(t, dir, "data", 1<<20, 1)
	src := patternFile(t, t.TempDir(), "src", bigFile, 2)
	s := newServer(t, "--file", "data="+old, "--access", "rw", "--grace", "1s")
	s.slow(slowly)
	p := testenv.Start(t, "tideway", "put", src, s.place("data"))
	testenv.Eventually(t, patience, func() bool { return s.proxy.Bytes(testenv.Up) > halfFile }, "half of it")
	s.Signal(syscall.SIGTERM)
	within(t, s.Process, 5*time.Second, 0)
	if code := p.Wait(patience); code == 0 {
		t.Errorf("the put says it succeeded: %s", p.Output())
	}
	holds(t, dir, "data")
}

// A file that changes while it is read is not put in place of another.
func TestPutSourceChanged(t *testing.T) {
	testenv.NeedFull(t)
	dir, srcDir := t.TempDir(), t.TempDir()
	old := patternFile(t, dir, "data", 1<<20, 1)
	want := sum(t, old)
	src := patternFile(t, srcDir, "src", bigFile, 2)
	s := newServer(t, "--file", "data="+old, "--access", "rw")
	s.slow(slowly)
	p := testenv.Start(t, "tideway", "put", src, s.place("data"))
	testenv.Eventually(t, patience, func() bool { return s.proxy.Bytes(testenv.Up) > halfFile }, "half of it")
	if err := os.Chtimes(src, time.Time{}, time.Now()); err != nil {
		t.Fatal(err)
	}
	s.slow(0)
	within(t, p, patience, exitError)
	if !strings.Contains(p.Output(), "changed while it was read") || sum(t, old) != want {
		t.Errorf("%s", p.Output())
	}
}
