//go:build linux && cgo

package main

import (
	"archive/zip"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tideway-io/tideway/internal/testenv"
)

// TestPython builds the wheel, unpacks it, and runs the packages' tests and the
// two programs of the first steps from it.
func TestPython(t *testing.T) {
	python := testenv.NeedTool(t, "python3")
	out, site := t.TempDir(), t.TempDir()
	unpack(t, strings.TrimSpace(run(t, nil, "../scripts/wheel", out)), site)
	path := "PYTHONPATH=" + site
	t.Run("tests", func(t *testing.T) {
		run(t, []string{path}, python, "-m", "unittest", "discover", "-s", "../python/tests")
	})
	t.Run("with C", func(t *testing.T) { together(t, python, site) })
	t.Run("first steps", func(t *testing.T) {
		t.Setenv("PYTHONPATH", site)
		t.Setenv("MC_LOG_LEVEL", "ERROR")
		fifo := filepath.Join(out, "go on")
		if err := syscall.Mkfifo(fifo, 0o600); err != nil {
			t.Fatal(err)
		}
		receiver := testenv.Start(t, "sh", "-c", `exec "$0" ../python/tests/receiver.py < "$1"`, python, fifo)
		goOn, err := os.OpenFile(fifo, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer goOn.Close()
		line := receiver.Expect(20*time.Second, `(\S+) (\d+) (\d+)\n`)
		if got := run(t, []string{path}, python, "../python/tests/sender.py", line[1], line[2], line[3]); got != "sent\n" {
			t.Errorf("the sender said %q", got)
		}
		if _, err := goOn.WriteString("\n"); err != nil {
			t.Fatal(err)
		}
		receiver.Expect(20*time.Second, "by sea, not by air\n")
	})
}

// together has a C program serve a Python one, and the other way round: each reads
// the other's memory, writes to it and tells so.
func together(t *testing.T, python, site string) {
	gcc := testenv.NeedTool(t, "gcc")
	dir := t.TempDir()
	run(t, nil, "../scripts/lib", dir)
	t.Setenv("PYTHONPATH", site)
	t.Setenv("MC_LOG_LEVEL", "ERROR")
	halves := [][]string{{compile(t, gcc, dir, "tent.c")}, {python, "../python/tests/halves.py"}}
	for i, server := range halves {
		user := halves[1-i]
		s := testenv.Start(t, append(slices.Clone(server), "serve")...)
		at := s.Expect(20*time.Second, `(\S+) (\d+)\n`)
		if got := run(t, nil, user[0], append(slices.Clone(user[1:]), "use", at[1], at[2])...); got != "moved\n" {
			t.Errorf("%v says %q", user, got)
		}
		s.Expect(20*time.Second, `use: written, first byte 42\n`)
	}
}

// unpack does what an installer does with a wheel.
func unpack(t *testing.T, wheel, to string) {
	t.Helper()
	z, err := zip.OpenReader(wheel)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	for _, f := range z.File {
		name := filepath.Join(to, filepath.FromSlash(f.Name))
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		in, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
