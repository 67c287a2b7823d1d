//go:build linux && cgo

package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/tideway-io/tideway"
	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/metadata/all"
	"github.com/tideway-io/tideway/metadata/redis"
)

// start opens an engine with the store that conn names.
func start(ctx context.Context, conn string, configure func(*environment) (tideway.Config, error)) (*engine, error) {
	env, notes, err := readEnvironment(os.LookupEnv)
	if err != nil {
		return nil, err
	}
	cfg, err := configure(&env)
	if err != nil {
		return nil, err
	}
	e := &engine{env: env}
	if e.log, e.logFile, err = logger(env); err != nil {
		return nil, err
	}
	cfg.Logger = e.log
	mc, more := tideway.MooncakeFromEnv(os.Getenv)
	cfg.Mooncake = &mc
	for _, note := range append(notes, more...) {
		e.log.Warn(note)
	}
	lib.quiet.Do(redis.Silence)
	if e.store, err = all.Open(conn, os.Getenv); err == nil {
		if e.store != nil {
			cfg.Metadata = e.store
		}
		e.tw, err = tideway.Open(ctx, cfg)
	}
	if err != nil {
		return nil, errors.Join(err, e.letGo())
	}
	return e, nil
}

// letGo closes what the engine was given, after it has ended.
func (e *engine) letGo() error {
	var failed []error
	if e.store != nil {
		failed = append(failed, e.store.Close())
	}
	if e.logFile != nil {
		failed = append(failed, e.logFile.Close())
	}
	return errors.Join(failed...)
}

// configure makes the engine's configuration, but for its store. It binds what
// Mooncake binds: every address.
func configure(env environment, conn, name string, getenv func(string) string) tideway.Config {
	host, port := split(name, env.defaultPort)
	cfg := tideway.Config{Listen: "0.0.0.0:0", ConnectTimeout: env.connectTimeout}
	if env.ipv6 {
		cfg.Listen = "[::]:0"
	}
	if conn == all.PeerToPeer {
		cfg.Advertise = host
		return cfg
	}
	cfg.Name, cfg.Cluster, cfg.Advertise = name, all.Cluster(getenv), env.bindAddress
	if env.legacyBinding {
		cfg.Listen = strings.TrimSuffix(cfg.Listen, "0") + strconv.Itoa(port)
		cfg.Advertise = host
	}
	return cfg
}

// logger writes to standard error, or to a file of its own in a directory.
func logger(env environment) (*slog.Logger, *os.File, error) {
	options := &slog.HandlerOptions{Level: env.logLevel}
	if env.logDir == "" {
		return slog.New(slog.NewTextHandler(os.Stderr, options)), nil, nil
	}
	f, err := os.OpenFile(filepath.Join(env.logDir, "tideway."+strconv.Itoa(os.Getpid())+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, nil, &errs.Error{Op: "open log", Detail: "MC_LOG_DIR must name a directory that can be written", Reason: errs.Invalid, Err: err}
	}
	return slog.New(slog.NewTextHandler(f, options)), f, nil
}

// split takes a server name apart: a host, "[v6]", "[v6]:port", "host:port", or a
// bare IPv6 address. Without a port, or with a bad one, it is the one given.
func split(name string, port int) (string, int) {
	if _, err := netip.ParseAddr(name); err == nil {
		return name, port
	}
	if host, p, err := net.SplitHostPort(name); err == nil {
		if n, err := strconv.ParseUint(p, 10, 16); err == nil && n > 0 {
			port = int(n)
		}
		return host, port
	}
	return strings.Trim(name, "[]"), port
}
