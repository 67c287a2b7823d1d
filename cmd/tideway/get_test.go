package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tideway-io/tideway/internal/testenv"
	"github.com/zeebo/xxh3"
)

// A get whose server is killed ends within two seconds and keeps what it has;
// the next one moves only the rest.
func TestGetGoesOnAfterServerDied(t *testing.T) {
	testenv.NeedFull(t)
	dir := t.TempDir()
	src := patternFile(t, t.TempDir(), "src", bigFile+12345, 1)
	s := newServer(t, "--file", "data="+src)
	s.slow(slowly)
	to := filepath.Join(dir, "out")
	g := startGet(t, s, "data", to, halfFile)
	s.Kill()
	within(t, g, 2*time.Second, exitUnreachable)
	if !strings.Contains(g.Output(), "run the same command again") {
		t.Errorf("no word about going on: %s", g.Output())
	}
	holds(t, dir, "out"+partSuffix, "out"+partSuffix+journalSuffix)
	had := fileSize(to + partSuffix)
	s.slow(0)
	s.start()
	before := s.proxy.Bytes(testenv.Down)
	again := runs(t, "get", s.place("data"), to, "-o", "json")
	came := s.proxy.Bytes(testenv.Down) - before
	if limit := bigFile + 12345 - had + 64<<20; came > limit+limit/50 {
		t.Errorf("%d bytes came the second time, %d were there of %d", came, had, bigFile+12345)
	}
	var m moved
	if err := json.Unmarshal([]byte(again.Stdout()), &m); err != nil || m.Resumed == 0 || m.Resumed+m.Bytes != bigFile+12345 || m.Resumed > had {
		t.Errorf("report %+v, %v", m, err)
	}
	same(t, src, to)
	holds(t, dir, "out")
}

// A source whose modification time was set back after a change is another one.
func TestGetStartsAgainWhenTimeIsSetBack(t *testing.T) {
	testenv.NeedFull(t)
	dir, srcDir := t.TempDir(), t.TempDir()
	src := patternFile(t, srcDir, "src", bigFile, 1)
	info, err := os.Stat(src)
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(t, "--file", "data="+src)
	s.slow(slowly)
	to := filepath.Join(dir, "out")
	g := startGet(t, s, "data", to, halfFile)
	s.Kill()
	within(t, g, 2*time.Second, exitUnreachable)
	f, err := os.OpenFile(src, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("changed"), 0); err != nil {
		t.Fatal(err)
	}
	f.Close()
	if err := os.Chtimes(src, info.ModTime(), info.ModTime()); err != nil {
		t.Fatal(err)
	}
	s.slow(0)
	s.start()
	if again := runs(t, "get", s.place("data"), to); !strings.Contains(again.Output(), "changed since") {
		t.Errorf("no word about why: %s", again.Output())
	}
	same(t, src, to)
}

// A source that changed between two attempts is copied from the start.
func TestGetStartsAgainWhenSourceChanged(t *testing.T) {
	testenv.NeedFull(t)
	dir, srcDir := t.TempDir(), t.TempDir()
	src := patternFile(t, srcDir, "src", bigFile, 1)
	s := newServer(t, "--file", "data="+src)
	s.slow(slowly)
	to := filepath.Join(dir, "out")
	g := startGet(t, s, "data", to, halfFile)
	s.Kill()
	within(t, g, 2*time.Second, exitUnreachable)
	patternFile(t, srcDir, "src", bigFile, 2)
	s.slow(0)
	s.start()
	again := runs(t, "get", s.place("data"), to)
	if !strings.Contains(again.Output(), "source changed") {
		t.Errorf("no word about why: %s", again.Output())
	}
	same(t, src, to)
	holds(t, dir, "out")
}

// An interrupted get says 130 and can be gone on with.
func TestGetInterrupted(t *testing.T) {
	testenv.NeedFull(t)
	dir := t.TempDir()
	src := patternFile(t, t.TempDir(), "src", bigFile, 1)
	s := newServer(t, "--file", "data="+src)
	s.slow(slowly)
	to := filepath.Join(dir, "out")
	g := startGet(t, s, "data", to, halfFile)
	second := testenv.Start(t, "tideway", "get", s.place("data"), to)
	within(t, second, patience, exitBusy)
	g.Signal(syscall.SIGINT)
	within(t, g, 2*time.Second, 130)
	s.slow(0)
	if again := runs(t, "get", s.place("data"), to); !strings.Contains(again.Output(), "going on at") {
		t.Errorf("it did not go on: %s", again.Output())
	}
	same(t, src, to)
	holds(t, dir, "out")
}

