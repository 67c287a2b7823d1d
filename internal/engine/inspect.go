package engine

import (
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/inspect"
)

// maxInspected bounds the buffers in a snapshot.
const maxInspected = 1000

// Inspect returns the engine's state at this instant.
func (e *Engine) Inspect() inspect.Snapshot {
	addr, reason := e.listener.Advertised()
	s := inspect.Snapshot{
		At: time.Now(), Name: string(e.name), Incarnation: e.incarnation.String(), Addr: addr, AddrReason: reason,
		State:  [...]string{"open", "draining", "closed", "poisoned"}[e.state.Load()],
		Uptime: time.Since(e.started), Peers: e.peers.observe(), Buffers: e.local.Inspect(maxInspected),
		Counts: e.count(),
	}
	for _, t := range e.transports.open {
		s.Transports = append(s.Transports, inspect.Transport{Name: t.name, Open: true})
	}
	s.Transports = append(s.Transports, e.transports.closed...)
	s.Conditions = e.conditions()
	return s
}

func (e *Engine) count() inspect.Counts {
	requests, bytes := e.admission.inside()
	c := &e.counts
	return inspect.Counts{
		BatchesLive: c.batches.Load(), Buffers: int64(e.local.Len()), QueuedRequests: requests, QueuedBytes: bytes,
		RequestsTotal: c.requests.Load(), RequestsFailed: c.failures(), BytesRead: c.bytesRead.Load(), BytesWritten: c.bytesWritten.Load(),
		Retries: c.retries.Load(), ChecksumErrors: c.checksums.Load(), Refused: c.refused.Load(), Denied: e.local.Refused().Denied,
		Republished:       e.publication.again.Load(),
		NotificationsSent: c.noticesSent.Load(), Notifications: c.noticesIn.Load(),
	}
}

// conditions are the health problems that the engine knows of.
func (e *Engine) conditions() []inspect.Condition {
	var out []inspect.Condition
	if f := e.fault.Load(); f != nil {
		out = append(out, inspect.Condition{Name: "poisoned", Severity: "critical", Cause: f.Detail, Fix: "open a new engine"})
	}
	if f := e.publication.failed.Load(); f != nil {
		c := inspect.Condition{Name: "metadata_degraded", Severity: "warning", Cause: f.Error(), Fix: "see that the metadata store runs and can be reached; publishing is tried again until it succeeds"}
		if errs.Of(f) == errs.Busy {
			c.Name, c.Severity, c.Fix = "name_taken", "critical", "give each engine a name of its own and restart this one"
		}
		out = append(out, c)
	}
	for _, t := range e.transports.closed {
		out = append(out, inspect.Condition{Name: "transport_unavailable", Severity: "info", Cause: t.Name + ": " + t.Reason, Fix: "see the transport's page in docs/transports"})
	}
	return out
}
