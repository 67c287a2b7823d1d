package testenv

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	outputMax  = 8 << 20  // bytes kept of a process's output, the newest
	outputTail = 16 << 10 // bytes printed of it when a test fails
)

// Process is a running program. It dies with the test, and with the test binary.
type Process struct {
	Pid int

	t      testing.TB
	name   string
	out    output // stdout and stderr
	stdout output
	done   chan struct{}
	state  *os.ProcessState // valid once done is closed
}

// output keeps what a process prints.
type output struct {
	mu  sync.Mutex
	buf []byte
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.buf = append(o.buf, p...)
	if n := len(o.buf); n > outputMax {
		o.buf = append([]byte(nil), o.buf[n-outputMax/2:]...)
	}
	return len(p), nil
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return string(o.buf)
}

// tee writes to both of its outputs.
type tee struct{ a, b *output }

func (w tee) Write(p []byte) (int, error) {
	w.a.Write(p)
	return w.b.Write(p)
}

// Start starts a program with its arguments.
func Start(t testing.TB, args ...string) *Process {
	t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	return StartCmd(t, cmd)
}

// StartCmd starts cmd, whose output and system attributes it sets.
func StartCmd(t testing.TB, cmd *exec.Cmd) *Process {
	t.Helper()
	p := &Process{t: t, name: strings.Join(cmd.Args, " "), done: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = tee{&p.out, &p.stdout}, &p.out
	cmd.WaitDelay = 5 * time.Second // for grandchildren that keep the pipes
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // Pdeathsig is sent when the starting thread ends
		err := cmd.Start()
		started <- err
		if err == nil {
			cmd.Wait()
			p.state = cmd.ProcessState
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		t.Fatalf("start %s: %v", p.name, err)
	}
	p.Pid = cmd.Process.Pid
	t.Cleanup(func() {
		syscall.Kill(-p.Pid, syscall.SIGKILL)
		<-p.done
		if t.Failed() {
			out := p.out.String()
			t.Logf("%s: %v\n%s", p.name, p.state, out[max(0, len(out)-outputTail):])
		}
	})
	return p
}

// Stdout returns what the process wrote to its standard output so far.
func (p *Process) Stdout() string { return p.stdout.String() }

// Output returns what it wrote to standard output and standard error so far.
func (p *Process) Output() string { return p.out.String() }

// Expect waits until the process has printed what the regular expression
// matches, and returns the match and its groups.
func (p *Process) Expect(d time.Duration, expr string) []string {
	p.t.Helper()
	re := regexp.MustCompile(expr)
	var match []string
	Eventually(p.t, d, func() bool {
		ended := p.Ended() // looked at first: what it printed before it ended counts
		match = re.FindStringSubmatch(p.Output())
		if match == nil && ended {
			p.t.Fatalf("%s ended with %v before it printed %q", p.name, p.state, expr)
		}
		return match != nil
	}, p.name, " prints ", expr)
	return match
}

// Ended reports whether the process has ended.
func (p *Process) Ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// Wait waits for the process to end and returns its status: the exit code, or
// 128 and the signal's number, as a shell has it.
func (p *Process) Wait(d time.Duration) int {
	p.t.Helper()
	Eventually(p.t, d, p.Ended, p.name, " ends")
	if ws := p.state.Sys().(syscall.WaitStatus); ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return p.state.ExitCode()
}

// Signal sends a signal to the process. One that has ended is let be.
func (p *Process) Signal(sig syscall.Signal) {
	p.t.Helper()
	if p.Ended() {
		return
	}
	if err := syscall.Kill(p.Pid, sig); err != nil {
		p.t.Fatalf("%v to %s: %v", sig, p.name, err)
	}
}

// Kill ends the process at once, as kill -9 does, and waits for that.
func (p *Process) Kill() {
	p.t.Helper()
	p.Signal(syscall.SIGKILL)
	p.Wait(10 * time.Second)
}

// Stop freezes the process: its sockets live, it does nothing.
func (p *Process) Stop() {
	p.t.Helper()
	p.Signal(syscall.SIGSTOP)
	Eventually(p.t, 10*time.Second, func() bool { return p.Ended() || p.frozen() }, p.name, " stops")
}

// Cont lets a stopped process go on.
func (p *Process) Cont() {
	p.t.Helper()
	p.Signal(syscall.SIGCONT)
}

// frozen reports whether every thread of the process is stopped.
func (p *Process) frozen() bool {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.Pid))
	for _, name := range threads {
		stat, err := os.ReadFile(name)
		if err != nil {
			continue // it ended
		}
		if after := stat[bytes.LastIndexByte(stat, ')')+1:]; !bytes.HasPrefix(after, []byte(" T")) {
			return false
		}
	}
	return true
}
