package main

import (
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/tideway-io/tideway"
)

// The shares of a mix are right whatever the batch, and its ranges do not overlap
// another turn's.
func TestMixShares(t *testing.T) {
	r := ownRig(t, 1<<20)
	for op, reads := range map[string]int{"read": 100, "write": 0, "mix": 50, "mix:90": 90, "mix:5": 5} {
		for _, batch := range []int{1, 3, 20, 100} {
			c := someCrew(t, r, point{op: op, size: 64, batch: batch, threads: 1}, ownTransport)
			seen := map[tideway.Remote]bool{}
			n := 0
			for _, turn := range c.workers[0].turns {
				for _, q := range turn {
					if seen[q.Remote] {
						t.Fatalf("%s, batch %d: a range is used twice", op, batch)
					}
					seen[q.Remote] = true
					if q.Op == tideway.Read {
						n++
					}
				}
			}
			if got := 100 * float64(n) / float64(len(seen)); got < float64(reads)-5 || got > float64(reads)+5 {
				t.Errorf("%s, batch %d: %.0f %% of %d are reads", op, batch, got, len(seen))
			}
		}
	}
}

func TestParsePriorities(t *testing.T) {
	for s, ok := range map[string]bool{"urgent": true, "urgent+bulk": true, "bulk+normal+urgent": true, "": false, "urgent+urgent": false, "+": false, "high": false} {
		if _, err := parsePriorities(s); (err == nil) != ok {
			t.Errorf("%q: %v", s, err)
		}
	}
	for s, ok := range map[string]bool{"mix": true, "mix:1": true, "mix:99": true, "mix:0": false, "mix:100": false, "mix:": false, "mix:x": false} {
		if _, err := parseMix(s); (err == nil) != ok {
			t.Errorf("%q: %v", s, err)
		}
	}
}

// Classes that run together have the threads in turn, and a row each.
func TestClassesTogether(t *testing.T) {
	c := someCrew(t, ownRig(t, 1<<20), point{op: "read", size: 64, batch: 2, threads: 3, priority: "urgent+bulk"}, ownTransport)
	total, cpu, err := c.timed(t.Context(), true, func(*worker) bool { return false })
	if err != nil {
		t.Fatal(err)
	}
	rows := rowsOf(c, total, cpu, false)
	if len(rows) != 2 || rows[0].Priority != "urgent" || rows[1].Priority != "bulk" || total[0].requests != 4 || total[1].requests != 2 {
		t.Errorf("%d rows, %+v", len(rows), total)
	}
	if p := c.workers[1].turns[0][0].Priority; p != tideway.Bulk {
		t.Errorf("the second thread's priority is %v", p)
	}
}

// The process that listens at an address of this host is found.
func TestListener(t *testing.T) {
	for _, addr := range []string{"127.0.0.1:0", "[::1]:0", "0.0.0.0:0"} {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		to := netip.MustParseAddrPort(l.Addr().String())
		if to.Addr().IsUnspecified() {
			to = netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), to.Port())
		}
		if got := listener(to.String()); got != os.Getpid() {
			t.Errorf("%s: process %d, want %d", to, got, os.Getpid())
		}
		l.Close()
		if got := listener(to.String()); got != 0 {
			t.Errorf("%s: process %d, and nobody listens", to, got)
		}
	}
	if got := listener("192.0.2.1:80"); got != 0 {
		t.Errorf("process %d at an address that is not ours", got)
	}
}

func TestProcessCPU(t *testing.T) {
	if d, ok := processCPU(os.Getpid()); !ok || d <= 0 {
		t.Errorf("own: %v, %v", d, ok)
	}
	if _, ok := processCPU(1 << 22); ok {
		t.Error("a process that cannot be")
	}
}
