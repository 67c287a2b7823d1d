package transporttest

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

// usage is what a process holds that a transport could leak.
type usage struct{ goroutines, descriptors int }

// footprint measures the process now.
func footprint() usage {
	u := usage{goroutines: runtime.NumGoroutine()}
	if names, err := os.ReadDir("/proc/self/fd"); err == nil { // elsewhere: not counted
		u.descriptors = len(names)
	}
	return u
}

// check fails the test if the process does not come back to u within d.
func (u usage) check(t testing.TB, d time.Duration) {
	t.Helper()
	var now usage
	back := eventually(d, func() bool {
		now = footprint()
		return now.goroutines <= u.goroutines && now.descriptors <= u.descriptors
	})
	if !back {
		t.Errorf("left behind: %d goroutines and %d descriptors, where there were %d and %d\n%s",
			now.goroutines, now.descriptors, u.goroutines, u.descriptors, stacks())
	}
}

// stacks returns what every goroutine is doing that runs code under test: a
// frame in this module, outside the suite.
func stacks() string {
	const module, suite = "github.com/tideway-io/tideway/", "github.com/tideway-io/tideway/transport/transporttest."
	buf := make([]byte, 1<<20)
	buf = buf[:runtime.Stack(buf, true)]
	var out strings.Builder
	for _, g := range strings.Split(string(buf), "\n\n") {
		if body, _, _ := strings.Cut(g, "\ncreated by"); strings.Contains(strings.ReplaceAll(body, suite, ""), module) {
			fmt.Fprintf(&out, "%s\n\n", g)
		}
	}
	return out.String()
}

// eventually polls cond until it holds or d has passed.
func eventually(d time.Duration, cond func() bool) bool {
	for deadline := time.Now().Add(d); ; pause() {
		if cond() {
			return true
		}
		if time.Now().After(deadline) {
			return false
		}
	}
}

// pause is the step between two polls.
func pause() { time.Sleep(time.Millisecond) }
