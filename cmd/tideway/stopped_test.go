package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tideway-io/tideway/internal/testenv"
)

// A bench whose target is stopped ends by --stall-timeout, and ends the target.
func TestBenchTargetStopped(t *testing.T) {
	testenv.NeedFull(t)
	p := testenv.Start(t, "tideway", "bench", "--transport", "tcp", "--size", "64KiB", "--duration", "1m", "--stall-timeout", "1s")
	var child int
	testenv.Eventually(t, patience, func() bool { child = childOf(p.Pid); return cpuTicks(child) > 5 }, "a target that works")
	if err := syscall.Kill(child, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	within(t, p, 8*time.Second, exitUnreachable)
	if err := syscall.Kill(child, 0); err == nil {
		t.Error("the target is still there")
	}
}

// cpuTicks returns the CPU time that a process has used, in hundredths of a second.
func cpuTicks(pid int) (n int) {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := cutLast(string(text), ')')
	if f := strings.Fields(rest); len(f) > 12 {
		user, _ := strconv.Atoi(f[11])
		system, _ := strconv.Atoi(f[12])
		n = user + system
	}
	return n
}
