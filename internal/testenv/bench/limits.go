package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/tideway-io/tideway/internal/mem"
	"github.com/tideway-io/tideway/internal/sys"
	"golang.org/x/sys/unix"
)

// limit is a plain program that does the same as a row. start returns what
// measures once, and what ends it.
type limit struct {
	name  string
	start func(context.Context, row) (func() (float64, error), func(), error)
}

const turnTime = 500 * time.Millisecond

func noLimit() limit {
	return limit{"", func(context.Context, row) (func() (float64, error), func(), error) {
		return func() (float64, error) { return 0, nil }, func() {}, nil
	}}
}

// iperf is one stream of iperf3 with writes as long as the row's requests, and
// the congestion control that lanes ask for.
func iperf() limit {
	return limit{"iperf3 -C cubic", func(ctx context.Context, r row) (func() (float64, error), func(), error) {
		port, err := freePort()
		if err != nil {
			return nil, nil, err
		}
		server := exec.CommandContext(ctx, "iperf3", "-s", "-B", "127.0.0.1", "-p", port)
		if err := server.Start(); err != nil {
			return nil, nil, err
		}
		end := func() { _ = server.Process.Kill(); _ = server.Wait() }
		if err := awaitPort(ctx, port); err != nil {
			end()
			return nil, nil, err
		}
		args := []string{"-J", "-c", "127.0.0.1", "-p", port, "-C", "cubic", "-l", strconv.Itoa(min(r.size, 1<<20)), "-t", "1"}
		if r.op == "read" {
			args = append(args, "-R")
		}
		return func() (float64, error) {
			out, err := exec.CommandContext(ctx, "iperf3", args...).Output()
			var v struct {
				End struct {
					Received struct {
						Bits float64 `json:"bits_per_second"`
					} `json:"sum_received"`
				} `json:"end"`
			}
			err = errors.Join(withOutput(err), json.Unmarshal(out, &v))
			if err == nil && v.End.Received.Bits == 0 {
				err = errors.New("it moved nothing")
			}
			return v.End.Received.Bits / 8, err
		}, end, nil
	}}
}

// copying is copy from one piece of memory to another, walking over as much as
// the row does.
func copying() limit {
	return limit{"copy", func(_ context.Context, r row) (func() (float64, error), func(), error) {
		from, freeFrom, err := mem.Alloc(span, mem.Options{Prefault: true})
		if err != nil {
			return nil, nil, err
		}
		to, freeTo, err := mem.Alloc(span, mem.Options{Prefault: true})
		if err != nil {
			return nil, nil, errors.Join(err, freeFrom())
		}
		step := min(r.size, span)
		return func() (float64, error) {
			return loop(step, func(at int) error { copy(to[at:at+step], from[at:at+step]); return nil })
		}, func() { _, _ = freeFrom(), freeTo() }, nil
	}}
}

// loop calls f for one piece of the span after the other for a turn, and returns
// the bytes per second.
func loop(step int, f func(at int) error) (float64, error) {
	start, n := time.Now(), 0
	for time.Since(start) < turnTime {
		if err := f(n * step % (span / step * step)); err != nil {
			return 0, err
		}
		n++
	}
	return float64(n*step) / time.Since(start).Seconds(), nil
}

// attach is a bare loop of process_vm_readv from another process.
func attach() limit {
	return limit{"process_vm_readv", func(ctx context.Context, r row) (func() (float64, error), func(), error) {
		h, err := startHelper(ctx, "memory")
		if err != nil {
			return nil, nil, err
		}
		to, free, err := mem.Alloc(span, mem.Options{Prefault: true})
		if err != nil {
			h.end()
			return nil, nil, err
		}
		var ranges sys.Ranges
		return func() (float64, error) {
			return loop(r.size, func(at int) error {
				ranges.Reset()
				ranges.Add(to[at:at+r.size], h.number+uint64(at))
				n, err := ranges.Read(h.cmd.Process.Pid)
				if err == nil && n != r.size {
					err = fmt.Errorf("%d bytes of %d", n, r.size)
				}
				return err
			})
		}, func() { h.end(); _ = free() }, nil
	}}
}

// pingpong is a request and an answer over one blocking TCP connection, the
// payload in one of them and 16 bytes in the other: microseconds, the median.
func pingpong() limit {
	return limit{"blocking ping-pong", func(ctx context.Context, r row) (func() (float64, error), func(), error) {
		h, err := startHelper(ctx, "echo-"+r.op)
		if err != nil {
			return nil, nil, err
		}
		fd, err := dialBlocking(int(h.number))
		if err != nil {
			h.end()
			return nil, nil, err
		}
		out, in := tripSizes(r.op)
		return func() (float64, error) {
			var took []float64
			for start := time.Now(); time.Since(start) < turnTime; {
				began := time.Now()
				if err := errors.Join(writeAll(fd, out), readAll(fd, in)); err != nil {
					return 0, err
				}
				took = append(took, float64(time.Since(began).Nanoseconds())/1000)
			}
			return median(took), nil
		}, func() { _ = unix.Close(fd); h.end() }, nil
	}}
}

// tripSizes returns the bytes of the request and of the answer.
func tripSizes(op string) (out, in []byte) {
	if op == "write" {
		return make([]byte, 4096), make([]byte, 16)
	}
	return make([]byte, 16), make([]byte, 4096)
}

// fio reads or writes a file of its own in the page cache.
func fio() limit {
	return limit{"fio psync", func(ctx context.Context, r row) (func() (float64, error), func(), error) {
		dir, err := os.MkdirTemp("", "bench-fio-")
		if err != nil {
			return nil, nil, err
		}
		args := []string{"--name=limit", "--filename=" + filepath.Join(dir, "file"), "--rw=" + r.op, "--bs=" + strconv.Itoa(r.size),
			"--size=" + strconv.Itoa(span), "--ioengine=psync", "--time_based", "--runtime=1", "--output-format=json", "--invalidate=0"}
		return func() (float64, error) {
			out, err := exec.CommandContext(ctx, "fio", args...).Output()
			var v struct {
				Jobs []map[string]json.RawMessage `json:"jobs"`
			}
			var side struct {
				Rate float64 `json:"bw_bytes"`
			}
			err = errors.Join(withOutput(err), json.Unmarshal(out, &v))
			if err == nil && len(v.Jobs) != 1 {
				err = fmt.Errorf("%d jobs", len(v.Jobs))
			}
			if err == nil {
				err = json.Unmarshal(v.Jobs[0][r.op], &side)
			}
			return side.Rate, err
		}, func() { _ = os.RemoveAll(dir) }, nil
	}}
}

// withOutput adds what a program said before it failed.
func withOutput(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return fmt.Errorf("%w: %s", err, exit.Stderr)
	}
	return err
}

func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, err
}

// awaitPort waits until somebody listens, without a connection that iperf3 would
// take for a client.
func awaitPort(ctx context.Context, port string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for tick := time.NewTicker(10 * time.Millisecond); ; {
		n, err := strconv.Atoi(port)
		if err != nil {
			return err
		}
		text, err := os.ReadFile("/proc/net/tcp")
		if err != nil {
			return err
		}
		if slices.ContainsFunc(splitLines(text), func(line string) bool { return listens(line, n) }) {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("nobody listens at port %s: %w", port, ctx.Err())
		}
	}
}
