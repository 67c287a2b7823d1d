// Package all is the list of the drivers linked into this build, in order of
// preference. A driver that needs a build tag has a file of its own here.
package all

import (
	"github.com/tideway-io/tideway/transport"
	"github.com/tideway-io/tideway/transport/memory"
	"github.com/tideway-io/tideway/transport/shm"
	"github.com/tideway-io/tideway/transport/tcp"
)

// Drivers returns the drivers of this build, best first.
func Drivers() []transport.Driver {
	return []transport.Driver{memory.New(), shm.New(), tcp.New()}
}
