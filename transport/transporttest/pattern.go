package transporttest

import "encoding/binary"

// key names one pattern: a run, a round and a purpose mixed into one number.
// Two keys give unrelated bytes, and a byte depends on its offset, so that
// bytes of another round, another buffer or another place never pass.
type key uint64

// mix is a bijection that spreads every input bit (the splitmix64 finaliser).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// word returns the eight pattern bytes at offset 8*i.
func (k key) word(i uint64) uint64 { return mix(uint64(k) ^ i*0xff51afd7ed558ccd) }

// at returns the pattern byte at offset off.
func (k key) at(off uint64) byte { return byte(k.word(off/8) >> (off % 8 * 8)) }

// fill writes the pattern of k to p, whose first byte has offset off.
func (k key) fill(p []byte, off uint64) {
	k.write(p, off)
	for i := 0; i < len(p); i += sampled {
		p[i] = k.at(off + uint64(i))
	}
}

// sampled is the distance of the bytes whose accesses the race detector sees:
// it would see a race about any of a range, and is ten times slower with all.
const sampled = 256

//go:norace
func (k key) write(p []byte, off uint64) {
	for len(p) > 0 && off%8 != 0 {
		p[0] = k.at(off)
		p, off = p[1:], off+1
	}
	for ; len(p) >= 8; p, off = p[8:], off+8 {
		binary.LittleEndian.PutUint64(p, k.word(off/8))
	}
	for i := range p {
		p[i] = k.at(off + uint64(i))
	}
}

// differs returns the index of the first byte of p that is not the pattern of
// k, or -1. The first byte of p has offset off.
func (k key) differs(p []byte, off uint64) int {
	for i := 0; i < len(p); i += sampled {
		if p[i] != k.at(off+uint64(i)) {
			break // and see which is the first
		}
	}
	return k.search(p, off)
}

//go:norace
func (k key) search(p []byte, off uint64) int {
	for i := 0; i < len(p); {
		at := off + uint64(i)
		if at%8 == 0 && len(p)-i >= 8 && binary.LittleEndian.Uint64(p[i:]) == k.word(at/8) {
			i += 8
			continue
		}
		if p[i] != k.at(at) {
			return i
		}
		i++
	}
	return -1
}

// neither returns the index of the first byte of p that belongs to none of the
// patterns, or -1: what an interrupted transfer may leave is old or new bytes,
// never others.
func neither(p []byte, off uint64, patterns ...key) int {
next:
	for i := range p {
		for _, k := range patterns {
			if p[i] == k.at(off+uint64(i)) {
				continue next
			}
		}
		return i
	}
	return -1
}
