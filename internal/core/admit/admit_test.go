package admit

import (
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/quick"

	"github.com/tideway-io/tideway/errs"
)

func TestTakeIsAllOrNothing(t *testing.T) {
	d := New(Config{Limits: Limits{Requests: 10, Bytes: 1000}, Tenants: 2, TenantLimits: func(name string) Limits {
		if name == "red" {
			return Limits{Requests: 3, Bytes: 500}
		}
		return Limits{}
	}})
	for _, step := range []struct {
		tenant   string
		n, bytes int64
		code     errs.Code
		says     string
	}{
		{"", 4, 400, errs.OK, ""},
		{"", 7, 0, errs.Overloaded, "7 requests do not fit beside the 4 inside, the limit for the engine is 10"},
		{"", 1, 601, errs.Overloaded, "601 bytes do not fit beside the 400 inside"},
		{"", 11, 0, errs.Invalid, "11 requests in one call exceed the limit of 10"},
		{"", 1, 1001, errs.Invalid, "1001 bytes in one call exceed"},
		{"red", 4, 0, errs.Invalid, "limit of 3 for the tenant red"},
		{"red", 2, 300, errs.OK, ""},
		{"red", 2, 0, errs.Overloaded, "the limit for the tenant red is 3"},
		{"red", 1, 201, errs.Overloaded, "201 bytes do not fit beside the 300 inside"},
		{"blue", 1, 0, errs.OK, ""},
		{"green", 1, 0, errs.Overloaded, "2 tenants have requests inside, the limit is 2"},
		{"", -1, 0, errs.Invalid, "want 0 to"},
		{"", 0, math.MinInt64, errs.Invalid, "want 0 to"},
		{"", 0, math.MaxInt64, errs.Invalid, "want 0 to"},
		{"", 3, 300, errs.OK, ""},
	} {
		n0, b0 := d.Inside()
		err := d.Take(step.tenant, step.n, step.bytes)
		if errs.Of(err) != step.code || err != nil && !strings.Contains(err.Error(), step.says) {
			t.Errorf("take %q %d %d: %v, want %v saying %q", step.tenant, step.n, step.bytes, err, step.code, step.says)
		}
		n1, b1 := d.Inside()
		if err != nil && (n0 != n1 || b0 != b1) {
			t.Errorf("take %q %d %d was refused and changed the count from %d/%d to %d/%d", step.tenant, step.n, step.bytes, n0, b0, n1, b1)
		}
	}
	if n, b := d.Inside(); n != 10 || b != 1000 {
		t.Errorf("inside are %d requests of %d bytes, want 10 of 1000", n, b)
	}
}

func TestGiveMoreThanTaken(t *testing.T) {
	d := New(Config{})
	if err := d.Take("a", 2, 10); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		tenant   string
		n, bytes int64
	}{{"a", 3, 0}, {"a", 0, 11}, {"b", 1, 0}, {"", 3, 0}, {"a", -1, 0}, {"a", 0, -1}} {
		if err := d.Give(c.tenant, c.n, c.bytes); !errors.Is(err, errs.ErrInternal) {
			t.Errorf("give %v: %v, want an internal error", c, err)
		}
	}
	if err := d.Give("a", 2, 10); err != nil {
		t.Error(err)
	}
	if n, b := d.Inside(); n != 0 || b != 0 || len(d.tenants) != 0 {
		t.Errorf("inside are %d requests, %d bytes, %d tenants after all left", n, b, len(d.tenants))
	}
}

// TestExact holds the door against a list of what is inside, counted anew each time.
func TestExact(t *testing.T) {
	type entry struct {
		tenant   string
		n, bytes int64
	}
	names := []string{"", "red", "blue", "green"}
	limits := map[string]Limits{"red": {Requests: 5}, "blue": {Bytes: 300}}
	run := func(seed uint64) bool {
		r := rand.New(rand.NewPCG(seed, 2))
		d := New(Config{Limits: Limits{Requests: 20, Bytes: 1000}, Tenants: 2, TenantLimits: func(s string) Limits { return limits[s] }})
		var inside []entry
		sum := func(tenant string) (n, bytes int64, tenants map[string]bool) {
			tenants = map[string]bool{}
			for _, e := range inside {
				if tenant == "*" || e.tenant == tenant {
					n, bytes = n+e.n, bytes+e.bytes
				}
				if e.tenant != "" && e.n+e.bytes > 0 {
					tenants[e.tenant] = true
				}
			}
			return n, bytes, tenants
		}
		for range 200 {
			if len(inside) > 0 && r.IntN(2) == 0 {
				i := r.IntN(len(inside))
				if d.Give(inside[i].tenant, inside[i].n, inside[i].bytes) != nil {
					return false
				}
				inside = append(inside[:i], inside[i+1:]...)
			} else {
				e := entry{names[r.IntN(len(names))], r.Int64N(6) + 1, r.Int64N(400)}
				n, b, live := sum("*")
				fits := n+e.n <= 20 && b+e.bytes <= 1000
				if e.tenant != "" {
					tn, tb, _ := sum(e.tenant)
					l := limits[e.tenant]
					fits = fits && (l.Requests == 0 || tn+e.n <= l.Requests) && (l.Bytes == 0 || tb+e.bytes <= l.Bytes) &&
						(live[e.tenant] || len(live) < 2)
				}
				if got := d.Take(e.tenant, e.n, e.bytes) == nil; got != fits {
					return false
				} else if got {
					inside = append(inside, e)
				}
			}
			n, b, live := sum("*")
			if gn, gb := d.Inside(); gn != n || gb != b || len(d.tenants) != len(live) {
				return false
			}
		}
		return true
	}
	if err := quick.Check(run, nil); err != nil {
		t.Error(err)
	}
}

func TestSteadyStateAllocatesNothing(t *testing.T) {
	d := New(Config{Limits: Limits{Requests: 100}})
	cycle := func() {
		if d.Take("red", 4, 100) != nil || d.Take("", 4, 100) != nil || d.Give("red", 4, 100) != nil || d.Give("", 4, 100) != nil {
			t.Error("refused")
		}
	}
	cycle()
	if n := testing.AllocsPerRun(100, cycle); n != 0 {
		t.Errorf("%v allocations for two takes and gives, want 0", n)
	}
}
