package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/tideway-io/tideway/internal/mem"
	"golang.org/x/sys/unix"
)

// helperFlag makes this program the second process of a limit, which prints one
// number and ends with its standard input.
const helperFlag = "-helper"

type helper struct {
	cmd    *exec.Cmd
	stdin  io.Closer
	number uint64
}

func startHelper(ctx context.Context, what string) (*helper, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	h := &helper{cmd: exec.CommandContext(ctx, exe, helperFlag, what)}
	line, err := h.start()
	if err == nil {
		h.number, err = strconv.ParseUint(strings.TrimSpace(line), 10, 64)
	}
	if err != nil {
		h.end()
		return nil, fmt.Errorf("second process: %w", err)
	}
	return h, nil
}

// start returns the first line that the process prints.
func (h *helper) start() (string, error) {
	var err error
	if h.stdin, err = h.cmd.StdinPipe(); err != nil {
		return "", err
	}
	out, err := h.cmd.StdoutPipe()
	if err != nil {
		return "", err
	}
	h.cmd.Stderr = os.Stderr
	if err := h.cmd.Start(); err != nil {
		return "", err
	}
	return bufio.NewReader(out).ReadString('\n')
}

func (h *helper) end() {
	if h.stdin != nil {
		h.stdin.Close()
	}
	if h.cmd.Process != nil {
		_ = h.cmd.Process.Kill()
		_ = h.cmd.Wait()
	}
}

// help is the second process.
func help(what string) error {
	if what == "memory" {
		b, free, err := mem.Alloc(span, mem.Options{Prefault: true})
		if err != nil {
			return err
		}
		fmt.Println(mem.Addr(b))
		_, err = io.Copy(io.Discard, os.Stdin)
		return errors.Join(err, free())
	}
	op, ok := strings.CutPrefix(what, "echo-")
	if !ok {
		return fmt.Errorf("no helper %q", what)
	}
	return echo(op)
}

// echo answers one connection until it ends.
func echo(op string) error {
	l, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err := errors.Join(unix.Bind(l, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), unix.Listen(l, 1)); err != nil {
		return err
	}
	at, err := unix.Getsockname(l)
	if err != nil {
		return err
	}
	fmt.Println(at.(*unix.SockaddrInet4).Port)
	fd, _, err := unix.Accept(l)
	if err != nil {
		return err
	}
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
		return err
	}
	out, in := tripSizes(op)
	for {
		err := readAll(fd, out)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err := errors.Join(err, writeAll(fd, in)); err != nil {
			return err
		}
	}
}

func dialBlocking(port int) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	err = errors.Join(unix.Connect(fd, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}),
		unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1))
	if err != nil {
		return -1, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

func readAll(fd int, b []byte) error {
	for len(b) > 0 {
		n, err := unix.Read(fd, b)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err == nil && n == 0 {
			err = io.EOF
		}
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

func writeAll(fd int, b []byte) error {
	for len(b) > 0 {
		n, err := unix.Write(fd, b)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// serveFile serves a file of the span's size.
func serveFile(ctx context.Context) (addr string, end func(), err error) {
	dir, err := os.MkdirTemp("", "bench-file-")
	if err != nil {
		return "", func() {}, err
	}
	name := filepath.Join(dir, "file")
	h := &helper{cmd: exec.CommandContext(ctx, command, "serve", "--file", "bench="+name, "--access", "rw", "--until-eof", "-o", "json")}
	end = func() { h.end(); _ = os.RemoveAll(dir) }
	if err := os.WriteFile(name, make([]byte, span), 0o644); err != nil {
		end()
		return "", func() {}, err
	}
	line, err := h.start()
	var v struct {
		Addr string `json:"addr"`
	}
	if err = errors.Join(err, json.Unmarshal([]byte(line), &v)); err != nil {
		end()
		return "", func() {}, err
	}
	return v.Addr, end, nil
}

func splitLines(text []byte) []string { return strings.Split(string(bytes.TrimSpace(text)), "\n") }

// listens reports whether a line of /proc/net/tcp is a socket that listens at
// the port.
func listens(line string, port int) bool {
	f := strings.Fields(line)
	return len(f) > 3 && f[3] == "0A" && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", port))
}
