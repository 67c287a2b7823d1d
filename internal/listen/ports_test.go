package listen

import (
	"errors"
	"testing"

	"github.com/tideway-io/tideway/errs"
)

// TestPorts: a free port of the range, and an error that says so when there is
// none.
func TestPorts(t *testing.T) {
	first := open(t, Options{})
	_, taken, _ := ParseAddr(first.Addr(), 0)
	lo := min(taken, 65535-63)
	l := open(t, Options{Ports: [2]uint16{lo, lo + 63}})
	if _, port, _ := ParseAddr(l.Addr(), 0); port < lo || port > lo+63 || port == taken {
		t.Errorf("port %d, want one from %d to %d but %d", port, lo, lo+63, taken)
	}
	if named := open(t, Options{Listen: "127.0.0.2:0", Ports: [2]uint16{taken, taken}}); named.Addr() != JoinAddr("127.0.0.2", taken) {
		t.Error(named.Addr())
	}
	for _, c := range []struct {
		ports [2]uint16
		want  error
	}{{[2]uint16{taken, taken}, errs.ErrPortInUse}, {[2]uint16{0, 7}, errs.ErrInvalid}, {[2]uint16{8, 7}, errs.ErrInvalid}} {
		if l, err := Open(t.Context(), Options{Ports: c.ports}); l != nil || !errors.Is(err, c.want) {
			t.Errorf("%v: %v, want %v", c.ports, err, c.want)
		}
	}
}
