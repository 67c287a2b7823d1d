//go:build race && linux

package sys

import (
	"runtime"
	"unsafe"
)

// raceSend and raceReceive tell the race detector that what comes before a
// message is sent comes before all that its receiver does, where both are in one
// process. It cannot see that through the kernel. As in package syscall one
// address stands for all sockets.
func raceSend()    { runtime.RaceReleaseMerge(raceEdge()) }
func raceReceive() { runtime.RaceAcquire(raceEdge()) }

func raceEdge() unsafe.Pointer {
	return unsafe.Pointer(&ErrAgain) // sound: only an address, of this package's own
}
