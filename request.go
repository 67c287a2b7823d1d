package tideway

import (
	"time"

	"github.com/tideway-io/tideway/transport"
)

// Op is what a request does.
type Op = transport.Op

// The operations. The zero value is invalid.
const (
	Read  = transport.Read  // remote range into local range
	Write = transport.Write // local range into remote range
)

// Priority is a request's urgency. The zero value is Normal.
type Priority int8

// The priorities.
const (
	Urgent Priority = 1
	Normal Priority = 0
	Bulk   Priority = -1
)

// Request asks for one transfer.
type Request struct {
	Op     Op
	Local  Range  // its length is the request's; zero length completes at once
	Remote Remote // where it starts at the peer
	// Priority puts the request ahead of, or behind, others.
	Priority Priority
	// Deadline ends the transfer; zero: none.
	Deadline time.Time
	// Intent and Tenant select contracts and policies; both may be empty.
	Intent string
	Tenant string
	// Transport, if set, is the only transport that may be used.
	Transport string
}
