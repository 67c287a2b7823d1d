package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/tideway-io/tideway/internal/testenv"
	"github.com/tideway-io/tideway/internal/wire"
)

// Connections that say nothing, or half of what they should, keep nobody from a
// server, and are closed.
func TestHalfHellos(t *testing.T) {
	src := patternFile(t, t.TempDir(), "src", 1<<20, 1)
	s := testenv.Start(t, "tideway", "serve", "--file", "data="+src)
	addr := s.Expect(patience, `serving at (\S+)`)[1]
	descriptors := func() int {
		list, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.Pid))
		return len(list)
	}
	before := descriptors()
	head := make([]byte, wire.HeaderSize)
	h := wire.Header{Type: wire.Hello, Meta: 100}
	h.Put(head)
	for k := range 300 {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		begun := [][]byte{nil, {'T'}, wire.PrefaceData[:], append(wire.PrefaceData[:], head[:9]...), append(wire.PrefaceData[:], head...), append(wire.PrefaceControl[:], head...)}
		if _, err := c.Write(begun[k%len(begun)]); err != nil {
			t.Fatal(err)
		}
	}
	testenv.Eventually(t, patience, func() bool { return descriptors() > before+100 }, "the connections are there")
	to := filepath.Join(t.TempDir(), "out")
	runs(t, "get", addr+"/data", to)
	same(t, src, to)
	testenv.Eventually(t, patience, func() bool { return descriptors() <= before }, "the connections are closed")
}
