package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/listen"
	"github.com/tideway-io/tideway/internal/wire"
	"github.com/tideway-io/tideway/metadata"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
)

// Discover asks the engine at addr for its descriptor. It is handed how to dial,
// the asker's own descriptor, and how to fetch the buffers of a long one.
type Discover func(ctx context.Context, dial func(ctx context.Context, addr string) (net.Conn, error), addr string,
	own *segment.Desc, pages func(ctx context.Context, d *segment.Desc, buffers int) error) (*segment.Desc, error)

// Config is the facade's configuration with the drivers and the discovery filled
// in; the facade documents the other fields.
type Config struct {
	Discover Discover // used without Metadata

	Listen           string
	PortFallback     bool
	Ports            [2]uint16 // to choose from when Listen names none
	Advertise        string
	Interface        string
	Name             string
	Metadata         metadata.Store
	Cluster          string
	MetadataTTL      time.Duration
	Drivers          []transport.Driver
	Transports       []string
	StallTimeout     time.Duration
	ConnectTimeout   time.Duration
	DrainTimeout     time.Duration
	MaxRequests      int
	MaxBytes         int64
	Retries          int
	Lanes            int
	Rails            int
	DisableChecksum  bool
	MaxPeerConns     int
	MaxNotifications int
	HandshakeLimit   int           // bytes of Mooncake's handshake frames; 0: 1 MiB
	Refresh          time.Duration // of the descriptors of Mooncake's engines; 0: on demand
	Logger           *slog.Logger
}

// Bounds of what a configuration may ask for.
const (
	maxLanes    = 16
	maxRails    = 8
	maxRequests = 1 << 24
	maxTimeout  = time.Hour
)

// fill sets the documented defaults and returns everything that is wrong.
func (c *Config) fill() error {
	def(&c.StallTimeout, 10*time.Second)
	def(&c.ConnectTimeout, 5*time.Second)
	def(&c.DrainTimeout, 10*time.Second)
	def(&c.MetadataTTL, 30*time.Second)
	def(&c.MaxRequests, 1<<16)
	def(&c.MaxBytes, math.MaxInt64)
	def(&c.Retries, 3)
	def(&c.Lanes, 1)
	def(&c.Rails, 4)
	def(&c.MaxPeerConns, 4096)
	def(&c.MaxNotifications, 1024)
	c.Retries = max(c.Retries, 0)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	var wrong []string
	bad := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	if err := listen.CheckListen(c.Listen); err != nil {
		bad("Listen is %s", detail(err))
	}
	if err := listen.CheckAdvertise(c.Advertise); err != nil {
		bad("Advertise is %s", detail(err))
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{{"StallTimeout", c.StallTimeout}, {"ConnectTimeout", c.ConnectTimeout}, {"DrainTimeout", c.DrainTimeout}, {"MetadataTTL", c.MetadataTTL}} {
		if d.value < time.Millisecond || d.value > maxTimeout {
			bad("%s is %v, want 1ms to %v", d.name, d.value, maxTimeout)
		}
	}
	for _, n := range []struct {
		name       string
		value, top int
	}{
		{"MaxRequests", c.MaxRequests, maxRequests}, {"Lanes", c.Lanes, maxLanes}, {"Rails", c.Rails, maxRails},
		{"MaxPeerConns", c.MaxPeerConns, 1 << 20}, {"MaxNotifications", c.MaxNotifications, 1 << 20},
	} {
		if n.value < 1 || n.value > n.top {
			bad("%s is %d, want 1 to %d", n.name, n.value, n.top)
		}
	}
	if c.MaxBytes < 1 {
		bad("MaxBytes is %d, want at least 1; 0 is no limit", c.MaxBytes)
	}
	if c.Name != "" && c.Metadata == nil {
		bad("Name is %q without Metadata; peer to peer, the name is the advertised host:port", c.Name)
	}
	if c.Cluster != "" && c.Metadata == nil {
		bad("Cluster is %q without Metadata; peer to peer, there is nothing to share", c.Cluster)
	}
	c.drivers(bad)
	if len(wrong) > 0 {
		return errs.New(errs.Invalid, "open", "%s", strings.Join(wrong, "; "))
	}
	return nil
}

// drivers keeps the drivers that Transports names.
func (c *Config) drivers(bad func(format string, args ...any)) {
	var have []string
	kept := make([]transport.Driver, 0, len(c.Drivers))
	for _, d := range c.Drivers {
		if slices.Contains(have, d.Name()) {
			bad("Drivers has two called %q; leave one out", d.Name())
		}
		have = append(have, d.Name())
		if len(c.Transports) == 0 || slices.Contains(c.Transports, d.Name()) {
			kept = append(kept, d)
		}
	}
	for _, t := range c.Transports {
		if !slices.Contains(have, t) {
			bad("Transports names %q, which is not in this build; it has %s", t, strings.Join(have, ", "))
		}
	}
	c.Drivers = kept
}

// detail is what an error says, without its operation and kind.
func detail(err error) string {
	var e *errs.Error
	if errors.As(err, &e) {
		return e.Detail
	}
	return err.Error()
}

// limits are what transports are told.
func (c *Config) limits() transport.Limits {
	return transport.Limits{
		StallTimeout: c.StallTimeout, Lanes: c.Lanes, Checksum: !c.DisableChecksum,
		MaxFrame: wire.MaxFrame, MaxInbound: c.MaxPeerConns,
	}
}

func def[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

// transportNames lists the configured drivers.
func (c *Config) transportNames() string {
	names := make([]string, len(c.Drivers))
	for i, d := range c.Drivers {
		names[i] = d.Name()
	}
	return fmt.Sprint(names)
}
