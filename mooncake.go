package tideway

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/engine"
	"github.com/tideway-io/tideway/internal/mooncake"
	"github.com/tideway-io/tideway/transport/all"
)

// Mooncake configures an engine that joins a cluster of Mooncake's classic
// Transfer Engines: it serves their TCP data port, reads and writes their
// memory, and takes its ports from where theirs are. Zero fields have the
// documented default. docs/mooncake.md says what is alike and what differs.
type Mooncake struct {
	// MinPort and MaxPort are what free ports are drawn from, for Config.Listen
	// without a port and for the data port. Default 15000 to 17000.
	MinPort, MaxPort uint16
	// MaxHandshake is the longest handshake frame that is taken, in bytes: 1 MiB,
	// the default, to 128 MiB. Engines that exchange descriptors need the same one.
	MaxHandshake int
	// Refresh is how often the descriptors of open Mooncake segments are fetched
	// again, at least 1 s; 0: when a request finds out that one is old.
	Refresh time.Duration
	// StatusTimeout is how long a peer may take to answer while no byte moves.
	// Default Config.StallTimeout.
	StatusTimeout time.Duration
	// Version1 never uses version 2 of the data wire.
	Version1 bool
	// Lanes is the number of bulk connections to a peer, 1 to 16. Default
	// Config.Lanes.
	Lanes int
}

// MooncakeFromEnv reads the MC_* variables of Mooncake's that have a meaning
// here, and says of each whose value is none that it was left at its default, as
// Mooncake does.
func MooncakeFromEnv(getenv func(string) string) (m Mooncake, ignored []string) {
	number := func(name string, lo, hi int, set func(int)) {
		text := strings.TrimSpace(getenv(name))
		if text == "" {
			return
		}
		n, err := strconv.Atoi(text)
		if err != nil || n < lo || n > hi {
			ignored = append(ignored, fmt.Sprintf("%s=%q: want a number from %d to %d", name, text, lo, hi))
			return
		}
		set(n)
	}
	lo, hi := mooncake.MinPort, mooncake.MaxPort
	number("MC_MIN_RPC_PORT", 0, 65535, func(n int) { lo = n })
	number("MC_MAX_RPC_PORT", 0, 65535, func(n int) { hi = n })
	if !mooncake.ValidPorts(lo, hi) {
		ignored = append(ignored, fmt.Sprintf("MC_MIN_RPC_PORT and MC_MAX_RPC_PORT: %d to %d, want both from 1024 to 32767 or from 61000 to 65535, in order", lo, hi))
		lo, hi = mooncake.MinPort, mooncake.MaxPort
	}
	m.MinPort, m.MaxPort = uint16(lo), uint16(hi)
	number("MC_HANDSHAKE_MAX_LENGTH", mooncake.DefaultLimit, mooncake.MaxLimit, func(n int) { m.MaxHandshake = n })
	number("MC_TE_METADATA_REFRESH_INTERVAL_SECONDS", 0, 86400, func(n int) { m.Refresh = time.Duration(n) * time.Second })
	number("MC_TCP_STATUS_TIMEOUT_SEC", 1, 3600, func(n int) { m.StatusTimeout = time.Duration(n) * time.Second })
	number("MC_TCP_MAX_CONNECTIONS_PER_PEER", 1, 16, func(n int) { m.Lanes = n })
	number("MC_TCP_LANES_PER_PEER", 1, 16, func(n int) { m.Lanes = n })
	m.Version1 = getenv("MC_TCP_PROTO") == "1"
	return m, ignored
}

// apply puts m into an engine's configuration.
func (m *Mooncake) apply(to *engine.Config) error {
	ports := [2]uint16{m.MinPort, m.MaxPort}
	if ports == [2]uint16{} {
		ports = [2]uint16{mooncake.MinPort, mooncake.MaxPort}
	}
	switch {
	case ports[0] == 0 || ports[0] > ports[1]:
		return errs.New(errs.Invalid, "open", "Mooncake.MinPort and MaxPort are %d and %d, want a range", m.MinPort, m.MaxPort)
	case m.MaxHandshake != 0 && (m.MaxHandshake < mooncake.DefaultLimit || m.MaxHandshake > mooncake.MaxLimit):
		return errs.New(errs.Invalid, "open", "Mooncake.MaxHandshake is %d, want %d to %d", m.MaxHandshake, mooncake.DefaultLimit, mooncake.MaxLimit)
	case m.Refresh < 0 || m.Refresh > 0 && m.Refresh < time.Second || m.StatusTimeout < 0 || m.StatusTimeout > time.Hour:
		return errs.New(errs.Invalid, "open", "Mooncake.Refresh is %v and StatusTimeout %v, want at least 1s, and 0 to 1h", m.Refresh, m.StatusTimeout)
	case m.Lanes < 0 || m.Lanes > 16:
		return errs.New(errs.Invalid, "open", "Mooncake.Lanes is %d, want 0 to 16", m.Lanes)
	}
	to.Ports, to.HandshakeLimit, to.Refresh = ports, m.MaxHandshake, m.Refresh
	d := all.Mooncake(all.MooncakeOptions{Ports: ports, StatusTimeout: m.StatusTimeout, Version1: m.Version1, Lanes: m.Lanes})
	to.Drivers = append(slices.Clip(to.Drivers), d)
	if len(to.Transports) > 0 && !slices.Contains(to.Transports, d.Name()) { // those named are for native peers
		to.Transports = append(slices.Clip(to.Transports), d.Name())
	}
	return nil
}
