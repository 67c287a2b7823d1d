//go:build !linux

package engine

import "io/fs"

// lastChange is when a file was changed last, in ns since 1970.
func lastChange(info fs.FileInfo) int64 { return info.ModTime().UnixNano() }
