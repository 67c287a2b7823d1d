//go:build linux && cgo

package main

// #include "include/transfer_engine_c.h"
import "C"

import "github.com/tideway-io/tideway/errs"

// classic is the interface's number for each reason of failure. Functions that
// return a status give it as it is, those that return an int negated; what is
// not in the table is "context".
var classic = map[errs.Code]int{
	errs.Invalid: 1, errs.OutOfRange: 1, errs.Overflow: 1, errs.SelfDial: 1,
	errs.Overloaded: 2, errs.NoCredit: 2,
	errs.NotRegistered: 3, errs.Denied: 3,
	errs.Busy:        4,
	errs.Overlap:     7,
	errs.Unsupported: 8, errs.NoCommonTransport: 8,
	errs.NameLookup:  101,
	errs.Unreachable: 102, errs.Refused: 102, errs.Unresponsive: 102, errs.LaneLost: 102, errs.PortInUse: 102,
	errs.NotFound: 200, errs.Stale: 200, errs.Restarted: 200, errs.Revoked: 200,
	errs.Deadline: 301,
	errs.Internal: 302,
}

const otherFailure = 202

// statusOf returns the positive number of err, 0 for nil.
func statusOf(err error) int {
	if err == nil {
		return 0
	}
	if n, ok := classic[errs.Of(err)]; ok {
		return n
	}
	return otherFailure
}

// resultOf returns the negative number of err, 0 for nil. What has no transport
// is "not implemented" there, as the original has no other number for it.
func resultOf(err error) int {
	if n := statusOf(err); n != 8 {
		return -n
	}
	return -303
}

// stateOf returns the state of a task that has ended with err.
func stateOf(err error) uint32 {
	switch errs.Of(err) {
	case errs.OK:
		return C.STATUS_COMPLETED
	case errs.Canceled:
		return C.STATUS_CANCELED
	case errs.Deadline:
		return C.STATUS_TIMEOUT
	}
	return C.STATUS_FAILED
}
