package testenv

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// leakPatience is how long what a test left behind may take to go away.
const leakPatience = 5 * time.Second

// Leak fails the test when, at its end, there are goroutines, descriptors or
// mappings that were not there at the call. Call it first, so that it looks
// last. It is no use to a test that runs in parallel with others.
//
// Of the mappings it sees those that are shared or have a file (memfd, device)
// behind them; private anonymous ones cannot be told from the Go heap.
func Leak(t testing.TB) {
	t.Helper()
	leak(t, leakPatience)
}

func leak(t testing.TB, patience time.Duration) {
	openPoller(t)
	goroutines, files, maps := goleak.IgnoreCurrent(), descriptors(), mappings()
	t.Cleanup(func() {
		if t.Failed() || t.Skipped() {
			return // a test that stopped half-way left things behind, and has said why
		}
		deadline := time.Now().Add(patience)
		for {
			left := extra("descriptor", files, descriptors()) + extra("mapping", maps, mappings())
			if err := goleak.Find(goroutines); err != nil { // it waits a little by itself
				left += err.Error()
			}
			if left == "" {
				return
			}
			if time.Now().After(deadline) {
				t.Errorf("left behind:\n%s", left)
				return
			}
			time.Sleep(time.Millisecond)
		}
	})
}

// openPoller makes the runtime open the descriptors of its network poller, which
// it keeps, before they are counted.
func openPoller(t testing.TB) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	w.Close()
}

// extra lists what is in after more often than in before.
func extra(kind string, before, after []string) string {
	count := map[string]int{}
	for _, s := range before {
		count[s]++
	}
	var b strings.Builder
	for _, s := range after {
		if count[s]--; count[s] < 0 {
			fmt.Fprintf(&b, "  %s %s\n", kind, s)
		}
	}
	return b.String()
}

// descriptors lists what this process has open. A socket's target has its inode,
// so that another socket under the same number is another entry.
func descriptors() []string {
	const dir = "/proc/self/fd"
	entries, _ := os.ReadDir(dir)
	var out []string
	for _, e := range entries {
		target, err := os.Readlink(filepath.Join(dir, e.Name()))
		if err != nil || strings.HasPrefix(target, "/proc/") {
			continue // the listing's own, closed by now
		}
		out = append(out, e.Name()+" "+target)
	}
	return out
}

// mappings lists the mappings that are shared or backed by a file, without
// programs and libraries.
func mappings() []string {
	text, _ := os.ReadFile("/proc/self/maps")
	self, _ := os.Executable()
	var out []string
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line) // range, mode, offset, device, inode, name
		if len(f) < 5 {
			continue
		}
		name := strings.Join(f[5:], " ")
		shared := strings.HasSuffix(f[1], "s")
		file := f[4] != "0" && !strings.Contains(name, ".so") && !strings.Contains(f[1], "x") && strings.TrimSuffix(name, " (deleted)") != self
		if shared || file {
			out = append(out, f[0]+" "+f[1]+" "+name)
		}
	}
	return out
}
