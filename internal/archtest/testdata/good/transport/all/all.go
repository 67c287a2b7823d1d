// Package all links the drivers.
package all

import "github.com/tideway-io/tideway/transport/tcp"

// Drivers returns their names.
func Drivers() []string { return []string{tcp.Driver{}.Name()} }
