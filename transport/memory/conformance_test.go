package memory

import (
	"testing"

	"github.com/tideway-io/tideway/transport"
	"github.com/tideway-io/tideway/transport/transporttest"
)

// TestConformance runs the suite between engines that share a Hub.
func TestConformance(t *testing.T) {
	transporttest.Run(t, transporttest.Config{Driver: func() transport.Driver { return NewHub().Driver() }})
}

// TestConformanceSelf runs it within one engine.
func TestConformanceSelf(t *testing.T) {
	transporttest.Run(t, transporttest.Config{Driver: New})
}
