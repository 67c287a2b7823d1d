// Package sys is what Tideway asks of the Linux kernel by files and system
// calls that the standard library has no name for. On other systems each answer
// is "not known".
package sys

import (
	"io/fs"
	"strings"
)

// BootID returns the identity that the kernel took when the host was started,
// 32 hexadecimal digits, or "" where there is none. proc is the tree of /proc.
// Containers of one host share it, and so do virtual machines resumed from one
// image: it can show that two processes are on different hosts, never that
// they are on the same one.
func BootID(proc fs.FS) string {
	b, err := fs.ReadFile(proc, "sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	id := strings.ReplaceAll(strings.TrimSpace(string(b)), "-", "")
	if len(id) != 32 || strings.Trim(id, "0123456789abcdef") != "" {
		return ""
	}
	return id
}
