// Command tideway serves memory and files to other processes, copies to and
// from them, measures, and shows what it can do. Each sub-command has a file of
// its own; the engine is package tideway.
package main

import (
	"context"
	"io"
	"os"

	"github.com/tideway-io/tideway/metadata/redis"
)

func main() {
	redis.Silence()
	ctx, stop := withSignals(context.Background())
	code := run(ctx, os.Args[1:], &console{in: os.Stdin, out: os.Stdout, err: os.Stderr})
	stop()
	os.Exit(code)
}

// console is where a command reads and writes.
type console struct {
	in       io.Reader
	out, err io.Writer
	closers  []func() error // what is closed when the command is done
}

// atEnd has f called when the command is done.
func (c *console) atEnd(f func() error) { c.closers = append(c.closers, f) }

func (c *console) close() {
	for _, f := range c.closers {
		_ = f() // nothing is lost by it
	}
}

// run executes one command line and returns the exit code, having printed the
// error.
func run(ctx context.Context, args []string, c *console) int {
	defer c.close()
	root := newRoot(c)
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	if err != nil {
		complain(c.err, cmd.CommandPath(), err)
	}
	return exitCode(ctx, err)
}
