package main

import (
	"strings"
	"testing"
)

// Every row has a name of its own, and the comparison names rows that there are.
func TestRows(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range rows() {
		if seen[r.name] {
			t.Errorf("two rows %s", r.name)
		}
		seen[r.name] = true
	}
	for _, o := range othersTable() {
		for _, name := range []string{o.tcp, o.single, o.memory} {
			for _, op := range []string{"write", "read"} {
				if n := strings.ReplaceAll(name, "OP", op); n != "" && !seen[n] {
					t.Errorf("%s: no row %s", o.shape, n)
				}
			}
		}
	}
}

// A ratio under 1 is slower, of rates and of latencies.
func TestTables(t *testing.T) {
	text, err := tables(rows(), func(name string) (*measured, error) {
		switch name {
		case "tcp-write-4k-b1-t1":
			return &measured{Name: name, P50: 20, P99: 50, Limit: 10, Low: 0.4, High: 0.6}, nil
		case "tcp-read-1m-b8-t1":
			return &measured{Name: name, Rate: 3e9, Limit: 6e9, Low: 0.4, High: 0.6}, nil
		}
		return nil, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| `tcp-write-4k-b1-t1` | p50/p99 20/50 us | blocking ping-pong p50 10 us | 0.50 (0.40 to 0.60) |",
		"| `tcp-read-1m-b8-t1` | 3.00 GB/s | iperf3 -C cubic 6.00 GB/s | 0.50 (0.40 to 0.60) |",
		"| 104/281; 92/246 | 48/79; 49/111 | 78/145; 86/172 | 1/1; 1/1 | 20/50 | 20/50 | - |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

// The limits that need no other program measure something.
func TestLimits(t *testing.T) {
	for _, r := range []row{{op: "read", size: 64 << 10, limit: copying()}, {op: "read", size: 64 << 10, limit: noLimit()}} {
		once, end, err := r.limit.start(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		v, err := once()
		end()
		if err != nil || (v > 0) != (r.limit.name != "") {
			t.Errorf("%s: %v, %v", r.limit.name, v, err)
		}
	}
}
