package server

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

// counts are totals since the start, and the connections that are open.
type counts struct {
	conns                atomic.Int64
	refused              atomic.Uint64
	expired, renewals    atomic.Uint64
	commits, commitNanos atomic.Uint64
	mu                   struct {
		sync.Mutex
		requests map[string]uint64 // by labels, of which there are few
	}
}

// request counts one request. Methods that nobody serves are one.
func (c *counts) request(method string, code int) {
	if !slices.Contains([]string{"GET", "PUT", "DELETE", "PATCH"}, method) {
		method = "other"
	}
	labels := `method="` + method + `",code="` + strconv.Itoa(code) + `"`
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.requests == nil {
		c.mu.requests = make(map[string]uint64)
	}
	c.mu.requests[labels]++
}

// metrics are the server's figures in Prometheus's text format.
func (s *Server) metrics() string {
	keys, leased, bytes := s.table.size()
	c := &s.counts
	var b strings.Builder
	metric := func(name, kind, help string, value any) {
		fmt.Fprintf(&b, "# HELP tideway_metadata_%s %s\n# TYPE tideway_metadata_%s %s\n", name, help, name, kind)
		if value != nil {
			fmt.Fprintf(&b, "tideway_metadata_%s %v\n", name, value)
		}
	}
	up := 1
	if s.draining.Load() || s.table.broken.Load() != nil {
		up = 0
	}
	metric("healthy", "gauge", "1 while changes can be made.", up)
	metric("keys", "gauge", "Keys.", keys)
	metric("leased_keys", "gauge", "Keys that end unless they are renewed.", leased)
	metric("bytes", "gauge", "Bytes of all keys and values.", bytes)
	metric("incoming_bytes", "gauge", "Bytes of values that are being received.", s.incoming.Load())
	metric("connections", "gauge", "Open connections.", c.conns.Load())
	metric("refused_connections_total", "counter", "Connections beyond the limit.", c.refused.Load())
	metric("expired_keys_total", "counter", "Keys that nobody renewed.", c.expired.Load())
	metric("renewals_total", "counter", "Renewals.", c.renewals.Load())
	metric("commits_total", "counter", "Writes of the database, of one or more changes.", c.commits.Load())
	metric("commit_seconds_total", "counter", "Time spent in them.", float64(c.commitNanos.Load())/1e9)
	metric("requests_total", "counter", "Requests by method and status.", nil)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, labels := range slices.Sorted(maps.Keys(c.mu.requests)) {
		fmt.Fprintf(&b, "tideway_metadata_requests_total{%s} %d\n", labels, c.mu.requests[labels])
	}
	return b.String()
}
