// Package all is the list of the drivers linked into this build, in order of
// preference. A driver that needs a build tag has a file of its own here.
package all

import (
	"github.com/tideway-io/tideway/transport"
	"github.com/tideway-io/tideway/transport/memory"
	"github.com/tideway-io/tideway/transport/mooncake"
	"github.com/tideway-io/tideway/transport/shm"
	"github.com/tideway-io/tideway/transport/tcp"
)

// Drivers returns the drivers of this build, best first.
func Drivers() []transport.Driver {
	return []transport.Driver{memory.New(), shm.New(), tcp.New()}
}

// MooncakeOptions configure Mooncake.
type MooncakeOptions = mooncake.Options

// Mooncake returns the driver that joins Mooncake's engines, which is used only
// where that was asked for.
func Mooncake(o MooncakeOptions) transport.Driver { return mooncake.New(o) }
