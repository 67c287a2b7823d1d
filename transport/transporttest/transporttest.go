// Package transporttest is the conformance suite of the transport contract: a
// transport is done when it passes.
//
// Run opens the transport in two or three in-process hosts, each with a real
// loopback listener, a registry, a recording sink and a network that can hold
// bytes back, change them, lose them and hang up, and checks the promises of
// the engine at the level of the contract, one sub-test for each. For every
// promise it prints one line, "promise 07 tcp ok" or "promise 07 tcp skipped:
// reason", so that what ran can be checked against what must run.
//
// It checks a transport from outside. What needs two processes, a kill or a
// real fault of the network is the business of the end-to-end tests.
package transporttest

import (
	"fmt"
	"testing"
	"time"

	"github.com/tideway-io/tideway/internal/testenv/mustrun"
	"github.com/tideway-io/tideway/transport"
)

// Config describes the transport under test.
type Config struct {
	// Driver makes a driver. It is called once for each check; all hosts of the
	// check open the driver that it returns.
	Driver func() transport.Driver
	// Skip gives, for a promise that the transport does not make or that has no
	// meaning for it, the reason. A promise that the suite finds nothing to check
	// for must be here, or in this module's list of blanks: no skip is hidden.
	Skip map[int]string
	// Addressed says that the wire names ranges by absolute address only: it has
	// neither incarnations nor keys, and refuses without saying why. What only
	// these could tell is not asked for.
	Addressed bool
	// MaxSlice is the largest slice tried. Default and upper limit: 8 MiB, and
	// what Caps say.
	MaxSlice int
	// Patience is how long anything that must end may take. Default 20 s.
	Patience time.Duration
	// Prompt is how long something that must end at once may take while the
	// peer is silent. Default 5 s; the transport's own stall limit is far above.
	Prompt time.Duration
}

// promise is one row of the matrix: a sentence and the check of it.
type promise struct {
	number int
	name   string
	check  func(t testing.TB, cfg *Config)
}

// promises are the engine's promises as far as a transport can keep them.
var promises = [...]promise{
	{1, "completed_means_applied", checkApplied},
	{2, "cancel_withdraws", checkCancel},
	{3, "memory_is_yours_again", checkQuiet},
	{4, "overload_takes_a_prefix", checkOverload},
	{5, "exactly_once", checkOnce},
	{6, "refused_was_not_started", checkRefused},
	{7, "no_ghost_writes", checkGhosts},
	{8, "stale_is_refused", checkStale},
	{9, "access_is_enforced", checkAccess},
	{10, "corruption_is_detected", checkCorruption},
	{11, "no_order_no_mixing", checkMixing},
	{12, "zero_values_are_safe", checkZero},
	{13, "one_bad_peer_costs_only_its_own", checkHostile},
	{14, "errors_say_what_and_where", checkErrors},
}

// Run checks the transport promise by promise. The sub-tests must not run in
// parallel with others: they count goroutines and descriptors.
func Run(t *testing.T, cfg Config) {
	cfg.defaults()
	name := cfg.Driver().Name()
	if err := cfg.Driver().Probe(t.Context()); err != nil {
		for _, p := range promises {
			fmt.Printf("promise %02d %s skipped: %v\n", p.number, name, err)
		}
		t.Skipf("%s cannot be opened here: %v", name, err)
	}
	for _, p := range promises {
		t.Run(fmt.Sprintf("%02d_%s", p.number, p.name), func(t *testing.T) { p.run(t, name, &cfg) })
	}
}

// run runs one promise and prints its line of the matrix.
func (p *promise) run(t *testing.T, name string, cfg *Config) {
	row, ended := &row{TB: t, number: p.number}, false
	t.Cleanup(func() {
		switch {
		case row.skipped != "":
			fmt.Printf("promise %02d %s skipped: %s\n", p.number, name, row.skipped)
		case t.Failed() || !ended: // the latter: it panics
			fmt.Printf("promise %02d %s FAILED\n", p.number, name)
		default:
			fmt.Printf("promise %02d %s ok\n", p.number, name)
		}
	})
	reason := cfg.Skip[p.number]
	if _, listed := mustrun.Blank(name, p.name); reason == "" && !listed {
		row.must = true
	}
	if reason != "" {
		row.Skipf("%s", reason)
	}
	p.check(row, cfg)
	ended = true
}

// row is a test that remembers why it was skipped.
type row struct {
	testing.TB
	number  int
	must    bool // the promise is not among those that may be left blank
	skipped string
}

// Skipf notes the reason and skips, or fails where the blank is not foreseen.
func (r *row) Skipf(format string, args ...any) {
	r.Helper()
	if r.must {
		r.Fatalf(format+": a blank that is neither in Config.Skip nor in mustrun/blanks.txt", args...)
	}
	r.skipped = fmt.Sprintf(format, args...)
	r.TB.Skipf("promise %02d is left blank: %s", r.number, r.skipped)
}

func (c *Config) defaults() {
	if c.MaxSlice <= 0 || c.MaxSlice > 8<<20 {
		c.MaxSlice = 8 << 20
	}
	if c.Patience == 0 {
		c.Patience = 20 * time.Second
	}
	if c.Prompt == 0 {
		c.Prompt = 5 * time.Second
	}
}

// largest returns the size of the largest slice to try over h's transport.
func (c *Config) largest(h *host) int {
	if limit := h.tr.Caps().MaxSlice; limit != 0 && limit < uint64(c.MaxSlice) {
		return int(limit)
	}
	return c.MaxSlice
}

// rounds scales a number of rounds down where the tests run short.
func rounds(n int) int {
	if testing.Short() {
		return max(1, n/4)
	}
	return n
}
