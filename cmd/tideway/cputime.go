package main

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// cpuTime is the CPU time of both ends. The target's counts only if it is known.
type cpuTime struct {
	own, target time.Duration
	known       bool
}

// since returns what was used after before.
func (c cpuTime) since(before cpuTime) cpuTime {
	return cpuTime{c.own - before.own, c.target - before.target, c.known && before.known}
}

// add returns the sum of two rounds; the zero value is none.
func (c cpuTime) add(o cpuTime) cpuTime {
	return cpuTime{c.own + o.own, c.target + o.target, o.known && (c.known || c == cpuTime{})}
}

// per returns the seconds for each GiB of n bytes.
func (c cpuTime) per(n uint64) cpuPerGiB {
	if n == 0 {
		return cpuPerGiB{}
	}
	gib := float64(n) / (1 << 30)
	out := cpuPerGiB{Own: c.own.Seconds() / gib}
	if c.known {
		v := c.target.Seconds() / gib
		out.Target = &v
	}
	return out
}

// cpu returns the CPU time used so far at both ends.
func (r *rig) cpu() cpuTime {
	own, _ := processCPU(os.Getpid())
	target, ok := processCPU(r.pid)
	return cpuTime{own, target, ok && r.pid != os.Getpid()}
}

// processCPU returns the CPU time of a process and whether it is there.
func processCPU(pid int) (time.Duration, bool) {
	if pid <= 0 {
		return 0, false
	}
	var t unix.Timespec
	clock := int32(^pid<<3 | 2) // what clock_getcpuclockid makes of a process
	if err := unix.ClockGettime(clock, &t); err != nil {
		return 0, false
	}
	return time.Duration(t.Nano()), true
}

// processState returns the letter of /proc/PID/stat: T is stopped, Z has ended;
// 0 if there is no such process.
func processState(pid int) byte {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if _, rest, ok := cutLast(string(text), ')'); err == nil && ok && len(rest) > 1 {
		return rest[1]
	}
	return 0
}

// listener returns the process of this host that accepts connections at addr, as
// far as this process may see it; 0 if there is none.
func listener(addr string) int {
	to, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil || !ownAddress(to.IP) {
		return 0
	}
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		text, err := os.ReadFile(table)
		if err != nil {
			continue
		}
		if inode := listenInode(text, to.AddrPort()); inode != "" {
			return socketOwner(inode)
		}
	}
	return 0
}

// ownAddress reports whether an address is one of this host's.
func ownAddress(ip net.IP) bool {
	addrs, _ := net.InterfaceAddrs()
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.IP.Equal(ip) {
			return true
		}
	}
	return ip.IsLoopback()
}

// listenInode finds the socket that listens at an address, or at its port of all
// addresses, in the text of /proc/net/tcp or tcp6.
func listenInode(table []byte, to netip.AddrPort) string {
	const listening = "0A"
	lines := bufio.NewScanner(bytes.NewReader(table))
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) < 10 || f[3] != listening {
			continue
		}
		host, port, _ := strings.Cut(f[1], ":")
		n, err := strconv.ParseUint(port, 16, 16)
		if err != nil || uint16(n) != to.Port() {
			continue
		}
		if ip := parseHexIP(host); ip.IsUnspecified() || ip.Unmap() == to.Addr().Unmap().WithZone("") {
			return f[9]
		}
	}
	return ""
}

// parseHexIP reads an address of /proc/net/tcp: 32-bit words of this machine's
// byte order, here little-endian.
func parseHexIP(s string) netip.Addr {
	var b []byte
	for ; len(s) >= 8; s = s[8:] {
		w, err := strconv.ParseUint(s[:8], 16, 32)
		if err != nil {
			return netip.Addr{}
		}
		b = append(b, byte(w), byte(w>>8), byte(w>>16), byte(w>>24))
	}
	ip, _ := netip.AddrFromSlice(b)
	return ip
}

// socketOwner returns a process that has the socket open.
func socketOwner(inode string) int {
	want := "socket:[" + inode + "]"
	fds, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && to == want {
			pid, _ := strconv.Atoi(strings.Split(fd, "/")[2])
			return pid
		}
	}
	return 0
}
