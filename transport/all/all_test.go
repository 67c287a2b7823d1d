package all_test

import (
	"testing"

	"github.com/tideway-io/tideway/transport/all"
)

// TestDrivers: names are fixed and used once, an engine's own segment is tried
// at the speed of memory first, and tcp, which reaches everybody, last.
func TestDrivers(t *testing.T) {
	drivers := all.Drivers()
	seen := map[string]bool{}
	for _, d := range drivers {
		if d.Name() == "" || seen[d.Name()] {
			t.Errorf("the name %q is empty or used twice", d.Name())
		}
		seen[d.Name()] = true
	}
	if first, last := drivers[0].Name(), drivers[len(drivers)-1].Name(); first != "memory" || last != "tcp" {
		t.Errorf("first %q, last %q; want memory and tcp", first, last)
	}
	for _, name := range []string{"memory", "tcp"} { // they need nothing
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
