package tideway

import (
	"log/slog"
	"time"

	"github.com/tideway-io/tideway/metadata"
	"github.com/tideway-io/tideway/transport"
)

// Config configures an Engine. The zero value is an engine that listens on a
// free loopback port and finds its peers by host:port.
type Config struct {
	// Listen is the host:port to bind, default "127.0.0.1:0". A taken port is
	// ErrPortInUse unless PortFallback is set.
	Listen string
	// PortFallback takes any free port when the one in Listen is taken.
	PortFallback bool
	// Advertise is the host or host:port that peers dial. Default: the address
	// bound; behind a wildcard address, the default-route interface's.
	Advertise string
	// Interface limits the choice of the advertised address to one interface.
	Interface string

	// Name is the segment's name in Metadata. Without it this engine is not
	// published there and only opens others. Without Metadata the name is the
	// advertised host:port and Name must be empty. A name whose engine answers is
	// ErrBusy; one left by an engine that does not answer is taken over.
	Name string
	// Metadata is where descriptors are published and found. Nil: peer to peer.
	Metadata metadata.Store
	// Cluster keeps those apart who share a metadata store: it is a part of every
	// key. Default none.
	Cluster string
	// MetadataTTL is how long the name of an engine that was killed stays in a
	// metadata store with leases, and within what time a name is published again
	// that the store lost. Default 30 s.
	MetadataTTL time.Duration

	// Mooncake has the engine join a cluster of Mooncake's classic Transfer
	// Engines. Nil: it only tells them what it offers.
	Mooncake *Mooncake

	// Drivers are the transports to open, in order of preference. Nil: those
	// linked into this build (package transport/all).
	Drivers []transport.Driver
	// Transports, if not empty, names the drivers that may be used.
	Transports []string

	// StallTimeout ends transfers whose peer is connected but silent. Default 10 s;
	// all timeouts are 1 ms to 1 h.
	StallTimeout time.Duration
	// ConnectTimeout bounds a connection attempt, name lookup included. Default 5 s.
	ConnectTimeout time.Duration
	// DrainTimeout bounds what Shutdown waits for when its context has no
	// deadline. Default 10 s.
	DrainTimeout time.Duration

	// MaxRequests and MaxBytes bound what is admitted and has not ended.
	// Defaults 65536 requests, at most 2^24, and no limit on bytes.
	MaxRequests int
	MaxBytes    int64
	// Retries is how often one transfer may be tried again after a failure that
	// allows it. Default 3; negative: never.
	Retries int
	// Lanes is the number of bulk connections to a peer, on each rail. Default 1,
	// at most 16.
	Lanes int
	// Rails is how many rails, pairs of network interfaces, are used to one peer
	// at once, where both sides have several. Default 4, at most 8; 1: only the
	// advertised address.
	Rails int
	// DisableChecksum turns payload checksums off on wires that this engine
	// initiates.
	DisableChecksum bool
	// MaxPeerConns bounds accepted connections. Default 4096.
	MaxPeerConns int
	// MaxNotifications bounds notifications received and not yet taken.
	// Default 1024; a sender beyond it gets ErrOverloaded.
	MaxNotifications int

	// Logger takes the engine's log: a warning for requests that fail, at a bounded
	// rate, besides the error that the caller gets. Nil: slog.Default().
	Logger *slog.Logger
}
