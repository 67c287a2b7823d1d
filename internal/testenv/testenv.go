// Package testenv is what tests need around the code under test: conditions to
// wait for, leaks to find, patterns to verify, a hostile proxy, network
// namespaces and processes. Everything it makes is gone when the test ends.
//
// A test that cannot run here says so with Need and its kin. That skips, and
// fails where CI=true and the must-run list names the test. Nothing but tests
// imports this package.
package testenv

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/tideway-io/tideway/internal/testenv/mustrun"
)

// Eventually polls cond until it is true, and ends the test when it is not
// within d. What, if given, is printed with it: use values that explain.
func Eventually(t testing.TB, d time.Duration, cond func() bool, what ...any) {
	t.Helper()
	deadline := time.Now().Add(d)
	for pause := 50 * time.Microsecond; !cond(); pause = min(2*pause, 10*time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", d, fmt.Sprint(what...))
		}
		time.Sleep(pause)
	}
}

// Need says that the test cannot run because something is missing, and what
// would help. It skips; in CI it fails a test of the must-run list.
func Need(t testing.TB, missing, fix string) {
	t.Helper()
	entries, err := mustrun.List()
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv("CI") == "true" && mustrun.Listed(entries, thisPackage(), t.Name()) {
		t.Fatalf("%s: %s (this test is on the must-run list)", missing, fix)
	}
	t.Skipf("%s: %s", missing, fix)
}

// thisPackage is the import path of the package whose tests this binary runs.
func thisPackage() string {
	info, _ := debug.ReadBuildInfo()
	if info == nil {
		return ""
	}
	return strings.TrimSuffix(info.Path, ".test")
}

// NeedRoot is for tests that change the system: namespaces, limits, mounts.
func NeedRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		Need(t, "not root", "run the tests as root, in a container of their own")
	}
}

// packages says which Debian package has a tool, where the names differ.
var packages = map[string]string{"ip": "iproute2", "tc": "iproute2", "ss": "iproute2", "nft": "nftables", "etcd": "etcd-server"}

// NeedTool returns the path of a program that the test calls.
func NeedTool(t testing.TB, name string) string {
	t.Helper()
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	for _, dir := range []string{"/usr/sbin", "/sbin"} {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path
		}
	}
	pkg := name
	if p, ok := packages[name]; ok {
		pkg = p
	}
	Need(t, "no "+name, "install package "+pkg)
	return ""
}

// NeedFull is for tests too long for go test -short.
func NeedFull(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("short: run without -short")
	}
}

// Large reports whether this run does the large sizes: it has no race detector,
// under which they take minutes, and it is not the quick loop (-short). Of make
// check it is the suite static, which sets TIDEWAY_LARGE.
func Large() bool {
	return !Race && (!testing.Short() || os.Getenv("TIDEWAY_LARGE") == "1")
}

// NeedLarge is for tests that make no sense with less: gigabytes, hundreds of
// thousands.
func NeedLarge(t testing.TB) {
	t.Helper()
	if !Large() {
		t.Skip("large: run without the race detector and without -short")
	}
}

// NeedSpeed is for speed gates, named TestSpeed*, which `make bench-check` runs
// on a quiet machine.
func NeedSpeed(t testing.TB) {
	t.Helper()
	if os.Getenv("TIDEWAY_SPEED") != "1" {
		t.Skip("a speed gate: run make bench-check")
	}
}

// NeedSoak is for long runs, named TestSoak*, which `make soak` runs.
func NeedSoak(t testing.TB) {
	t.Helper()
	if os.Getenv("TIDEWAY_SOAK") != "1" {
		t.Skip("a long run: run make soak")
	}
}

// MaxAllocs fails when f allocates more than limit times a call on average. The
// race detector allocates too, so that under it f only runs once.
func MaxAllocs(t testing.TB, limit float64, f func()) {
	t.Helper()
	if Race {
		f()
		return
	}
	if got := testing.AllocsPerRun(100, f); got > limit {
		t.Errorf("%v allocations a call, want at most %v", got, limit)
	}
}

// ModuleRoot returns the directory that holds go.mod.
func ModuleRoot(t testing.TB) string {
	t.Helper()
	out, err := exec.Command("go", "env", "GOMOD").Output()
	mod := string(bytes.TrimSpace(out))
	if err != nil || !filepath.IsAbs(mod) {
		t.Fatalf("go env GOMOD: %q, %v", out, err)
	}
	return filepath.Dir(mod)
}
