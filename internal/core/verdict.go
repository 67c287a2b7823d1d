package core

import "github.com/tideway-io/tideway/errs"

// verdict is what a failed try means for its transfer.
type verdict uint8

const (
	final verdict = iota // the transfer ends: trying again would end alike, or nobody wants it any more
	same                 // again on the same path, within the budget
	later                // the same after a pause: the peer has too much to do
	next                 // on the next path, at once; ends if there is none
	wait                 // on the next path, or on this one after its rest, within the budget
)

// scope is how far a failure reaches when Post refuses a slice with it.
type scope uint8

const (
	sliceOnly scope = iota // this slice is wrong, others may pass
	pathToo                // the path is of no use until it is connected anew
)

// rule is one row of the retry table.
type rule struct {
	slice     verdict // a posted slice completed with the code
	connect   verdict // a connection attempt failed with it, or the path went down
	scope     scope   // how far it reaches
	grows     bool    // rests get longer; else the answer was quick and sure, and RestMin will do
	retryable bool    // the user may submit the same request again
}

// ruleOf is the retry table; docs/adr/0010-retry-table.md has the reasons. Codes
// that are not listed say that the request itself is wrong, stale or unwanted:
// they end the transfer and say nothing about the path.
func ruleOf(c errs.Code) rule {
	switch c {
	case errs.LaneLost:
		return rule{same, wait, pathToo, true, true}
	case errs.Closed: // the endpoint was closed under the slice
		return rule{same, final, pathToo, false, true}
	case errs.Checksum:
		return rule{same, wait, pathToo, true, true}
	case errs.Overloaded, errs.NoCredit, errs.Busy:
		return rule{later, wait, pathToo, true, true}
	case errs.Unreachable:
		return rule{next, wait, pathToo, true, true}
	case errs.Unresponsive:
		return rule{next, next, pathToo, true, true}
	case errs.Refused, errs.NameLookup, errs.Draining:
		return rule{next, next, pathToo, false, true}
	case errs.Unsupported, errs.NoCommonTransport:
		return rule{next, next, sliceOnly, false, false}
	case errs.Restarted, errs.SelfDial:
		return rule{final, final, pathToo, false, false}
	}
	return rule{}
}
