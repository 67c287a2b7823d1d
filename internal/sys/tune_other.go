//go:build !linux

package sys

import "net"

// Tune does nothing: the kernel's settings are used.
func Tune(net.Conn) {}