// The getter itself is killed, again and again.
func TestGetKilled(t *testing.T) {
	testenv.NeedFull(t)
	dir := t.TempDir()
	src := patternFile(t, t.TempDir(), "src", bigFile, 1)
	s := newServer(t, "--file", "data="+src)
	s.slow(slowly)
	to := filepath.Join(dir, "out")
	for _, n := range []uint64{5 << 20, 12 << 20, 24 << 20} {
		startGet(t, s, "data", to, n).Kill()
	}
	s.slow(0)
	if again := runs(t, "get", s.place("data"), to); !strings.Contains(again.Output(), "going on at") {
		t.Errorf("it did not go on: %s", again.Output())
	}
	same(t, src, to)
	holds(t, dir, "out")
}

// A stopped server is not a dead one, but no better after --stall-timeout.
func TestGetFromStoppedServer(t *testing.T) {
	testenv.NeedFull(t)
	src := patternFile(t, t.TempDir(), "src", bigFile, 1)
	s := newServer(t, "--file", "data="+src)
	s.slow(slowly)
	g := startGet(t, s, "data", filepath.Join(t.TempDir(), "out"), 10<<20, "--stall-timeout", "1s")
	s.Stop()
	within(t, g, 5*time.Second, exitUnreachable)
	s.Cont()
}

// A file that is replaced during a get is got whole, old or new.
func TestGetWhileReplaced(t *testing.T) {
	testenv.NeedFull(t)
	src := patternFile(t, t.TempDir(), "src", bigFile, 1)
	next := patternFile(t, t.TempDir(), "next", 1<<20, 2)
	s := newServer(t, "--file", "data="+src, "--access", "rw")
	s.slow(slowly)
	to := filepath.Join(t.TempDir(), "out")
	g := startGet(t, s, "data", to, halfFile)
	s.slow(0)
	runs(t, "put", next, s.place("data"))
	within(t, g, patience, 0)
	if sum(t, to) != sum(t, next) || !strings.Contains(g.Output(), "starting again (attempt 2 of 3)") {
		t.Errorf("%d bytes, of no version: %s", fileSize(to), g.Output())
	}
}

// farFile makes a sparse file of more than 4 GiB with a few marks in it.
func farFile(t *testing.T) string {
	t.Helper()
	src := filepath.Join(t.TempDir(), "sparse")
	f, err := os.Create(src)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for i, at := range []int64{0, 1<<31 - 3, 1<<32 - 3, 1<<32 + 1<<20, 1<<32 + 1<<21} {
		p := make([]byte, 7)
		newPattern(1, uint64(i)).fill(p, 0)
		if _, err := f.WriteAt(p, at); err != nil {
			t.Fatal(err)
		}
	}
	return src
}

// Offsets beyond 32 bits reach their bytes.
func TestGetAcrossFourGiB(t *testing.T) {
	s := newServer(t, "--file", "data="+farFile(t))
	part := filepath.Join(t.TempDir(), "part")
	for mark, at := range []uint64{1: 1<<31 - 3, 2: 1<<32 - 3, 3: 1<<32 + 1<<20, 4: 1<<32 + 1<<21} {
		if mark == 0 {
			continue
		}
		runs(t, "get", s.place("data")+fmt.Sprintf("@%d:8", at-1), part)
		got, _ := os.ReadFile(part)
		want := make([]byte, 8)
		newPattern(1, uint64(mark)).fill(want[1:], 0)
		if string(got) != string(want) {
			t.Errorf("at %d: %x, want %x", at-1, got, want)
		}
	}
}

// Sizes beyond 32 bits arrive whole.
func TestGetBeyondFourGiB(t *testing.T) {
	testenv.NeedLarge(t)
	src := farFile(t)
	s := testenv.Start(t, "tideway", "serve", "--file", "data="+src)
	addr := s.Expect(patience, `serving at (\S+)`)[1]
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	p, err := os.StartProcess(mustLook(t), []string{"tideway", "get", "-q", addr + "/data", "-"}, &os.ProcAttr{Files: []*os.File{nil, in, os.Stderr}})
	if err != nil {
		t.Fatal(err)
	}
	in.Close()
	h, want := xxh3.New(), sum(t, src)
	n, err := io.Copy(h, out)
	state, werr := p.Wait()
	if err != nil || werr != nil || !state.Success() || n != 1<<32+1<<21+7 || fmt.Sprintf("%x", h.Sum128()) != want {
		t.Errorf("%d bytes, %v, %v, %v", n, err, werr, state)
	}
}

func mustLook(t *testing.T) string {
	t.Helper()
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		if path := filepath.Join(dir, "tideway"); fileSize(path) > 0 {
			return path
		}
	}
	t.Fatal("tideway is not in PATH")
	return ""
}
