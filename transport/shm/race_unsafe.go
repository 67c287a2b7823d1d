//go:build race

package shm

import (
	"runtime"
	"unsafe"
)

// raceWrote tells the race detector what the kernel wrote for us.
func raceWrote(b []byte) {
	if len(b) > 0 {
		runtime.RaceWriteRange(unsafe.Pointer(unsafe.SliceData(b)), len(b)) // sound: only an address, of len(b) bytes
	}
}
