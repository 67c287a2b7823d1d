//go:build linux && cgo

// Command capi is the C library: Mooncake's transfer engine interface, and what
// Tideway adds to it, over package tideway. Built with -buildmode=c-shared
// (make lib) it is libtideway.so, also known as libtransfer_engine.so.
//
// A call goes through three layers. gate.c has the functions that programs link
// against; it answers for a forked child, and for the state of a task, which it
// reads from the table (table.h) that Go writes. Everything else enters Go by
// an exported function of exports.go, which turns C's values into Go's and
// errors into the interface's numbers. Behind those, an engine, a batch and the
// table are ordinary Go: engine.go, memory.go, batch.go, table.go.
//
// Handles are numbers that are never used twice, so one of something destroyed
// is refused instead of followed.
package main

// #cgo CFLAGS: -O2 -fvisibility=hidden
// #cgo LDFLAGS: -lpthread
import "C"

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/tideway-io/tideway/errs"
)

// main is not called in a library.
func main() {}

// library is what the process has of this library: C has no other place to keep
// it than the process.
type library struct {
	engines  sync.Map // handle to *engine
	handles  atomic.Uint64
	batches  table
	graceful sync.Once // what enableGracefulShutdown starts
	quiet    sync.Once // what keeps a store's client from the host's standard error
}

var lib library

// add gives e a handle. Handles look like pointers, which programs take them for:
// never NULL, aligned.
func (l *library) add(e *engine) uint64 {
	e.handle = l.handles.Add(1) << 4
	l.engines.Store(e.handle, e)
	return e.handle
}

// engine returns the engine of a handle.
func (l *library) engine(handle uint64) (*engine, error) {
	e, ok := l.engines.Load(handle)
	if !ok {
		return nil, errs.New(errs.Invalid, "use engine", "%#x is no engine of this process; createTransferEngine makes one, destroyTransferEngine ends it", handle)
	}
	return e.(*engine), nil
}

// remove takes the engine out of use and returns it, to one caller only.
func (l *library) remove(handle uint64) (*engine, bool) {
	e, ok := l.engines.LoadAndDelete(handle)
	if !ok {
		return nil, false
	}
	return e.(*engine), true
}

// null is the error for an argument that must not be NULL.
func null(op, what string) error {
	return errs.New(errs.Invalid, op, "%s is NULL", what)
}

// guard turns a panic below an exported function into an error: a bug of ours
// must not end the host's process.
func guard(err *error) {
	if p := recover(); p != nil {
		*err = errs.New(errs.Internal, "call", "%s", fmt.Sprint(p))
	}
}
