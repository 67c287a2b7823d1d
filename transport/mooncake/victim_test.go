package mooncake

import (
	"testing"
	"time"
)

// TestVictim: who makes room when there are too many connections.
func TestVictim(t *testing.T) {
	conn := func(served, idle bool, silent time.Duration) *inbound {
		c := &inbound{stream: &stream{}, served: served, idle: idle}
		c.moved.Store(time.Now().Add(-silent).UnixNano())
		return c
	}
	fresh, older := conn(false, false, time.Minute), conn(false, false, time.Hour)
	halted, idle, busy := conn(true, false, time.Hour), conn(true, true, 2*time.Hour), conn(true, false, 0)
	for _, c := range []struct {
		name string
		have []*inbound
		want *inbound
	}{
		{"never asked for anything, the oldest", []*inbound{fresh, older, halted, idle, busy}, older},
		{"stands still in a request", []*inbound{idle, halted, busy}, halted},
		{"between requests", []*inbound{busy, idle}, idle},
		{"all are at work", []*inbound{busy}, nil},
	} {
		tr := &Transport{}
		tr.in.conns = map[*inbound]struct{}{}
		for _, in := range c.have {
			tr.in.conns[in] = struct{}{}
		}
		if got := tr.victim(); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}
