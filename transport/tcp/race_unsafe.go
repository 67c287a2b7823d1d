//go:build race

package tcp

import (
	"runtime"
	"unsafe"
)

// ioSync orders, for the race detector, what was sent before what is received
// after, as package syscall does for its own calls. It holds nothing.
var ioSync int64

// raceSend and raceReceive tell the race detector what a raw system call on
// ranges read or wrote, n bytes in all.
func raceSend(ranges [][]byte, n int) {
	runtime.RaceReleaseMerge(unsafe.Pointer(&ioSync)) // sound: only an address
	raceRanges(ranges, n, runtime.RaceReadRange)
}

func raceReceive(ranges [][]byte, n int) {
	raceRanges(ranges, n, runtime.RaceWriteRange)
	runtime.RaceAcquire(unsafe.Pointer(&ioSync)) // sound: only an address
}

func raceRanges(ranges [][]byte, n int, note func(unsafe.Pointer, int)) {
	if n <= 0 {
		return
	}
	for _, b := range ranges {
		if n = n - len(b); len(b) > 0 {
			// Sound: the first min(len(b), what is left of n) bytes of b exist.
			note(unsafe.Pointer(unsafe.SliceData(b)), min(len(b), n+len(b)))
		}
		if n <= 0 {
			return
		}
	}
}
