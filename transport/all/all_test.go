package all_test

import (
	"testing"

	"github.com/tideway-io/tideway/transport/all"
)

// TestDrivers: names are fixed and used once, an engine's own segment is tried
// at the speed of memory first, peers of one host without a network next, and
// tcp, which reaches everybody, last.
func TestDrivers(t *testing.T) {
	drivers := all.Drivers()
	seen := map[string]bool{}
	for _, d := range drivers {
		if d.Name() == "" || seen[d.Name()] {
			t.Errorf("the name %q is empty or used twice", d.Name())
		}
		seen[d.Name()] = true
	}
	if a, b, last := drivers[0].Name(), drivers[1].Name(), drivers[len(drivers)-1].Name(); a != "memory" || b != "shm" || last != "tcp" {
		t.Errorf("first %q and %q, last %q; want memory, shm and tcp", a, b, last)
	}
	for _, name := range []string{"memory", "shm", "tcp"} { // all that tests run on has what they need
		for _, d := range drivers {
			if err := d.Probe(t.Context()); d.Name() == name && err != nil {
				t.Errorf("probe %s: %v", name, err)
			}
		}
	}
	all.Drivers()[0] = nil
	if all.Drivers()[0] == nil {
		t.Errorf("two engines share one list")
	}
}
