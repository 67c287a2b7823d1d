package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metaserver "github.com/tideway-io/tideway/metadata/httpkv/server"
)

func newMetadata(c *console) *cobra.Command {
	cmd := &cobra.Command{Use: "metadata", Short: "The server through which engines find each other by name"}
	cmd.Args = noSuchCommand
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return usagef("want a command: %s", strings.Join(commandNames(cmd), ", "))
	}
	cmd.AddCommand(newMetadataServe(c))
	return cmd
}

// metadataServe runs the metadata server.
type metadataServe struct {
	c        *console
	opts     metaserver.Options
	maxValue string
	maxBytes string
	ready    readyFile
	grace    time.Duration
	verbose  bool
	output   choiceFlag
}

func newMetadataServe(c *console) *cobra.Command {
	s := &metadataServe{c: c, output: choiceFlag{"table", []string{"table", "json"}}}
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Keep what engines publish, and tell it to others over HTTP",
		Long: "Keep what engines publish, and tell it to others over HTTP, as Mooncake's metadata servers do, until SIGINT or\n" +
			"SIGTERM. Without --database everything is in memory and gone with the process; engines of this project\n" +
			"publish again by themselves then.\n\nOthers reach it as http://HOST:PORT/metadata; /health, /metrics and /metadata/keys are beside it.",
		Example: "  tideway metadata serve\n  tideway metadata serve --listen 0.0.0.0:8080 --database /var/lib/tideway/metadata.db",
		Args:    arguments(0, 0, "no arguments"),
		RunE:    func(cmd *cobra.Command, _ []string) error { return s.run(cmd.Context()) },
	}
	f := cmd.Flags()
	f.StringVar(&s.opts.Listen, "listen", "127.0.0.1:8080", "HOST:PORT to bind")
	f.StringVar(&s.opts.Database, "database", "", "keep everything in the file at PATH (default in memory)")
	f.BoolVar(&s.opts.RefuseDuplicates, "refuse-duplicates", false, "refuse to replace an engine's address, as two of Mooncake's servers do")
	f.IntVar(&s.opts.MaxKeys, "max-keys", 1<<20, "most keys")
	f.IntVar(&s.opts.MaxKey, "max-key", 4096, "bytes of the longest key")
	f.StringVar(&s.maxValue, "max-value", "64MiB", "SIZE of the largest value")
	f.StringVar(&s.maxBytes, "max-bytes", "1GiB", "SIZE of all values together")
	f.IntVar(&s.opts.MaxConns, "max-conns", 1024, "most connections at a time")
	f.StringVar((*string)(&s.ready), "ready-file", "", "write the URL to this file once others can connect, remove it at the end")
	f.DurationVar(&s.grace, "grace", 10*time.Second, "time for requests to end after a signal")
	f.BoolVarP(&s.verbose, "verbose", "v", false, "log what the server does")
	f.VarP(&s.output, "output", "o", "how to print the URL")
	return cmd
}

func (s *metadataServe) run(ctx context.Context) error {
	for _, size := range []struct {
		flag, text string
		to         *int64
	}{{"--max-value", s.maxValue, &s.opts.MaxValue}, {"--max-bytes", s.maxBytes, &s.opts.MaxBytes}} {
		n, err := parseSize(size.text)
		if err != nil || n == 0 || n > 1<<60 {
			return usagef("%s %q: want a size such as 64MiB", size.flag, size.text)
		}
		*size.to = int64(n)
	}
	if err := s.ready.remove(); err != nil {
		return err
	}
	s.opts.Logger = logger(s.c.err, s.verbose)
	srv, err := metaserver.Open(ctx, s.opts)
	if err != nil {
		return err
	}
	defer srv.Close()
	if err := s.announce(srv); err != nil {
		return err
	}
	defer s.ready.remove()
	<-ctx.Done()
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.grace)
	defer cancel()
	if err := srv.Shutdown(grace); err != nil {
		s.opts.Logger.Error("some requests were cut short", slog.Any("err", err))
	}
	return nil
}

// announce prints the URL and writes the ready file.
func (s *metadataServe) announce(srv *metaserver.Server) error {
	url := "http://" + srv.Addr() + "/metadata"
	if s.output.value == "json" {
		v := struct {
			URL  string `json:"url"`
			PID  int    `json:"pid"`
			Keys int    `json:"keys"`
		}{url, os.Getpid(), srv.Len()}
		if err := json.NewEncoder(s.c.out).Encode(v); err != nil {
			return err
		}
	} else if _, err := fmt.Fprintf(s.c.out, "metadata at %s, %s\n", url, plural(srv.Len(), "key")); err != nil {
		return err
	}
	if exposed(srv.Addr()) {
		fmt.Fprintf(s.c.err, "metadata serve: anybody who can reach %s can change what engines find; there is no authentication yet\n", srv.Addr())
	}
	return s.ready.write(url)
}
