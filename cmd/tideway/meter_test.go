package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tideway-io/tideway/internal/testenv"
	"golang.org/x/sys/unix"
)

// terminal returns both ends of a pseudo-terminal.
func terminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		testenv.Need(t, "no pseudo-terminals", "mount devpts")
	}
	t.Cleanup(func() { master.Close() })
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetWinsize(int(slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 120}); err != nil {
		t.Fatal(err)
	}
	return master, slave
}

// On a terminal a copy draws a bar with what is done, the rate and the time
// left, and prints the result below it.
func TestBarOnTerminal(t *testing.T) {
	s := newServer(t, "--memory", "kv=64MiB")
	s.slow(100)
	master, slave := terminal(t)
	cmd := exec.Command("tideway", "get", "--transport", "tcp", s.place("kv"), filepath.Join(t.TempDir(), "out"))
	cmd.Stdout, cmd.Stderr = slave, slave
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	slave.Close()
	drawn, _ := io.ReadAll(master) // ends with an error when the last slave end is closed
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v\n%q", err, drawn)
	}
	for _, want := range []string{`get .*\[=*>-+\] .* of 64 MiB  \d+%  .*/s  ETA \d+s`, `\[=+\] +64 MiB of 64 MiB  100%  .*/s  ETA 0s`, `got kv: 64 MiB in `} {
		if !regexp.MustCompile(want).Match(drawn) {
			t.Errorf("no match for %s in\n%q", want, drawn)
		}
	}
}

// Elsewhere there is a line now and then.
func TestLinesElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		m := newMeter(&out, "get", 1<<20, 5<<20)
		m.add(1 << 20)
		time.Sleep(lineEvery + time.Second)
		m.stop()
		if got, want := out.String(), "get: 2 MiB of 5 MiB  40%  205 KiB/s  ETA 15s\n"; got != want {
			t.Errorf("printed %q, want %q", got, want)
		}
		if n, d := m.moved(); n != 1<<20 || d != lineEvery+time.Second {
			t.Errorf("moved %d in %v", n, d)
		}
		quiet := newMeter(nil, "get", 0, 1)
		time.Sleep(lineEvery)
		quiet.stop()
	})
}

func TestMeterText(t *testing.T) {
	for _, c := range []struct {
		left, moved uint64
		d           time.Duration
		want        string
	}{
		{0, 0, 0, "0s"}, {5, 0, time.Second, "-"}, {5, 5, 0, "-"}, {100, 10, time.Second, "10s"}, {1 << 62, 1, time.Hour, "-"},
	} {
		if got := eta(c.left, c.moved, c.d); got != c.want {
			t.Errorf("eta(%d, %d, %v) = %q; want %q", c.left, c.moved, c.d, got, c.want)
		}
	}
	if m := (&meter{start: time.Now()}); !strings.HasPrefix(m.text(), "0 B  0 B/s") {
		t.Errorf("of unknown size: %q", m.text())
	}
}
