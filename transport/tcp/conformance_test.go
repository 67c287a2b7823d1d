package tcp_test

import (
	"testing"

	"github.com/tideway-io/tideway/transport"
	"github.com/tideway-io/tideway/transport/tcp"
	"github.com/tideway-io/tideway/transport/transporttest"
)

// TestConformance runs the contract's own suite.
func TestConformance(t *testing.T) {
	transporttest.Run(t, transporttest.Config{Driver: func() transport.Driver { return tcp.New() }})
}
