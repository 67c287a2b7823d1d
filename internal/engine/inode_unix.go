//go:build unix

package engine

import (
	"io/fs"
	"syscall"
)

// inode returns the numbers that identify a file on this host, 0 if unknown.
func inode(info fs.FileInfo) (inode, device uint64) {
	s, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, 0
	}
	return uint64(s.Ino), uint64(s.Dev)
}
