package testenv

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// trial is a test inside a test: what it says is kept, not reported.
type trial struct {
	testing.TB
	name            string
	said            strings.Builder
	failed, skipped bool
	cleanups        []func()
}

// try runs f as a test of its own, cleanups included.
func try(t *testing.T, name string, f func(t testing.TB)) *trial {
	tr := &trial{TB: t, name: name}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(tr)
	}()
	<-done
	for i := len(tr.cleanups) - 1; i >= 0; i-- {
		tr.cleanups[i]()
	}
	return tr
}

func (t *trial) Name() string            { return t.name }
func (t *trial) Helper()                 {}
func (t *trial) Failed() bool            { return t.failed }
func (t *trial) Skipped() bool           { return t.skipped }
func (t *trial) Cleanup(f func())        { t.cleanups = append(t.cleanups, f) }
func (t *trial) Log(args ...any)         { fmt.Fprintln(&t.said, args...) }
func (t *trial) Logf(f string, a ...any) { fmt.Fprintf(&t.said, f+"\n", a...) }

func (t *trial) Errorf(format string, args ...any) {
	t.failed = true
	t.Logf(format, args...)
}

func (t *trial) Fatal(args ...any) { t.Fatalf("%s", fmt.Sprint(args...)) }

func (t *trial) Fatalf(format string, args ...any) {
	t.Errorf(format, args...)
	runtime.Goexit()
}

func (t *trial) Skip(args ...any) { t.Skipf("%s", fmt.Sprint(args...)) }

func (t *trial) Skipf(format string, args ...any) {
	t.skipped = true
	t.Logf(format, args...)
	runtime.Goexit()
}

func TestEventually(t *testing.T) {
	calls := 0
	tr := try(t, "x", func(t testing.TB) {
		Eventually(t, time.Minute, func() bool { calls++; return calls == 3 })
	})
	if tr.failed || calls != 3 {
		t.Errorf("failed=%v after %d calls, want success after 3", tr.failed, calls)
	}
	tr = try(t, "x", func(t testing.TB) {
		Eventually(t, 5*time.Millisecond, func() bool { return false }, "lanes up, want ", 2)
	})
	if !tr.failed || !strings.Contains(tr.said.String(), "not within 5ms: lanes up, want 2") {
		t.Errorf("a condition that never holds: failed=%v, %q", tr.failed, &tr.said)
	}
}

func TestNeedSkipsAndFailsWhenListed(t *testing.T) {
	for _, c := range []struct {
		ci, name   string
		skip, fail bool
	}{
		{"", "TestListed", true, false},
		{"", "TestOther", true, false},
		{"true", "TestOther", true, false},
		{"true", "TestLeakFinds", false, true}, // it is on the list
		{"true", "TestLeakFinds/sub", false, true},
	} {
		t.Setenv("CI", c.ci)
		tr := try(t, c.name, func(t testing.TB) { Need(t, "no device", "buy one") })
		if tr.skipped != c.skip || tr.failed != c.fail || !strings.Contains(tr.said.String(), "no device: buy one") {
			t.Errorf("CI=%q %s: skipped=%v failed=%v %q", c.ci, c.name, tr.skipped, tr.failed, &tr.said)
		}
	}
}

func TestLarge(t *testing.T) {
	t.Setenv("TIDEWAY_LARGE", "1")
	if Large() == Race {
		t.Errorf("Large is %v with the race detector %v", Large(), Race)
	}
	t.Setenv("TIDEWAY_LARGE", "")
	if want := !Race && !testing.Short(); Large() != want {
		t.Errorf("Large is %v, want %v", Large(), want)
	}
	if tr := try(t, "x", func(t testing.TB) { NeedLarge(t) }); tr.skipped == Large() {
		t.Errorf("skipped=%v when Large is %v", tr.skipped, Large())
	}
}

func TestNeedToolSaysWhatToInstall(t *testing.T) {
	t.Setenv("CI", "")
	if path := NeedTool(t, "sh"); !filepath.IsAbs(path) {
		t.Errorf("sh is at %q", path)
	}
	tr := try(t, "x", func(t testing.TB) { NeedTool(t, "no-such-tool") })
	if !tr.skipped || !strings.Contains(tr.said.String(), "install package no-such-tool") {
		t.Errorf("skipped=%v %q", tr.skipped, &tr.said)
	}
}

func TestLeakFinds(t *testing.T) {
	quick := func(t *testing.T, f func(t testing.TB)) *trial {
		return try(t, "x", func(t testing.TB) { leak(t, 20*time.Millisecond); f(t) })
	}
	if tr := quick(t, func(testing.TB) {}); tr.failed {
		t.Fatalf("nothing was left behind, yet: %s", &tr.said)
	}

	stop := make(chan struct{})
	tr := quick(t, func(testing.TB) { go func() { <-stop }() })
	close(stop)
	wantLeft(t, "goroutine", tr, "TestLeakFinds")

	var l net.Listener
	tr = quick(t, func(t testing.TB) { l, _ = net.Listen("tcp", "127.0.0.1:0") })
	l.Close()
	wantLeft(t, "socket", tr, "descriptor")

	name := filepath.Join(t.TempDir(), "mapped")
	if err := os.WriteFile(name, make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var m []byte
	tr = quick(t, func(t testing.TB) {
		m, err = syscall.Mmap(int(f.Fd()), 0, 4096, syscall.PROT_READ, syscall.MAP_SHARED)
	})
	if err != nil {
		t.Fatal(err)
	}
	syscall.Munmap(m)
	wantLeft(t, "mapping", tr, name)

	tr = quick(t, func(t testing.TB) { t.Cleanup(func() {}); go func() {}() })
	if tr.failed {
		t.Errorf("a goroutine that ends by itself is no leak, yet: %s", &tr.said)
	}
}

func wantLeft(t *testing.T, what string, tr *trial, name string) {
	t.Helper()
	if !tr.failed || !strings.Contains(tr.said.String(), name) {
		t.Errorf("%s left behind: failed=%v, want %q in %q", what, tr.failed, name, &tr.said)
	}
}

func TestAllocMaxAllocs(t *testing.T) {
	var keep []byte
	tr := try(t, "x", func(t testing.TB) { MaxAllocs(t, 0, func() { keep = make([]byte, 1024) }) })
	if tr.failed == Race {
		t.Errorf("with the race detector %v: failed=%v %q (%d)", Race, tr.failed, &tr.said, len(keep))
	}
	tr = try(t, "x", func(t testing.TB) { MaxAllocs(t, 1, func() { keep = make([]byte, 1024) }) })
	if tr.failed {
		t.Errorf("one allocation is at most one, yet: %s", &tr.said)
	}
}

func TestModuleRoot(t *testing.T) {
	if _, err := os.Stat(filepath.Join(ModuleRoot(t), "go.mod")); err != nil {
		t.Error(err)
	}
}
