package transporttest

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tideway-io/tideway/internal/testenv"
	"github.com/tideway-io/tideway/transport"
)

// TestHonest: the suite passes a transport that keeps the promises.
func TestHonest(t *testing.T) {
	Run(t, Config{Driver: func() transport.Driver { return &toy{} }})
}

// TestFlaws: a checker is checked. Each flaw must be caught by the sub-test of
// the promise that it breaks, with words that say what is wrong. Many flaws are
// races too, some only at times, and then the race detector fails the test before
// the suite has spoken: the toys are played without it.
func TestFlaws(t *testing.T) {
	if testenv.Race {
		t.Skip("flawed toys: run without the race detector")
	}
	for _, c := range []struct {
		flaw    string
		promise int
		words   string
	}{
		{flaw: "early", promise: 1, words: "is not at the target"},
		{flaw: "early read", promise: 1, words: "is not in the local range"},
		{flaw: "deaf", promise: 2, words: "did not complete within"},
		{flaw: "rash", promise: 2, words: "was not cancelled, but ended with"},
		{flaw: "undead", promise: 3, words: "changed after the completion"},
		{flaw: "hoarding", promise: 3, words: "are still held"},
		{flaw: "boundless", promise: 4, words: "the queue has no bound"},
		{flaw: "choking", promise: 4, words: "overloaded"},
		{flaw: "twice", promise: 5, words: "completed twice"},
		{flaw: "losing", promise: 5, words: "never completed"},
		{flaw: "locking", promise: 5, words: "did not complete within"},
		{flaw: "eager", promise: 6, words: "was refused by Post, but completed"},
		{flaw: "undead", promise: 7, words: "but wrote byte"},
		{flaw: "certain", promise: 7, words: "but wrote byte"},
		{flaw: "unfenced", promise: 7, words: "is in doubt although the transport fences"},
		{flaw: "anybody", promise: 8, words: "another incarnation"},
		{flaw: "caching", promise: 8, words: "that was closed"},
		{flaw: "trusting", promise: 9, words: "read-only"},
		{flaw: "clamping", promise: 9, words: "one byte too long"},
		{flaw: "unchecked", promise: 10, words: "succeeded with a wrong byte"},
		{flaw: "mixing", promise: 11, words: "is not its own"},
		{flaw: "op zero", promise: 12, words: "the zero op"},
		{flaw: "fragile", promise: 13, words: "lane_lost"},
		{flaw: "serial", promise: 13, words: "did not complete within"},
		{flaw: "gullible", promise: 13, words: "the heap holds"},
		{flaw: "mute", promise: 14, words: "is not an *errs.Error"},
		{flaw: "vague", promise: 14, words: "internal"},
	} {
		t.Run(fmt.Sprintf("%02d_%s", c.promise, strings.ReplaceAll(c.flaw, " ", "_")), func(t *testing.T) {
			cfg := Config{Driver: func() transport.Driver { return &toy{flaw: c.flaw} }, Patience: time.Second, Prompt: time.Second}
			cfg.defaults()
			said := watch(t, func(tb testing.TB) { promises[c.promise-1].check(tb, &cfg) })
			if !strings.Contains(said, c.words) {
				t.Errorf("the flaw was not caught: want words like %q, the check said:\n%.2000s", c.words, said)
			}
		})
	}
}

// watch runs check with a testing.TB of its own and returns what it complained
// about.
func watch(t *testing.T, check func(testing.TB)) string {
	r := &recorder{TB: t}
	r.run(func() { check(r) })
	for len(r.cleanups) > 0 {
		last := len(r.cleanups) - 1
		f := r.cleanups[last]
		r.cleanups = r.cleanups[:last]
		r.run(f)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.said.String()
}

// recorder is a testing.TB that keeps failures to itself.
type recorder struct {
	testing.TB
	cleanups []func()
	mu       sync.Mutex
	said     strings.Builder
}

// run calls f in a goroutine that Fatalf may end.
func (r *recorder) run(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	<-done
}

func (r *recorder) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.said.Len() > 0
}

func (r *recorder) Cleanup(f func())         { r.cleanups = append(r.cleanups, f) }
func (r *recorder) Logf(string, ...any)      {}
func (r *recorder) Skipf(f string, a ...any) { r.Fatalf("skipped: "+f, a...) }

func (r *recorder) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprintf(&r.said, format+"\n", args...)
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}
