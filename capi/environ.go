//go:build linux && cgo

package main

import (
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/tideway-io/tideway/errs"
)

// environment is what Mooncake's MC_* variables ask of an engine of this library.
// What they ask of its wire, and of the stores, tideway.MooncakeFromEnv and the
// stores read; docs/mooncake.md has the table of all of them.
type environment struct {
	defaultPort    int           // of a name that has none
	legacyBinding  bool          // with a store, the port is that of the engine's name
	ipv6           bool          // bind the IPv6 wildcard
	bindAddress    string        // advertised with a store; empty: chosen
	connectTimeout time.Duration // of a connection attempt
	sliceTimeout   time.Duration // of every request; 0: none
	logLevel       slog.Level
	logDir         string // empty: standard error
}

// refused are variables that ask for what cannot be given: an engine that went
// another way in silence would be worse than none.
var refused = [...]string{"MC_FORCE_HCA", "MC_FORCE_MNNVL", "MC_FORCE_MUSA", "MC_MACA_HOST_TRANSPORT", "MC_RDMA_BIND_ADDRESS"}

// readEnvironment reads the variables by lookup, such as os.LookupEnv. A value
// that cannot be is left out and noted, as in Mooncake.
func readEnvironment(lookup func(string) (string, bool)) (environment, []string, error) {
	for _, name := range refused {
		if value, ok := lookup(name); ok {
			return environment{}, nil, errs.New(errs.Unsupported, "create engine", "%s=%q: this build moves bytes by tcp and shared memory; unset it", name, value)
		}
	}
	r := reader{lookup: lookup}
	e := environment{
		defaultPort:    r.number("MC_HANDSHAKE_PORT", 1, 65535, 12001),
		legacyBinding:  r.set("MC_LEGACY_RPC_PORT_BINDING"),
		ipv6:           r.set("MC_USE_IPV6"),
		bindAddress:    r.text("MC_TCP_BIND_ADDRESS"),
		connectTimeout: time.Duration(r.number("MC_HANDSHAKE_CONNECT_TIMEOUT", 1, 3599, 5)) * time.Second,
		sliceTimeout:   time.Duration(r.number("MC_SLICE_TIMEOUT", 1, 65535, 0)) * time.Second,
		logLevel:       r.level("MC_LOG_LEVEL"),
		logDir:         r.text("MC_LOG_DIR"),
	}
	return e, r.notes, nil
}

// reader reads variables and notes those it cannot.
type reader struct {
	lookup func(string) (string, bool)
	notes  []string
}

func (r *reader) text(name string) string {
	value, _ := r.lookup(name)
	return value
}

// set says whether the variable is there, be it as "0".
func (r *reader) set(name string) bool {
	_, ok := r.lookup(name)
	return ok
}

// number reads a number within bounds, or returns what to take instead.
func (r *reader) number(name string, low, high, otherwise int) int {
	value, ok := r.lookup(name)
	if !ok {
		return otherwise
	}
	n, err := strconv.Atoi(value)
	if err != nil || n < low || n > high {
		r.notes = append(r.notes, fmt.Sprintf("%s=%q is not used: want a number from %d to %d", name, value, low, high))
		return otherwise
	}
	return n
}

func (r *reader) level(name string) slog.Level {
	levels := map[string]slog.Level{"TRACE": slog.LevelDebug, "INFO": slog.LevelInfo, "WARNING": slog.LevelWarn, "ERROR": slog.LevelError}
	value, ok := r.lookup(name)
	if l, known := levels[value]; known || !ok {
		return l
	}
	r.notes = append(r.notes, fmt.Sprintf("%s=%q is not used: want TRACE, INFO, WARNING or ERROR", name, value))
	return slog.LevelInfo
}
