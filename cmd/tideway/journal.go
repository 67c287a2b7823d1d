package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/zeebo/xxh3"
)

// The journal lies beside a partial file and says what of it can be believed:
// a header with the identity of the source, then records of 24 bytes.
//
//	header  magic[8] length:u32 json[length] xxh3:u64
//	block   index:u64      xxh3 of the block:u64   check:u64
//	synced  count|1<<63    0                       check:u64
//
// Numbers are little-endian. Block records come in order from 0. A synced record
// says that the first count blocks are on stable storage. check hashes the two
// words before it and the header, so that a torn record, zeros, or a record of
// another journal ends the journal and is ignored.
const (
	blockSize     = 1 << 20 // bytes that one block record covers
	journalMagic  = "TWPART1\n"
	recordSize    = 24
	syncedFlag    = 1 << 63
	maxHeaderJSON = 1 << 14
)

// identity says which bytes a partial file holds. Two equal identities promise
// equal bytes.
type identity struct {
	Name        string `json:"name"`
	Offset      uint64 `json:"offset"`
	Length      uint64 `json:"length"`
	Size        uint64 `json:"size,omitempty"` // file: size, time of change in ns, inode, device
	ModTime     int64  `json:"mtime_ns,omitempty"`
	Inode       uint64 `json:"inode,omitempty"`
	Device      uint64 `json:"device,omitempty"`
	Incarnation string `json:"incarnation,omitempty"` // memory: life of the engine, registration
	Key         uint32 `json:"key,omitempty"`
}

// difference says in words how the source now differs from the one before, or
// returns "" when they are the same.
func (id identity) difference(before identity) string {
	switch {
	case id == before:
		return ""
	case id.Name != before.Name:
		return fmt.Sprintf("it holds %s", before.Name)
	case id.Offset != before.Offset || id.Length != before.Length:
		return fmt.Sprintf("it holds another range, %d:%d", before.Offset, before.Length)
	case id.Incarnation != before.Incarnation:
		return "the other side restarted since, and its memory is new"
	case id.Key != before.Key:
		return "the buffer was registered anew since"
	}
	return "the source changed since"
}

// header encodes the journal's first bytes.
func (id identity) header() ([]byte, error) {
	text, err := json.Marshal(id)
	if err != nil {
		return nil, err
	}
	b := binary.LittleEndian.AppendUint32([]byte(journalMagic), uint32(len(text)))
	b = append(b, text...)
	return binary.LittleEndian.AppendUint64(b, xxh3.Hash(b)), nil
}

// journal is what a journal file says.
type journal struct {
	id     identity
	seed   uint64   // hash of the header, seeds the records' checks
	hashes []uint64 // of the blocks, in order
	synced int      // blocks known to be on stable storage
	ends   []int    // ends[i] is the length of the journal up to block i's record
	start  int      // length of the header
}

var errNoJournal = errors.New("no journal that can be read")

// parseJournal reads a journal up to the first record that is not whole.
func parseJournal(p []byte) (*journal, error) {
	fixed := len(journalMagic) + 4
	if len(p) < fixed || !bytes.HasPrefix(p, []byte(journalMagic)) {
		return nil, errNoJournal
	}
	n := binary.LittleEndian.Uint32(p[len(journalMagic):])
	if n > maxHeaderJSON || len(p) < fixed+int(n)+8 {
		return nil, errNoJournal
	}
	end := fixed + int(n)
	j := &journal{start: end + 8, seed: xxh3.Hash(p[:end])}
	if binary.LittleEndian.Uint64(p[end:]) != j.seed || json.Unmarshal(p[fixed:end], &j.id) != nil {
		return nil, errNoJournal
	}
	j.records(p)
	return j, nil
}

// records reads the records after the header.
func (j *journal) records(p []byte) {
	for at := j.start; at+recordSize <= len(p); at += recordSize {
		r := p[at : at+recordSize]
		if binary.LittleEndian.Uint64(r[16:]) != xxh3.HashSeed(r[:16], j.seed) {
			return
		}
		index, value := binary.LittleEndian.Uint64(r), binary.LittleEndian.Uint64(r[8:])
		switch {
		case index == uint64(len(j.hashes)):
			j.hashes = append(j.hashes, value)
			j.ends = append(j.ends, at+recordSize)
		case index&syncedFlag != 0 && index&^syncedFlag <= uint64(len(j.hashes)):
			j.synced = max(j.synced, int(index&^syncedFlag))
		default:
			return
		}
	}
}

// cut returns the length of the journal that holds the first n blocks.
func (j *journal) cut(n int) int {
	if n == 0 {
		return j.start
	}
	return j.ends[n-1]
}

// appendRecord appends one record to b.
func appendRecord(b []byte, seed, index, value uint64) []byte {
	at := len(b)
	b = binary.LittleEndian.AppendUint64(b, index)
	b = binary.LittleEndian.AppendUint64(b, value)
	return binary.LittleEndian.AppendUint64(b, xxh3.HashSeed(b[at:], seed))
}
