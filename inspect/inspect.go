// Package inspect is the engine's state at one instant, as plain data: what the
// command prints, what metrics are made of, what the dashboard draws.
package inspect

import "time"

// Snapshot is an engine at one instant. All sizes are bytes.
type Snapshot struct {
	At          time.Time     `json:"at"`
	Name        string        `json:"name"`
	Incarnation string        `json:"incarnation"`
	Addr        string        `json:"addr"`
	AddrReason  string        `json:"addr_reason"` // why this address is advertised
	State       string        `json:"state"`       // open, draining, closed, poisoned
	Uptime      time.Duration `json:"uptime_ns"`
	Transports  []Transport   `json:"transports"`
	Buffers     []Buffer      `json:"buffers"` // at most 1000; Counts.Buffers has them all
	Peers       []Peer        `json:"peers"`
	Counts      Counts        `json:"counts"`
	Conditions  []Condition   `json:"conditions"`
}

// Transport is one driver and whether it is open.
type Transport struct {
	Name   string `json:"name"`
	Open   bool   `json:"open"`
	Reason string `json:"reason,omitempty"` // why it is not
}

// Buffer is one local registration.
type Buffer struct {
	Name     string `json:"name"`
	Addr     uint64 `json:"addr"`
	Length   uint64 `json:"length"`
	Location string `json:"location"`
	Access   string `json:"access"`
	Key      uint32 `json:"key"`
	Pins     int64  `json:"pins"`
}

// Peer is one remote segment that this engine knows.
type Peer struct {
	Segment     string `json:"segment"`
	Incarnation string `json:"incarnation"`
	Version     uint64 `json:"version"`
	Buffers     int    `json:"buffers"`
	Paths       []Path `json:"paths"`
}

// Path is one transport to one peer.
type Path struct {
	Transport string `json:"transport"`
	State     string `json:"state"` // idle, connecting, up, resting
	Error     string `json:"error,omitempty"`
	Rails     []Rail `json:"rails"`
}

// Rail is one rail of a path.
type Rail struct {
	Local          string  `json:"local"`
	Remote         string  `json:"remote"`
	Lanes          int     `json:"lanes"`
	InFlight       uint64  `json:"in_flight"`
	Window         uint64  `json:"window"`
	BytesPerSecond float64 `json:"bytes_per_second"`
	BytesOut       uint64  `json:"bytes_out"`
	BytesIn        uint64  `json:"bytes_in"`
	Checksums      uint64  `json:"checksum_errors"`
	Reconnects     uint64  `json:"reconnects"`
}

// Counts are totals since the engine was opened, and present levels.
type Counts struct {
	BatchesLive       int64             `json:"batches_live"`
	Buffers           int64             `json:"buffers"`
	QueuedRequests    int64             `json:"queued_requests"` // admitted and not ended
	QueuedBytes       int64             `json:"queued_bytes"`
	RequestsTotal     uint64            `json:"requests_total"`
	RequestsFailed    map[string]uint64 `json:"requests_failed_total"` // by reason
	BytesRead         uint64            `json:"bytes_read_total"`
	BytesWritten      uint64            `json:"bytes_written_total"`
	Retries           uint64            `json:"retries_total"`
	ChecksumErrors    uint64            `json:"checksum_errors_total"`
	Refused           uint64            `json:"refused_total"`     // submits that ended in ErrOverloaded
	Denied            uint64            `json:"denied_total"`      // inbound requests refused by access or bounds
	Republished       uint64            `json:"republished_total"` // how often the metadata store had lost this engine
	NotificationsSent uint64            `json:"notifications_sent_total"`
	Notifications     uint64            `json:"notifications_received_total"`
}

// Condition is a named health problem.
type Condition struct {
	Name     string    `json:"name"`
	Severity string    `json:"severity"` // info, warning, critical
	Cause    string    `json:"cause"`
	Fix      string    `json:"fix"`
	Since    time.Time `json:"since"`
}
