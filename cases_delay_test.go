package tideway_test

import (
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/tideway-io/tideway"
	"github.com/tideway-io/tideway/internal/testenv"
	"github.com/tideway-io/tideway/segment"
)

// far is a target behind a line.
func far(t *testing.T, bitsPerSecond float64, eachWay time.Duration) (e *tideway.Engine, kv *tideway.RemoteBuffer) {
	px := testenv.NewProxy(t, "")
	for _, dir := range []testenv.Dir{testenv.Up, testenv.Down} {
		px.Link(dir, bitsPerSecond, eachWay)
	}
	tg := startTarget(t, spec{Config: targetConfig{Listen: freeAddr(t), Advertise: px.Addr}, Buffers: []targetBuffer{{Name: "kv", Size: 64 << 20, Access: segment.ReadWrite}}})
	px.Target(tg.listen)
	e = open(t, tideway.Config{})
	_, kv = find(t, e, tg.Addr, "kv")
	return e, kv
}

// TestB31FarPeer fills a line of 100 ms round trip: without several requests in
// flight it would carry at most one MiB in 142 ms, which is 30 %. The rate is one
// that a busy machine can do.
func TestB31FarPeer(t *testing.T) {
	const bits = 200e6
	e, kv := far(t, bits, 50*time.Millisecond)
	local := make([]byte, 64<<20)
	for _, op := range []tideway.Op{tideway.Write, tideway.Read} {
		share := streamRate(t, e, op, local, kv, 1<<20, 16, 3*time.Second) * 8 / bits
		t.Logf("%v: %.2f of the line", op, share)
		if share < 0.5 {
			t.Errorf("%v: %.2f of the line, want half", op, share)
		}
	}
}

// TestB31VeryFarPeer has 25 MB under way, three times the window that rails begin
// with, which would carry 0.34 of the line. A quiet machine carries 0.9.
func TestB31VeryFarPeer(t *testing.T) {
	testenv.NeedFull(t)
	const bits = 400e6
	e, kv := far(t, bits, 250*time.Millisecond)
	local := make([]byte, 64<<20)
	for _, op := range []tideway.Op{tideway.Write, tideway.Read} {
		streamRate(t, e, op, local, kv, 1<<20, 64, 4*time.Second) // until the window has grown
		share := streamRate(t, e, op, local, kv, 1<<20, 64, 4*time.Second) * 8 / bits
		t.Logf("%v: %.2f of the line", op, share)
		if share < 0.42 {
			t.Errorf("%v: %.2f of the line, want 0.42", op, share)
		}
	}
}

// TestSpeedB31Far compares that with what iperf3 gets out of the same line.
func TestSpeedB31Far(t *testing.T) {
	testenv.NeedSpeed(t)
	e, kv := far(t, 1e9, 5*time.Millisecond)
	ip := startIperf(t, "127.0.0.1")
	line := testenv.NewProxy(t, net.JoinHostPort(ip.addr, strconv.Itoa(ip.port)))
	line.Link(testenv.Up, 1e9, 5*time.Millisecond)
	line.Link(testenv.Down, 1e9, 5*time.Millisecond)
	_, port, _ := net.SplitHostPort(line.Addr)
	ip.port, _ = strconv.Atoi(port)
	local := make([]byte, 64<<20)
	for _, op := range []tideway.Op{tideway.Write, tideway.Read} {
		a, b := pairs(5, 0.8,
			func() float64 { return streamRate(t, e, op, local, kv, 1<<20, 16, time.Second) },
			func() float64 { return ip.rate(op == tideway.Read) })
		t.Logf("%v: %.2f Gb/s, iperf3 %.2f Gb/s (cubic): %.2f", op, a*8/1e9, b*8/1e9, a/b)
		if a < 0.8*b {
			t.Errorf("%v: %.2f of iperf3, want 0.8", op, a/b)
		}
	}
}
