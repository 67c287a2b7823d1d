package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/tideway-io/tideway"
	"github.com/tideway-io/tideway/segment"
)

// serve offers memory and files to other processes.
type serve struct {
	c          *console
	cfg        tideway.Config
	names      names
	memory     []string
	files      []string
	access     choiceFlag
	readyFile  readyFile
	grace      time.Duration
	putTimeout time.Duration
	untilEOF   bool
	mooncake   bool
	verbose    bool
	output     choiceFlag
}

func newServe(c *console) *cobra.Command {
	s := &serve{c: c, access: choiceFlag{"", []string{"ro", "rw"}}, output: choiceFlag{"table", []string{"table", "json"}}}
	cmd := &cobra.Command{
		Use:   "serve --memory NAME=SIZE --file NAME=PATH",
		Short: "Offer memory and files to other processes",
		Long: "Offer memory and files to other processes until SIGINT or SIGTERM.\n\n" +
			"Memory can be read and written, files can be read; --access changes that for all of them. A file served\n" +
			"rw takes puts, which replace it as a whole; it need not be there before the first one.\n" +
			"A signal withdraws the segment, tells the peers and lets transfers end within --grace; a second one\n" +
			"ends the process at once.",
		Example: "  tideway serve --memory kv=1GiB\n  tideway serve --listen 0.0.0.0:7000 --file model=model.bin --ready-file /run/ready",
		Args:    arguments(0, 0, "no arguments"),
		RunE:    func(cmd *cobra.Command, _ []string) error { return s.run(cmd.Context()) },
	}
	f := cmd.Flags()
	f.StringVar(&s.cfg.Listen, "listen", "", "HOST:PORT to bind (default a free port of 127.0.0.1)")
	f.StringVar(&s.cfg.Advertise, "advertise", "", "HOST or HOST:PORT that others dial (default the address bound)")
	f.StringVar(&s.cfg.Interface, "interface", "", "choose the advertised address from this network interface")
	f.BoolVar(&s.cfg.PortFallback, "port-fallback", false, "take any free port when the one in --listen is taken")
	f.StringArrayVar(&s.memory, "memory", nil, "offer SIZE bytes of zeroed memory as NAME (repeatable)")
	f.StringArrayVar(&s.files, "file", nil, "offer the file at PATH as NAME (repeatable)")
	f.Var(&s.access, "access", "what others may do (default rw for memory, ro for files)")
	f.StringVar((*string)(&s.readyFile), "ready-file", "", "write the address to this file once others can connect, remove it at the end")
	f.DurationVar(&s.grace, "grace", 10*time.Second, "time for transfers to end after a signal")
	f.DurationVar(&s.putTimeout, "put-timeout", time.Minute, "give up a put that writes nothing for so long")
	f.DurationVar(&s.cfg.StallTimeout, "stall-timeout", 10*time.Second, "give up on a peer that is connected and silent for so long")
	s.names.flags(cmd)
	f.StringVar(&s.cfg.Name, "name", "", "NAME under which others find this in the metadata store")
	f.DurationVar(&s.cfg.MetadataTTL, "metadata-ttl", 30*time.Second, "the name goes away so long after this process was killed")
	f.BoolVar(&s.mooncake, "mooncake", true, "serve Mooncake's engines, too, on a second port; their MC_* variables are heeded")
	f.BoolVar(&s.untilEOF, "until-eof", false, "end as well when standard input ends")
	f.BoolVarP(&s.verbose, "verbose", "v", false, "log what the engine does")
	f.VarP(&s.output, "output", "o", "how to print what is offered")
	return cmd
}

func (s *serve) run(ctx context.Context) error {
	if len(s.memory)+len(s.files) == 0 {
		return usagef("nothing to serve: want --memory NAME=SIZE or --file NAME=PATH")
	}
	if err := s.readyFile.remove(); err != nil {
		return err
	}
	log := logger(s.c.err, s.verbose)
	s.cfg.Logger, s.cfg.DrainTimeout = log, s.grace
	if s.mooncake {
		s.join(log)
	}
	e, err := s.open(ctx)
	if err != nil {
		return err
	}
	defer e.Close()
	files, err := s.offer(e)
	defer func() { // after the engine is closed, which Close above repeats in vain
		e.Close()
		for _, f := range files {
			f.release()
		}
	}()
	if err != nil {
		return err
	}
	d := newDesk(e, log, files, s.putTimeout)
	if err := s.announce(e, d); err != nil {
		return err
	}
	defer s.readyFile.remove()
	return s.work(ctx, e, d)
}

// join has the engine join a Mooncake cluster as its variables say.
func (s *serve) join(log *slog.Logger) {
	m, ignored := tideway.MooncakeFromEnv(os.Getenv)
	for _, why := range ignored {
		log.Warn("variable ignored", "why", why)
	}
	s.cfg.Mooncake = &m
}

// open starts the engine, under its name where there is a metadata store.
func (s *serve) open(ctx context.Context) (*tideway.Engine, error) {
	if s.names.peerToPeer() != (s.cfg.Name == "") {
		return nil, usagef("--metadata and --name go together: others find NAME in the metadata store")
	}
	store, err := s.names.open(s.c)
	if err != nil {
		return nil, err
	}
	s.cfg.Metadata, s.cfg.Cluster = store, s.names.clusterOf()
	return tideway.Open(ctx, s.cfg)
}

