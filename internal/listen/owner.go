package listen

import (
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
)

// owner names the process that listens on a TCP port of this host, as
// " by tideway (pid 17)", or is empty where the kernel does not tell: another
// user's process, another container's, or not Linux.
func owner(port uint16) string { return ownerIn(os.DirFS("/proc"), port) }

func ownerIn(proc fs.FS, port uint16) string {
	inodes := make(map[string]bool)
	for _, table := range []string{"net/tcp", "net/tcp6"} {
		listeners(proc, table, port, inodes)
	}
	if len(inodes) == 0 {
		return ""
	}
	dirs, err := fs.ReadDir(proc, ".")
	if err != nil {
		return ""
	}
	for _, dir := range dirs {
		pid, err := strconv.Atoi(dir.Name())
		if err != nil || !holds(proc, dir.Name(), inodes) {
			continue
		}
		name, err := fs.ReadFile(proc, dir.Name()+"/comm")
		if err != nil {
			return fmt.Sprintf(" by pid %d", pid)
		}
		return fmt.Sprintf(" by %s (pid %d)", strings.TrimSpace(string(name)), pid)
	}
	return ""
}

// listeners adds the inodes of the sockets in table that listen on port. A line
// is: number, local address as hex IP:port, remote, state (0A: listen), ...,
// with the inode as the tenth field.
func listeners(proc fs.FS, table string, port uint16, inodes map[string]bool) {
	b, err := fs.ReadFile(proc, table)
	if err != nil {
		return
	}
	want := fmt.Sprintf(":%04X", port)
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) >= 10 && f[3] == "0A" && strings.HasSuffix(f[1], want) && f[9] != "0" {
			inodes[f[9]] = true
		}
	}
}

// holds reports whether the process has one of the sockets open.
func holds(proc fs.FS, pid string, inodes map[string]bool) bool {
	fds, err := fs.ReadDir(proc, pid+"/fd")
	if err != nil {
		return false
	}
	for _, fd := range fds {
		target, err := fs.ReadLink(proc, pid+"/fd/"+fd.Name())
		if err != nil {
			continue
		}
		if inode, ok := strings.CutPrefix(target, "socket:["); ok && inodes[strings.TrimSuffix(inode, "]")] {
			return true
		}
	}
	return false
}
