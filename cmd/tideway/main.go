// Command tideway serves memory and files to other processes, copies to and
// from them, measures, and shows what it can do. Each sub-command has a file of
// its own; the engine is package tideway.
package main

import (
	"context"
	"io"
	"os"
)

func main() {
	ctx, stop := withSignals(context.Background())
	code := run(ctx, os.Args[1:], &console{in: os.Stdin, out: os.Stdout, err: os.Stderr})
	stop()
	os.Exit(code)
}

// console is where a command reads and writes.
type console struct {
	in       io.Reader
	out, err io.Writer
}

// run executes one command line and returns the exit code, having printed the
// error.
func run(ctx context.Context, args []string, c *console) int {
	root := newRoot(c)
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	if err != nil {
		complain(c.err, cmd.CommandPath(), err)
	}
	return exitCode(ctx, err)
}
