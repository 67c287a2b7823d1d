package main

import (
	"bytes"
	"encoding/binary"
)

// pattern is the content that a verified round moves: pseudo-random bytes that
// depend on the run, the round and the byte's offset, so that bytes of another
// run, another round or another place never pass.
type pattern uint64

// newPattern returns the pattern of one round of one run.
func newPattern(run, round uint64) pattern { return pattern(mix64(run + mix64(round+1))) }

// mix64 is a bijection of 64-bit words whose output looks random (the finalizer
// of splitmix64).
func mix64(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// word returns the pattern's bytes [8i, 8i+8) as a little-endian number.
func (k pattern) word(i uint64) uint64 { return mix64(uint64(k) + (i+1)*0x9e3779b97f4a7c15) }

// fill writes the pattern's bytes [off, off+len(p)) into p.
func (k pattern) fill(p []byte, off uint64) {
	var edge [8]byte
	if lead := off & 7; lead != 0 {
		binary.LittleEndian.PutUint64(edge[:], k.word(off/8))
		n := copy(p, edge[lead:])
		p, off = p[n:], off+uint64(n)
	}
	i := off / 8
	for ; len(p) >= 8; i++ {
		binary.LittleEndian.PutUint64(p, k.word(i))
		p = p[8:]
	}
	binary.LittleEndian.PutUint64(edge[:], k.word(i))
	copy(p, edge[:])
}

// mismatch returns the index of the first byte of p that is not the pattern's
// byte at off plus that index, or -1.
func (k pattern) mismatch(p []byte, off uint64) int {
	var want [4096]byte
	for at := 0; at < len(p); at += len(want) {
		got := p[at:min(at+len(want), len(p))]
		k.fill(want[:len(got)], off+uint64(at))
		if bytes.Equal(got, want[:len(got)]) {
			continue
		}
		for i := range got {
			if got[i] != want[i] {
				return at + i
			}
		}
	}
	return -1
}

// poison fills p with what no pattern is likely to hold anywhere.
func poison(p []byte) {
	if len(p) == 0 {
		return
	}
	p[0] = 0xdb
	for n := 1; n < len(p); n *= 2 {
		copy(p[n:], p[:n])
	}
}
