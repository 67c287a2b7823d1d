//go:build !linux

package sys

import (
	"errors"
	"net"
)

// What only Linux has: memfd, its seals, reading another process's memory.
const (
	SealShrink = 1 << iota
	SealGrow
	SealFuture
	SealSeals

	MaxRanges = 1024
)

// MostFiles is 0: there is no memfd that would take one.
func MostFiles() uint64 { return 0 }

// NewMemfd fails: it takes Linux.
func NewMemfd(string, int64, int) (int, error) { return -1, errors.ErrUnsupported }

// Seal fails: it takes Linux.
func Seal(int, int) error { return errors.ErrUnsupported }

// Memfd fails: it takes Linux.
func Memfd(int) (int64, int, error) { return 0, 0, errors.ErrUnsupported }

// Dup fails: it takes Linux.
func Dup(int) (int, error) { return -1, errors.ErrUnsupported }

// Close fails: it takes Linux.
func Close(int) error { return errors.ErrUnsupported }

// Ranges are what Read would read.
type Ranges struct{ n int }

// Reset makes r empty.
func (r *Ranges) Reset() { r.n = 0 }

// Len returns how many pieces there are.
func (r *Ranges) Len() int { return r.n }

// Add counts a piece.
func (r *Ranges) Add([]byte, uint64) { r.n++ }

// Read fails: it takes Linux.
func (r *Ranges) Read(int) (int, error) { return 0, errors.ErrUnsupported }

// Packets is a Unix socket that could carry descriptors.
type Packets struct{}

// NewPackets fails: it takes Linux.
func NewPackets(*net.UnixConn) (*Packets, error) { return nil, errors.ErrUnsupported }

// Receive fails: it takes Linux.
func (*Packets) Receive([]byte) (int, int, error) { return 0, -1, errors.ErrUnsupported }

// TrySend fails: it takes Linux.
func (*Packets) TrySend([]byte, int) error { return errors.ErrUnsupported }

// WaitSend fails: it takes Linux.
func (*Packets) WaitSend([]byte, int) error { return errors.ErrUnsupported }

// Peer fails: it takes Linux.
func (*Packets) Peer() (int, int, error) { return 0, 0, errors.ErrUnsupported }

// Close does nothing.
func (*Packets) Close() error { return nil }