// work runs the desk until a signal or the end of input, then drains.
func (s *serve) work(ctx context.Context, e *tideway.Engine, d *desk) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	if s.untilEOF {
		go func() { // ends with the process: a read of standard input cannot be withdrawn
			_, _ = io.Copy(io.Discard, s.c.in)
			stop()
		}()
	}
	deskCtx, endDesk := context.WithCancel(context.WithoutCancel(ctx))
	var desk sync.WaitGroup
	desk.Go(func() { d.run(deskCtx) })
	defer desk.Wait()
	defer endDesk()
	<-ctx.Done()
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.grace)
	defer cancel()
	if err := e.Shutdown(grace); err != nil {
		fmt.Fprintf(s.c.err, "serve: some transfers were cut short: %v\n", err)
	}
	return nil
}

// offer registers everything. The files are returned in any case.
func (s *serve) offer(e *tideway.Engine) ([]*shared, error) {
	for _, m := range s.memory {
		name, size, err := splitNamed("--memory", m)
		if err != nil {
			return nil, err
		}
		n, err := parseSize(size)
		if err != nil {
			return nil, usagef("--memory %q: %v", m, err)
		}
		if _, err := e.Alloc(n, tideway.BufferOptions{Name: name, Location: "cpu:0", Access: s.accessOr(segment.ReadWrite)}); err != nil {
			return nil, fmt.Errorf("--memory %s: %w", m, err)
		}
	}
	var files []*shared
	for _, v := range s.files {
		name, path, err := splitNamed("--file", v)
		if err != nil {
			return files, err
		}
		f := &shared{name: name, path: path, access: s.accessOr(segment.RemoteRead)}
		files = append(files, f)
		if err := s.offerFile(e, f); err != nil {
			return files, fmt.Errorf("--file %s: %w", v, err)
		}
	}
	return files, nil
}

func (s *serve) offerFile(e *tideway.Engine, f *shared) error {
	if real, err := filepath.EvalSymlinks(f.path); err == nil {
		f.path = real
	}
	if f.access&segment.RemoteWrite != 0 {
		if err := sweep(f.path); err != nil {
			return err
		}
	}
	return f.open(e)
}

func (s *serve) accessOr(otherwise segment.Access) segment.Access {
	switch s.access.value {
	case "ro":
		return segment.RemoteRead
	case "rw":
		return segment.ReadWrite
	}
	return otherwise
}

// serving is what serve prints once it accepts.
type serving struct {
	Addr    string       `json:"addr"`
	Segment string       `json:"segment"`
	PID     int          `json:"pid"`
	Buffers []bufferInfo `json:"buffers"`
}

// announce offers the marker of puts, prints what is offered and writes the
// ready file.
func (s *serve) announce(e *tideway.Engine, d *desk) error {
	if d.takesPuts() {
		if _, err := e.Register([]byte{'1'}, tideway.BufferOptions{Name: putMarker, Access: segment.RemoteRead}); err != nil {
			return err
		}
	}
	v := serving{Addr: e.Addr(), Segment: e.Name(), PID: os.Getpid(), Buffers: []bufferInfo{}}
	for _, b := range e.Inspect().Buffers {
		if !internalName(b.Name) {
			v.Buffers = append(v.Buffers, bufferInfo{
				Name: b.Name, Length: b.Length, Access: b.Access, Location: b.Location, Addr: b.Addr, Key: b.Key,
			})
		}
	}
	if err := s.print(v, d); err != nil {
		return err
	}
	return s.readyFile.write(e.Addr())
}

func (s *serve) print(v serving, d *desk) error {
	if s.output.value == "json" {
		return json.NewEncoder(s.c.out).Encode(v) // one line, so that a program can read it while serve runs
	}
	fmt.Fprintf(s.c.out, "serving at %s\n\n", v.Addr)
	if err := printTable(s.c.out, bufferRows(v.Buffers)); err != nil {
		return err
	}
	for _, f := range d.files {
		if f.buf == nil {
			fmt.Fprintf(s.c.out, "%s is not there yet and waits for a put\n", f.name)
		}
	}
	if exposed(v.Addr) {
		fmt.Fprintf(s.c.err, "serve: anybody who can reach %s can use what is offered; there is no authentication yet\n", v.Addr)
	}
	at, how := v.Addr, ""
	if s.cfg.Metadata != nil {
		at, how = v.Segment, " --metadata "+s.names.shown()
		if s.names.cluster != "" {
			how += " --cluster " + s.names.cluster
		}
	}
	_, err := fmt.Fprintf(s.c.out, "\n  tideway ls %s%s\n  tideway get %s/%s FILE%s\n", at, how, at, s.firstName(), how)
	return err
}

func (s *serve) firstName() string {
	name, _, _ := strings.Cut(append(s.memory, s.files...)[0], "=")
	return name
}

// exposed reports whether other hosts may reach the address.
func exposed(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	return err != nil || host != "localhost" && !net.ParseIP(host).IsLoopback()
}

// writeFile makes a file appear under its name with its whole content.
func writeFile(name, text string) error {
	f, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+".*")
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	err = errors.Join(err, f.Chmod(0o644), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}
