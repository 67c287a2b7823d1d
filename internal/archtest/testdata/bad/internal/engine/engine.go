// Package engine names a driver and is long.
package engine

import (
	_ "unsafe"

	"github.com/tideway-io/tideway/transport/shm"
)

// Run runs.
func Run() {
	shm.Exported++
	shm.Open()
	shm.Open()
	shm.Open()
	shm.Open()
	shm.Open()
	shm.Open()
	shm.Open()
	shm.Open()
	shm.Open()
	shm.Open()
	shm.Open()
	shm.Open()
	shm.Open()
	shm.Open()
	shm.Open()
	shm.Open()
	shm.Open()
	shm.Open()
	shm.Open()
	shm.Open()
	shm.Open()
	shm.Open()
	shm.Open()
	shm.Open()
	shm.Open()
	shm.Open()
	shm.Open()
	shm.Open()
	shm.Open()
	shm.Open()
	shm.Open()
	shm.Open()
	shm.Open()
	shm.Open()
	shm.Open()
	shm.Open()
	shm.Open()
	shm.Open()
	shm.Open()
	shm.Open()
	shm.Open()
	shm.Open()
	shm.Open()
	shm.Open()
	shm.Open()
	shm.Open()
	shm.Open()
	shm.Open()
	shm.Open()
	shm.Open()
	shm.Open()
	shm.Open()
	shm.Open()
	shm.Open()
	shm.Open()
	shm.Open()
	shm.Open()
	shm.Open()
	shm.Open()
	shm.Open()
	shm.Open()
	shm.Open()
	shm.Open()
	shm.Open()
	shm.Open()
	shm.Open()
	shm.Open()
	shm.Open()
	shm.Open()
	shm.Open()
}

// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.
// A long file.

// Other is here for the line above.
func Other() { now() }

//go:linkname now runtime.nanotime
func now() int64
