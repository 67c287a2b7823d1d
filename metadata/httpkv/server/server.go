// Package server is the metadata server: keys and values over HTTP, as Mooncake's
// clients and its reference servers speak it, with what those lack: values that
// end when nobody renews them, a database that outlives the process, bounds, and
// figures about itself. It knows nothing of what the values mean.
package server

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/listen"
)

// Limits bound what clients can make the server hold. Zero fields have the
// documented default.
type Limits struct {
	MaxKeys  int   // default 1,048,576
	MaxKey   int   // bytes of a key, default 4096
	MaxValue int64 // bytes of a value, default 64 MiB
	MaxBytes int64 // of all keys and values, default 1 GiB; as many may be on their way in
	MaxConns int   // connections at a time, default 1024
}

// MaxTTL is the longest time to live that a value may ask for.
const MaxTTL = 24 * time.Hour

// Options are for Open.
type Options struct {
	Listen   string // host:port, default 127.0.0.1:8080
	Database string // path of the file that keeps the values; empty: they end with the process
	Limits
	// RefuseDuplicates refuses to replace an engine's address (a key with
	// "rpc_meta" in it) by another one, as two of Mooncake's servers do.
	RefuseDuplicates bool
	Logger           *slog.Logger // default slog.Default()
}

// Times that bound what a connection can hold up.
const (
	headerTimeout = 10 * time.Second
	bodyTimeout   = 60 * time.Second // to read a request and to write its answer
	idleTimeout   = 2 * time.Minute
	changeTimeout = 10 * time.Second // a change waits for the disk
)

// Server serves until Shutdown or Close.
type Server struct {
	opts     Options
	table    *table
	http     *http.Server
	listener *limited
	incoming atomic.Int64 // bytes of bodies that are being read
	listing  sync.Mutex   // one list at a time
	draining atomic.Bool
	counts   counts
	stop     context.CancelFunc
	work     sync.WaitGroup
	once     sync.Once
	endErr   error
}

// Open binds the address, reads the database and starts to serve.
func Open(ctx context.Context, o Options) (*Server, error) {
	if err := o.fill(); err != nil {
		return nil, err
	}
	s := &Server{opts: o}
	l, err := listen.Bind(ctx, o.Listen)
	if err != nil {
		return nil, err
	}
	s.listener = &limited{Listener: l, free: make(chan struct{}, o.MaxConns), counts: &s.counts}
	if err := s.openTable(); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	s.http = &http.Server{
		Handler: s, ReadHeaderTimeout: headerTimeout, ReadTimeout: bodyTimeout, WriteTimeout: bodyTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: 64 << 10, ErrorLog: slog.NewLogLogger(o.Logger.Handler(), slog.LevelDebug),
	}
	run, stop := context.WithCancel(context.Background())
	s.stop = stop
	s.work.Go(func() { s.table.run(run) })
	s.work.Go(func() {
		if err := s.http.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
			o.Logger.Error("serve metadata", "err", err)
		}
	})
	return s, nil
}

func (o *Options) fill() error {
	def(&o.Listen, "127.0.0.1:8080")
	def(&o.MaxKeys, 1<<20)
	def(&o.MaxKey, 4096)
	def(&o.MaxValue, 64<<20)
	def(&o.MaxBytes, 1<<30)
	def(&o.MaxConns, 1024)
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.MaxKeys < 1 || o.MaxKey < 1 || o.MaxValue < 1 || o.MaxBytes < 1 || o.MaxConns < 1 {
		return errs.New(errs.Invalid, "serve metadata", "limits are %+v, want each of them above zero", o.Limits)
	}
	if o.MaxKey > 16<<10 {
		return errs.New(errs.Invalid, "serve metadata", "keys of %d bytes, want at most %d: they are a part of the URL", o.MaxKey, 16<<10)
	}
	return nil
}

func def[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

func (s *Server) openTable() error {
	var j journal = nothing{}
	if s.opts.Database != "" {
		db, err := openDatabase(s.opts.Database)
		if err != nil {
			return err
		}
		j = db
	}
	t, err := newTable(s.opts, j, &s.counts)
	if err != nil {
		return errors.Join(err, j.close())
	}
	s.table = t
	return nil
}

// Addr returns the host:port that the server listens on.
func (s *Server) Addr() string { return s.listener.Addr().String() }

// Len returns how many keys there are.
func (s *Server) Len() int { n, _, _ := s.table.size(); return n }

// Shutdown ends the server: no new connection, requests under way may end until
// ctx does, changes that were accepted are written.
func (s *Server) Shutdown(ctx context.Context) error {
	s.once.Do(func() {
		s.draining.Store(true)
		err := s.http.Shutdown(ctx)
		if err != nil {
			err = errors.Join(err, s.http.Close())
		}
		s.stop()
		s.work.Wait()
		s.endErr = errors.Join(err, s.table.journal.close())
	})
	return s.endErr
}

// Close is Shutdown without a grace.
func (s *Server) Close() error {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.Shutdown(ctx); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// limited is a listener that bounds the connections that are open.
type limited struct {
	net.Listener
	free   chan struct{} // holds a token for each open connection
	counts *counts
}

// full is what a connection beyond the bound is told.
const full = "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 21\r\n\r\ntoo many connections\n"

// Accept closes connections beyond the bound at once, so that their clients know.
func (l *limited) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		select {
		case l.free <- struct{}{}:
			l.counts.conns.Add(1)
			return &conn{Conn: c, l: l}, nil
		default:
			l.counts.refused.Add(1)
			_, _ = c.Write([]byte(full)) // the buffers of a new connection have room
			_ = c.Close()
		}
	}
}

type conn struct {
	net.Conn
	l    *limited
	once sync.Once
}

func (c *conn) Close() error {
	c.once.Do(func() {
		<-c.l.free
		c.l.counts.conns.Add(-1)
	})
	return c.Conn.Close()
}
