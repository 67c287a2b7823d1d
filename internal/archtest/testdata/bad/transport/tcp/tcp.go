// This comment does not begin as it should.
package tcp

import (
	"github.com/tideway-io/tideway/internal/engine"
	"github.com/tideway-io/tideway/metadata/etcd"
	"github.com/tideway-io/tideway/transport/shm"
)

// Open opens.
func Open() { shm.Open(); engine.Run(); etcd.Get() }
