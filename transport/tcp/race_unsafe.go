//go:build race

package tcp

import (
	"encoding/binary"
	"runtime"
	"unsafe"

	"github.com/zeebo/xxh3"
)

// ioSync orders, for the race detector, what was sent before what is received
// after, as package syscall does for its own calls. It holds nothing.
var ioSync int64

func raceSend()    { runtime.RaceReleaseMerge(unsafe.Pointer(&ioSync)) } // sound: only an address
func raceReceive() { runtime.RaceAcquire(unsafe.Pointer(&ioSync)) }      // sound: only an address

// Who else uses registered or local memory while it is moved is between the
// requests of peers and its owner. It is no more a data race when a lane copies
// it in Go than when the kernel or a NIC does: so the race detector does not look.

// move copies; the built-in copy would be instrumented even here.
//
//go:norace
func move(to, from []byte) int {
	n := min(len(to), len(from))
	k := 0
	for ; k+8 <= n; k += 8 {
		binary.LittleEndian.PutUint64(to[k:], binary.LittleEndian.Uint64(from[k:]))
	}
	for ; k < n; k++ {
		to[k] = from[k]
	}
	return n
}

// sum hashes; only the parts of xxh3 that are written in Go, which short inputs
// go through, are instrumented.
func sum(p []byte) uint64 {
	var short [256]byte
	if len(p) <= len(short) {
		return xxh3.Hash(short[:move(short[:], p)])
	}
	return xxh3.Hash(p)
}
