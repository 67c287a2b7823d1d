//go:build !linux

package listen

import "syscall"

// bindTo does nothing: the routes decide.
func bindTo(syscall.RawConn, string) error { return nil }
