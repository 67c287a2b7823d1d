package testenv

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/bits"
)

// Key selects a pattern. Every byte of a pattern follows from its key and its
// offset, so that bytes from another run, another round or another place do not
// match.
type Key uint64

// KeyOf returns the key of one round of one run. Give every write of a test a
// round of its own.
func KeyOf(run, round uint64) Key {
	return Key(mix(mix(run+golden) + round))
}

// PoisonByte is what Poison writes.
const PoisonByte = 0xdb

// golden is 2^64 divided by the golden ratio: multiples of it are spread evenly.
const golden = 0x9e3779b97f4a7c15

// mix is a bijection that spreads each bit of x over the whole word: xor with
// the upper half, multiply by an odd number, twice.
func mix(x uint64) uint64 {
	x = (x ^ x>>32) * 0xd6e8feb86659fd93
	return (x ^ x>>32) * 0xd6e8feb86659fd93
}

// word returns the eight bytes of the pattern that start at offset 8*i.
func (k Key) word(i uint64) uint64 { return mix(i*golden + uint64(k)) }

// Fill writes the pattern's bytes [offset, offset+len(buf)) into buf.
func Fill(buf []byte, key Key, offset uint64) {
	var w [8]byte
	if head := offset % 8; head != 0 {
		binary.LittleEndian.PutUint64(w[:], key.word(offset/8))
		n := copy(buf, w[head:])
		buf, offset = buf[n:], offset+uint64(n)
	}
	i := offset / 8
	for ; len(buf) >= 8; i++ {
		binary.LittleEndian.PutUint64(buf, key.word(i))
		buf = buf[8:]
	}
	binary.LittleEndian.PutUint64(w[:], key.word(i))
	copy(buf, w[:])
}

// Poison overwrites buf, so that what a transfer did not write is seen.
func Poison(buf []byte) {
	for i := range buf {
		buf[i] = PoisonByte
	}
}

// Verify compares buf with the pattern's bytes [offset, offset+len(buf)) and
// describes the first byte that differs.
func Verify(buf []byte, key Key, offset uint64) error {
	at := 0
	for ; (offset+uint64(at))%8 != 0 && at < len(buf); at++ {
		if buf[at] != key.at(offset+uint64(at)) {
			return key.mismatch(buf, offset, at)
		}
	}
	i := (offset + uint64(at)) / 8
	for ; len(buf)-at >= 8; i, at = i+1, at+8 {
		if diff := binary.LittleEndian.Uint64(buf[at:]) ^ key.word(i); diff != 0 {
			return key.mismatch(buf, offset, at+bits.TrailingZeros64(diff)/8)
		}
	}
	for ; at < len(buf); at++ {
		if buf[at] != key.at(offset+uint64(at)) {
			return key.mismatch(buf, offset, at)
		}
	}
	return nil
}

func (k Key) at(offset uint64) byte { return byte(k.word(offset/8) >> (offset % 8 * 8)) }

func (k Key) mismatch(buf []byte, offset uint64, at int) error {
	got := buf[at:min(at+16, len(buf))]
	want := make([]byte, len(got))
	Fill(want, k, offset+uint64(at))
	what := ""
	switch {
	case bytes.Count(got, []byte{PoisonByte}) == len(got):
		what = " (still poison)"
	case bytes.Count(got, []byte{0}) == len(got):
		what = " (zeros)"
	}
	return fmt.Errorf("byte %d of %d, pattern offset %d: got %x%s, want %x", at, len(buf), offset+uint64(at), got, what, want)
}
