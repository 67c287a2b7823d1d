package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/tideway-io/tideway/internal/testenv"
)

// A file that is written in place while it is got comes as it was or as it is,
// never half of each, also when the get would end before anybody looks.
func TestGetIsNotTorn(t *testing.T) {
	testenv.NeedFull(t)
	dir, srcDir := t.TempDir(), t.TempDir()
	src := patternFile(t, srcDir, "src", bigFile, 1)
	s := newServer(t, "--file", "data="+src)
	before := sum(t, src)
	s.slow(slowly)
	to := filepath.Join(dir, "out")
	g := startGet(t, s, "data", to, 64<<20)
	patternFile(t, srcDir, "src", bigFile, 2) // in place: the same inode
	s.slow(0)
	within(t, g, patience, 0)
	if got := sum(t, to); got != before && got != sum(t, src) {
		t.Error("it holds a mixture")
	}
	holds(t, dir, "out")
}

// A file that shrinks or grows in place is got as it is then: a get that meets
// the change waits until it is offered anew.
func TestGetWaitsForNewOffer(t *testing.T) {
	dir, srcDir := t.TempDir(), t.TempDir()
	src := patternFile(t, srcDir, "src", 3<<20, 1)
	s := newServer(t, "--file", "data="+src)
	for k, n := range []int64{1 << 20, 5 << 20, 0} {
		if err := os.Truncate(src, n); err != nil {
			t.Fatal(err)
		}
		to := filepath.Join(dir, "out")
		runs(t, "get", s.place("data"), to)
		if same(t, src, to); t.Failed() {
			t.Fatalf("change %d", k)
		}
	}
	holds(t, dir, "out")
}
