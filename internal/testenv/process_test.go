package testenv

import (
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

func itoa(n int) string { return strconv.Itoa(n) }

const patience = 20 * time.Second

func TestProcess(t *testing.T) {
	Leak(t)
	p := Start(t, "sh", "-c", "echo ready on 127.0.0.1:$$; echo oops >&2; read line; exit 7")
	if m := p.Expect(patience, `ready on ([0-9.]+):(\d+)`); m[1] != "127.0.0.1" || m[2] != itoa(p.Pid) {
		t.Errorf("match %q of process %d", m, p.Pid)
	}
	if code := p.Wait(patience); code != 7 { // standard input is empty, so it does not wait
		t.Errorf("status %d", code)
	}
	if !strings.Contains(p.Output(), "oops") || strings.Contains(p.Stdout(), "oops") {
		t.Errorf("output %q, stdout %q", p.Output(), p.Stdout())
	}
}

func TestProcessSignals(t *testing.T) {
	Leak(t)
	p := Start(t, "sh", "-c", "trap 'echo got it; exit 3' TERM; echo up; while :; do sleep 0.01; done")
	p.Expect(patience, "up")
	p.Stop()
	if !p.frozen() {
		t.Error("a stopped process is not stopped")
	}
	p.Signal(syscall.SIGTERM)
	p.Cont()
	if code := p.Wait(patience); code != 3 || !strings.Contains(p.Stdout(), "got it") {
		t.Errorf("status %d, %q", code, p.Stdout())
	}
	p.Signal(syscall.SIGTERM) // to one that has ended: nothing
	q := Start(t, "sleep", "60")
	q.Kill()
	if code := q.Wait(0); code != 128+9 {
		t.Errorf("status %d after kill -9, want 137", code)
	}
}

// What a test started is gone when it ends, also when frozen, children included.
func TestProcessIsCleaned(t *testing.T) {
	Leak(t)
	var parent, child int
	tr := try(t, "x", func(t testing.TB) {
		p := Start(t, "sh", "-c", "sleep 60 & echo child $!; wait")
		parent = p.Pid
		child, _ = strconv.Atoi(p.Expect(patience, `child (\d+)`)[1])
		p.Stop()
		t.Fatalf("it fails")
	})
	if !strings.Contains(tr.said.String(), "child "+itoa(child)) {
		t.Errorf("a failed test does not show the output: %s", &tr.said)
	}
	for _, pid := range []int{parent, child} {
		Eventually(t, patience, func() bool { // a killed process must still be scheduled to die
			stat, err := os.ReadFile("/proc/" + itoa(pid) + "/stat")
			return err != nil || strings.Contains(string(stat), ") Z ") // dead, and its parent has not looked
		}, "process ", pid, " is gone")
	}
}

func TestProcessExpectEnds(t *testing.T) {
	for script, want := range map[string]string{
		"echo nothing; exit 4": "ended with exit status 4 before it printed",
		"sleep 60":             "not within 50ms",
	} {
		tr := try(t, "x", func(t testing.TB) {
			Start(t, "sh", "-c", script).Expect(50*time.Millisecond, "something else")
		})
		if !tr.failed || !strings.Contains(tr.said.String(), want) {
			if !(script != "sleep 60" && strings.Contains(tr.said.String(), "not within")) { // a slow machine
				t.Errorf("%s: %q, want %q", script, &tr.said, want)
			}
		}
	}
	tr := try(t, "x", func(t testing.TB) { Start(t, "no-such-program") })
	if !tr.failed {
		t.Error("a program that is not there was started")
	}
	tr = try(t, "x", func(t testing.TB) { Start(t, "sleep", "60").Wait(time.Millisecond) })
	if !tr.failed || !strings.Contains(tr.said.String(), "not within 1ms: sleep 60 ends") {
		t.Errorf("a process that does not end: %q", &tr.said)
	}
}

func TestOutputIsBounded(t *testing.T) {
	var o output
	for range 3 * outputMax / (64 << 10) {
		o.Write(make([]byte, 64<<10))
	}
	o.Write([]byte("the newest"))
	if s := o.String(); len(s) > outputMax || !strings.HasSuffix(s, "the newest") {
		t.Errorf("%d bytes kept, limit %d", len(s), outputMax)
	}
}
