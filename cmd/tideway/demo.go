package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// demoWindow is the memory that a demo uses at each end; larger sizes move
// through it in rounds, each with a fresh pattern.
const (
	demoWindow  = 64 << 20
	demoRequest = 1 << 20
)

func newDemo(c *console) *cobra.Command {
	size := sizeFlag(1 << 30)
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Move and verify bytes between two processes, over every transport there is",
		Long: "Start a second process, move --size bytes each way over every transport that this host has, and verify\n" +
			"every byte through another engine. The exit code is 0 only if all of them were right.",
		Args: arguments(0, 0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if size == 0 {
				return usagef("--size must be above zero")
			}
			return demo(cmd.Context(), c, uint64(size))
		},
	}
	cmd.Flags().Var(&size, "size", "bytes to move each way over each transport")
	return cmd
}

func demo(ctx context.Context, c *console, size uint64) error {
	started := time.Now()
	transports, err := openTransports(ctx, c)
	if err != nil {
		return err
	}
	fmt.Fprintf(c.out, "%s each way over %s, every byte verified through a second engine\n\n", formatSize(size), strings.Join(transports, ", "))
	for i, t := range transports {
		if err := demoTransport(ctx, c, t, size, func() {
			if i == 0 {
				fmt.Fprintf(c.out, "first bytes after %s\n", time.Since(started).Round(time.Millisecond))
			}
		}); err != nil {
			return fmt.Errorf("%s: %w", t, err)
		}
	}
	fmt.Fprintf(c.out, "\nall right: every byte arrived as it was sent, in %s\n", time.Since(started).Round(time.Millisecond))
	return nil
}

// openTransports asks an engine which transports this host has, those to other
// processes first.
func openTransports(ctx context.Context, c *console) ([]string, error) {
	e, err := demoClient(c, "").open(ctx, tuning{})
	if err != nil {
		return nil, err
	}
	defer e.Close()
	var names []string
	for _, t := range e.Inspect().Transports {
		if t.Open {
			names = append(names, t.Name)
		}
	}
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(own(a), own(b)) })
	return names, nil
}

// own is 1 for the transport that joins an engine only with itself.
func own(name string) int {
	if name == ownTransport {
		return 1
	}
	return 0
}

func demoClient(c *console, via string) *client {
	return &client{c: c, transport: via, stall: 10 * time.Second, connect: 5 * time.Second}
}

// demoTransport moves size bytes each way over one transport.
func demoTransport(ctx context.Context, c *console, via string, size uint64, first func()) error {
	window := min(size, demoWindow)
	r, err := openRig(ctx, demoClient(c, via), place{}, window, tuning{})
	if err != nil {
		return err
	}
	defer r.Close()
	where := "to a second process"
	if r.child == nil {
		where = "within one process"
	}
	for _, op := range []string{"write", "read"} {
		took, err := demoMove(ctx, r, op, via, size, first)
		if err != nil {
			return err
		}
		first = func() {}
		fmt.Fprintf(c.out, "%-8s %-5s %s in %s, %s, verified (%s)\n", via, op, formatSize(size), took.Round(time.Millisecond), formatRate(rate(size, took)), where)
	}
	return r.Close()
}

// demoMove moves and verifies size bytes in rounds of at most a window, and
// returns the time that moving took.
func demoMove(ctx context.Context, r *rig, op, via string, size uint64, first func()) (time.Duration, error) {
	var took time.Duration
	for left := size; left > 0; {
		n := min(left, demoWindow)
		for _, p := range demoPoints(op, n) {
			t, err := demoRound(ctx, r, p, via, first)
			if err != nil {
				return 0, err
			}
			first = func() {}
			took += t
		}
		left -= n
	}
	return took, nil
}

// demoPoints cuts n bytes into equal requests and the rest.
func demoPoints(op string, n uint64) []point {
	var out []point
	if whole := n / demoRequest; whole > 0 {
		out = append(out, point{op: op, size: demoRequest, batch: int(whole), threads: 1})
	}
	if rest := n % demoRequest; rest > 0 {
		out = append(out, point{op: op, size: rest, batch: 1, threads: 1})
	}
	return out
}

func demoRound(ctx context.Context, r *rig, p point, via string, first func()) (time.Duration, error) {
	c, err := newCrew(r, p, via)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	if err := c.prepare(ctx); err != nil {
		return 0, err
	}
	t, err := c.single(ctx)
	if err != nil {
		return 0, err
	}
	first()
	return t, c.verify(ctx)
}
