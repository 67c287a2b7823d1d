//go:build !race

package tcp

import "github.com/zeebo/xxh3"

func raceSend()    {}
func raceReceive() {}

// move copies registered or local memory, and sum hashes it. With the race
// detector they do it out of its sight; see race_unsafe.go.
func move(to, from []byte) int { return copy(to, from) }
func sum(p []byte) uint64      { return xxh3.Hash(p) }
