package fault_test

import (
	"testing"
	"time"

	"github.com/tideway-io/tideway/transport"
	"github.com/tideway-io/tideway/transport/fault"
	"github.com/tideway-io/tideway/transport/memory"
	"github.com/tideway-io/tideway/transport/tcp"
	"github.com/tideway-io/tideway/transport/transporttest"
)

// TestConformance: with nothing planned the decorator changes no promise.
func TestConformance(t *testing.T) {
	for _, inner := range []func() transport.Driver{
		func() transport.Driver { return memory.NewHub().Driver() },
		func() transport.Driver { return tcp.New() },
	} {
		t.Run(inner().Name(), func(t *testing.T) {
			transporttest.Run(t, transporttest.Config{Driver: func() transport.Driver { return fault.Wrap(inner(), fault.New(1)) }})
		})
	}
}

// TestConformanceHeld: completions that come late, and other than in the order
// of their slices, are completions like others.
func TestConformanceHeld(t *testing.T) {
	transporttest.Run(t, transporttest.Config{Driver: func() transport.Driver {
		return fault.Wrap(tcp.New(), fault.New(1, fault.Rule{Do: fault.Delay, Chance: 0.1, Delay: 2 * time.Millisecond}))
	}})
}
