package engine

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/transport"
)

// TestEveryBadFieldIsNamed: one error says all that is wrong with a configuration.
func TestEveryBadFieldIsNamed(t *testing.T) {
	_, err := Open(t.Context(), Config{
		Listen: "10.0.0.1:http", Advertise: "0.0.0.0", Name: "n", Cluster: "c", Drivers: []transport.Driver{&fake{}, &fake{}}, Transports: []string{"rdna"},
		StallTimeout: time.Nanosecond, ConnectTimeout: -1, DrainTimeout: 2 * maxTimeout, MetadataTTL: 1,
		MaxRequests: -1, MaxBytes: -1, Lanes: maxLanes + 1, MaxPeerConns: -1, MaxNotifications: -1,
	})
	var e *errs.Error
	if !errors.Is(err, errs.ErrInvalid) || !errors.As(err, &e) {
		t.Fatalf("%v, want invalid", err)
	}
	for _, field := range []string{
		"Listen", "Advertise", "Name", "Cluster", "Drivers", "Transports", "StallTimeout", "ConnectTimeout", "DrainTimeout", "MetadataTTL",
		"MaxRequests", "MaxBytes", "Lanes", "MaxPeerConns", "MaxNotifications",
	} {
		if !strings.Contains("; "+e.Detail, "; "+field+" ") {
			t.Errorf("%s is not named: %s", field, e.Detail)
		}
	}
	for _, listen := range []string{"", "localhost", ":0", "[::1]:8000", "fd00::1"} {
		c := Config{Listen: listen, Advertise: "some.host"}
		if err := c.fill(); err != nil {
			t.Errorf("Listen %q: %v", listen, err)
		}
	}
}
