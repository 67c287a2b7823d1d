package shm

import (
	"context"
	"testing"

	"github.com/tideway-io/tideway/transport"
	"github.com/tideway-io/tideway/transport/transporttest"
)

// TestConformance runs the suite over memory that peers map.
func TestConformance(t *testing.T) {
	transporttest.Run(t, transporttest.Config{Driver: New})
}

// TestConformanceAttach runs it over memory that they do not.
func TestConformanceAttach(t *testing.T) {
	transporttest.Run(t, transporttest.Config{Driver: func() transport.Driver { return plain{New()} }})
}

// plain is a driver whose transports allocate nothing.
type plain struct{ transport.Driver }

func (p plain) Open(ctx context.Context, env transport.Env) (transport.Transport, error) {
	t, err := p.Driver.Open(ctx, env)
	return struct{ transport.Transport }{t}, err
}
