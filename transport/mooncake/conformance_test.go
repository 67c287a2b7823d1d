package mooncake

import (
	"testing"

	"github.com/tideway-io/tideway/transport"
	"github.com/tideway-io/tideway/transport/transporttest"
)

func TestConformance(t *testing.T) {
	transporttest.Run(t, transporttest.Config{Driver: func() transport.Driver { return New(Options{}) }, Addressed: true, Skip: map[int]string{
		8: "the wire carries neither incarnation nor key",
	}})
}
