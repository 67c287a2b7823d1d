package engine

import (
	"io/fs"
	"syscall"
)

// lastChange is when a file was changed last, in ns since 1970. The kernel's own
// note of it counts too: the modification time alone can be set back.
func lastChange(info fs.FileInfo) int64 {
	at := info.ModTime().UnixNano()
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		at = max(at, syscall.TimespecToNsec(s.Ctim))
	}
	return at
}
