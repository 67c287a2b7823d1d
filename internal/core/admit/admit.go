// Package admit is the bounded door in front of the scheduler: how many
// requests and bytes may be inside at once, in all and per tenant.
//
// It counts and nothing more; it does not queue, wait or know what a request
// is. It has no lock: the engine holds one around it.
package admit

import (
	"github.com/tideway-io/tideway/errs"
)

// Limits bound what is inside at one time. Zero or less means no limit.
type Limits struct {
	Requests int64
	Bytes    int64
}

// Config configures a Door.
type Config struct {
	Limits
	// Tenants is how many named tenants may be inside at once. Default 1024.
	Tenants int
	// TenantLimits returns a tenant's own limits. It is asked when the tenant
	// comes in with nothing inside; nil: tenants have none.
	TenantLimits func(tenant string) Limits
}

// Door is the count of what is inside. A tenant takes room in it only while it
// has requests inside.
type Door struct {
	cfg     Config
	all     usage
	tenants map[string]*usage
	free    []*usage // of tenants that left, for the next ones
}

// usage is what one party has inside, and its limits.
type usage struct {
	requests, bytes int64
	limits          Limits
}

// New returns a door with nothing inside.
func New(cfg Config) *Door {
	if cfg.Tenants <= 0 {
		cfg.Tenants = 1024
	}
	return &Door{cfg: cfg, all: usage{limits: cfg.Limits}, tenants: make(map[string]*usage)}
}

// Take lets n requests with bytes in all inside, or none of them and returns an
// ErrOverloaded that names the limit. The empty tenant has no limits of its own.
// One call that exceeds a limit by itself is ErrInvalid: it would never fit.
func (d *Door) Take(tenant string, n, bytes int64) error {
	if err := d.all.check("engine", "", n, bytes); err != nil {
		return err
	}
	if tenant == "" {
		d.all.add(n, bytes)
		return nil
	}
	u, known := d.tenants[tenant]
	if !known {
		if len(d.tenants) >= d.cfg.Tenants {
			return overloaded("%d tenants have requests inside, the limit is %d; tenant %q can come in when another has none",
				len(d.tenants), d.cfg.Tenants, tenant)
		}
		u = d.enter(tenant)
	}
	if err := u.check("tenant", tenant, n, bytes); err != nil {
		if !known {
			d.free = append(d.free, u)
		}
		return err
	}
	d.tenants[tenant] = u
	u.add(n, bytes)
	d.all.add(n, bytes)
	return nil
}

// enter returns a usage with the tenant's limits. It is not in the table yet.
func (d *Door) enter(tenant string) *usage {
	var u *usage
	if last := len(d.free) - 1; last >= 0 {
		u, d.free = d.free[last], d.free[:last]
		*u = usage{}
	} else {
		u = new(usage)
	}
	if d.cfg.TenantLimits != nil {
		u.limits = d.cfg.TenantLimits(tenant)
	}
	return u
}

// Give takes n requests with bytes in all out again. Giving what was not taken
// is a broken invariant, reported as ErrInternal, and changes nothing.
func (d *Door) Give(tenant string, n, bytes int64) error {
	u := d.tenants[tenant]
	if n < 0 || bytes < 0 || !d.all.holds(n, bytes) || tenant != "" && (u == nil || !u.holds(n, bytes)) {
		return errs.New(errs.Internal, "admit", "%d requests of %d bytes given back for tenant %q, which has fewer inside", n, bytes, tenant)
	}
	d.all.add(-n, -bytes)
	if tenant == "" {
		return nil
	}
	u.add(-n, -bytes)
	if u.requests == 0 && u.bytes == 0 {
		delete(d.tenants, tenant)
		d.free = append(d.free, u)
	}
	return nil
}

// Inside returns how much is inside in all.
func (d *Door) Inside() (requests, bytes int64) { return d.all.requests, d.all.bytes }

// Tenant returns how much one named tenant has inside.
func (d *Door) Tenant(tenant string) (requests, bytes int64) {
	if u := d.tenants[tenant]; u != nil {
		return u.requests, u.bytes
	}
	return 0, 0
}

func (u *usage) add(n, bytes int64) {
	u.requests += n
	u.bytes += bytes
}

func (u *usage) holds(n, bytes int64) bool { return u.requests >= n && u.bytes >= bytes }

// check says whether n and bytes fit beside what is inside. Everything is kept
// below 1<<62, so the sums do not overflow.
func (u *usage) check(who, name string, n, bytes int64) error {
	const most = 1 << 62
	if n < 0 || bytes < 0 || n > most || bytes > most {
		return errs.New(errs.Invalid, "admit", "%d requests of %d bytes in one call: want 0 to %d of each", n, bytes, int64(most))
	}
	if err := fit(who, name, "requests", u.requests, n, u.limits.Requests); err != nil {
		return err
	}
	return fit(who, name, "bytes", u.bytes, bytes, u.limits.Bytes)
}

func fit(who, name, what string, inside, want, limit int64) error {
	const most = 1 << 62
	if limit <= 0 {
		limit = most
	}
	if want <= limit-inside {
		return nil
	}
	if name != "" {
		who += " " + name
	}
	if want > limit {
		return errs.New(errs.Invalid, "admit", "%d %s in one call exceed the limit of %d for the %s; submit fewer at a time", want, what, limit, who)
	}
	return overloaded("%d %s do not fit beside the %d inside, the limit for the %s is %d; wait for some to end", want, what, inside, who, limit)
}

func overloaded(format string, args ...any) error {
	e := errs.New(errs.Overloaded, "admit", format, args...)
	e.Stage, e.Retryable = "admit", true
	return e
}
