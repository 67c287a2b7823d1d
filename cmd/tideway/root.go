package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/tideway-io/tideway"
	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/transport/all"
)

// newRoot returns the whole command tree, reading from and writing to c.
func newRoot(c *console) *cobra.Command {
	root := &cobra.Command{
		Use:   "tideway",
		Short: "Move bytes between processes: memory, files, as fast as the machine allows",
		Long: "Tideway moves bytes between processes. One side serves named buffers (memory or files),\n" +
			"any other side puts, gets and measures.\n\nExit codes:\n" + exitHelp(),
		SilenceErrors: true, SilenceUsage: true,
	}
	root.Args = noSuchCommand
	version := root.Flags().Bool("version", false, "print the version of this build")
	root.RunE = func(cmd *cobra.Command, _ []string) error {
		if *version {
			return printVersion(c.out)
		}
		return cmd.Help()
	}
	root.SetIn(c.in)
	root.SetOut(c.out)
	root.SetErr(c.err)
	root.SetFlagErrorFunc(flagError)
	root.AddCommand(newServe(c), newPut(c), newGet(c), newLs(c), newStat(c), newBench(c), newDemo(c), newMetadata(c), newVersion(c))
	strict(root)
	completeFlags(root)
	return root
}

// completeFlags lets shells complete the values of flags that hold words, of cmd
// and its sub-commands.
func completeFlags(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		completeFlags(sub)
	}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		var words []string
		if v, ok := f.Value.(interface{ words() []string }); ok {
			words = v.words()
		} else if f.Name == "transport" {
			for _, d := range all.Drivers() {
				words = append(words, d.Name())
			}
		}
		if words == nil {
			return
		}
		if err := cmd.RegisterFlagCompletionFunc(f.Name, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)); err != nil {
			panic("complete a flag: " + err.Error())
		}
	})
}

// strict makes the commands that cobra brings along refuse what they do not know,
// instead of printing a help text and exiting with 0.
func strict(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		switch cmd.Name() {
		case "completion":
			cmd.Args = noSuchCommand
			cmd.RunE = func(*cobra.Command, []string) error {
				return usagef("want a shell: %s", strings.Join(commandNames(cmd), ", "))
			}
		case "help":
			help := cmd.Run
			cmd.Run = nil
			cmd.RunE = func(cmd *cobra.Command, args []string) error {
				if found, rest, err := root.Find(args); err != nil || len(rest) > 0 {
					return noSuchCommand(found, args)
				}
				help(cmd, args)
				return nil
			}
		}
	}
}

// noSuchCommand refuses the name of a sub-command that cmd does not have.
func noSuchCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	last := args[len(args)-1]
	return usagef("unknown command %q%s", last, didYouMean(last, commandNames(cmd)))
}

func commandNames(cmd *cobra.Command) []string {
	var names []string
	for _, sub := range cmd.Commands() {
		names = append(names, sub.Name())
	}
	return names
}

// flagError makes a wrong flag a usage error with a suggestion.
func flagError(cmd *cobra.Command, err error) error {
	name, found := strings.CutPrefix(err.Error(), "unknown flag: --")
	if !found {
		return usagef("%v", err)
	}
	var flags []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { flags = append(flags, "--"+f.Name) })
	return usagef("unknown flag --%s%s", name, didYouMean("--"+name, flags))
}

// arguments returns a check for the number of arguments that names them.
func arguments(least, most int, names string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) < least || len(args) > most {
			return usagef("want %s, got %s", names, plural(len(args), "argument"))
		}
		return nil
	}
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// client are the flags of the commands that dial.
type client struct {
	c         *console
	names     names
	output    choiceFlag
	transport string
	stall     time.Duration
	connect   time.Duration
	verbose   bool
}

func (o *client) flags(cmd *cobra.Command, formats ...string) {
	o.output = choiceFlag{"table", formats}
	f := cmd.Flags()
	f.VarP(&o.output, "output", "o", "how to print the result")
	f.StringVar(&o.transport, "transport", "", "use this transport only, and fail if it cannot be used")
	f.DurationVar(&o.stall, "stall-timeout", 10*time.Second, "give up on a peer that is connected and silent for so long")
	f.DurationVar(&o.connect, "connect-timeout", 5*time.Second, "give up on a connection that takes so long")
	f.BoolVarP(&o.verbose, "verbose", "v", false, "log what the engine does")
	o.names.flags(cmd)
}

// open starts the command's engine, and makes sure that the transport asked for
// is one that it has.
func (o *client) open(ctx context.Context, t tuning) (*tideway.Engine, error) {
	if o.stall <= 0 || o.connect <= 0 {
		return nil, usagef("--stall-timeout and --connect-timeout must be above zero")
	}
	store, err := o.names.open(o.c)
	if err != nil {
		return nil, err
	}
	e, err := tideway.Open(ctx, tideway.Config{
		Metadata: store, Cluster: o.names.clusterOf(), StallTimeout: o.stall, ConnectTimeout: o.connect,
		DisableChecksum: t.plain, Lanes: t.lanes, Logger: logger(o.c.err, o.verbose),
	})
	if err != nil {
		return nil, err
	}
	if err := hasTransport(e, o.transport); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

// hasTransport refuses the name of a transport that this build does not have or
// that this host cannot open.
func hasTransport(e *tideway.Engine, name string) error {
	if name == "" {
		return nil
	}
	var names []string
	for _, t := range e.Inspect().Transports {
		if t.Name == name && !t.Open {
			return errs.New(errs.Unsupported, "open transport "+name, "%s", t.Reason)
		}
		names = append(names, t.Name)
	}
	if !slices.Contains(names, name) {
		return usagef("--transport %q: this build has %s%s", name, strings.Join(names, ", "), didYouMean(name, names))
	}
	return nil
}

// logger logs errors, or everything, to w.
func logger(w io.Writer, verbose bool) *slog.Logger {
	level := slog.LevelError
	if verbose {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level}))
}

// printJSON prints v indented.
func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// printTable prints rows in aligned columns.
func printTable(w io.Writer, rows [][]string) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, r := range rows {
		fmt.Fprintln(t, strings.Join(r, "\t"))
	}
	return t.Flush()
}
