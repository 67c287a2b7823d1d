// Package redis is a metadata store in a Redis server, with the keys and values
// that Mooncake's engines put there.
package redis

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"net"
	"strconv"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/metadata"
)

// Options are for New. Zero fields have the documented default.
type Options struct {
	Addr           string        // host:port
	Username       string        // empty: the default user
	Password       string        // empty: none
	DB             int           // number of the database, 0 to 255
	Timeout        time.Duration // bounds each command, default 3 s
	ConnectTimeout time.Duration // bounds a connection attempt, default 1.5 s
	MaxConns       int           // connections at a time; more commands wait. Default 8
	WatchEvery     time.Duration // how often Watch looks, default 1 s
}

// Store is a metadata.Store, Watcher and Leaser. Make it with New.
type Store struct {
	opts   Options
	client *goredis.Client
	leases metadata.Leases
}

// Silence keeps the client that all stores are built on from writing to standard
// error. A program calls it before it opens any.
func Silence() { goredis.SetLogger(silent{}) }

// silent logs nothing: every failure is in the error of a call.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// New returns a store. It connects when it is used first. Wrong options are
// errs.Invalid.
func New(opts Options) (*Store, error) {
	host, port, err := net.SplitHostPort(opts.Addr)
	if n, perr := strconv.ParseUint(port, 10, 16); err != nil || perr != nil || host == "" || n == 0 {
		return nil, errs.New(errs.Invalid, "open metadata store", "address %q, want host:port", opts.Addr)
	}
	if opts.DB < 0 || opts.DB > 255 {
		return nil, errs.New(errs.Invalid, "open metadata store", "database %d, want 0 to 255", opts.DB)
	}
	def(&opts.Timeout, 3*time.Second)
	def(&opts.ConnectTimeout, 1500*time.Millisecond)
	def(&opts.MaxConns, 8)
	def(&opts.WatchEvery, time.Second)
	return &Store{opts: opts, client: goredis.NewClient(&goredis.Options{
		Addr: opts.Addr, Username: opts.Username, Password: opts.Password, DB: opts.DB, Protocol: 2, DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		DialTimeout:              opts.ConnectTimeout, DialerRetries: 1, ReadTimeout: opts.Timeout, WriteTimeout: opts.Timeout, PoolTimeout: opts.Timeout,
		MaxRetries: 1, ContextTimeoutEnabled: true, PoolSize: opts.MaxConns, MaxActiveConns: opts.MaxConns,
	})}, nil
}

func def[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

// Close ends renewals and connections.
func (s *Store) Close() error {
	s.leases.Close()
	return s.client.Close()
}

// newline ends every value in Redis, as Mooncake writes them.
const newline = "\n"

// Get returns the value, or errs.NotFound.
func (s *Store) Get(ctx context.Context, key string) ([]byte, error) {
	var value string
	err := s.do(ctx, "get", key, func(ctx context.Context) (err error) {
		value, err = s.client.Get(ctx, key).Result()
		return err
	})
	if err != nil {
		return nil, err
	}
	return []byte(strings.TrimSuffix(value, newline)), nil
}

// Put creates or replaces the value.
func (s *Store) Put(ctx context.Context, key string, value []byte) error {
	return s.leases.Change(ctx, key, 0, func() (metadata.Renew, error) {
		return nil, s.set(ctx, key, string(value)+newline, 0)
	})
}

func (s *Store) set(ctx context.Context, key, value string, ttl time.Duration) error {
	return s.do(ctx, "put", key, func(ctx context.Context) error { return s.client.Set(ctx, key, value, ttl).Err() })
}

// Delete removes the key.
func (s *Store) Delete(ctx context.Context, key string) error {
	return s.leases.Change(ctx, key, 0, func() (metadata.Renew, error) {
		return nil, s.do(ctx, "delete", key, func(ctx context.Context) error { return s.client.Del(ctx, key).Err() })
	})
}

// PutLeased is Put of a value that Redis drops when it was not renewed for ttl.
func (s *Store) PutLeased(ctx context.Context, key string, value []byte, ttl time.Duration) error {
	return s.leases.Change(ctx, key, ttl, func() (metadata.Renew, error) {
		text := string(value) + newline
		if err := s.set(ctx, key, text, max(ttl, time.Millisecond)); err != nil {
			return nil, err
		}
		sum := digest(text) // the value may be long
		return func(ctx context.Context) bool { return s.renew(ctx, key, sum, ttl) }, nil
	})
}

// digest is what Redis's scripts can compute of a value, too.
func digest(text string) string {
	sum := sha1.Sum([]byte(text))
	return hex.EncodeToString(sum[:])
}

// renewScript puts off the end of a value, if it is still the one that was put,
// and with an end: another Put may have put the same one for good.
const renewScript = `local v = redis.call('GET', KEYS[1])
if not v or redis.call('PTTL', KEYS[1]) < 0 or redis.sha1hex(v) ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])`

// renew reports whether the value is still there, as far as is known.
func (s *Store) renew(ctx context.Context, key, digest string, ttl time.Duration) bool {
	left := int64(1)
	err := s.do(ctx, "renew", key, func(ctx context.Context) (err error) {
		left, err = s.client.Eval(ctx, renewScript, []string{key}, digest, max(ttl, time.Millisecond).Milliseconds()).Int64()
		return err
	})
	return err != nil || left != 0
}

// Watch looks at the key every Options.WatchEvery, and calls changed as
// metadata.Watcher says.
func (s *Store) Watch(ctx context.Context, key string, changed func(value []byte)) error {
	return metadata.Poll(ctx, s, key, s.opts.WatchEvery, changed)
}

// do runs one command, retries included, within the timeout.
func (s *Store) do(ctx context.Context, op, key string, f func(ctx context.Context) error) error {
	call, cancel := context.WithTimeout(ctx, s.opts.Timeout)
	defer cancel()
	err := f(call)
	if err == nil {
		return nil
	}
	e := &errs.Error{Op: op, Peer: s.opts.Addr, Reason: errs.Unreachable, Retryable: true, Err: err}
	var dns *net.DNSError
	var timeout net.Error
	switch {
	case ctx.Err() != nil:
		e.Reason, e.Retryable, e.Err = errs.Of(ctx.Err()), false, context.Cause(ctx)
	case errors.Is(err, goredis.Nil):
		return errs.New(errs.NotFound, op, "no key %q at %s", key, s.opts.Addr)
	case errors.As(err, &dns):
		e.Reason = errs.NameLookup
	case call.Err() != nil, errors.Is(err, goredis.ErrPoolTimeout), errors.As(err, &timeout) && timeout.Timeout():
		e.Reason, e.Err = errs.Unresponsive, nil
		e.Detail = "key " + strconv.Quote(key) + ": no answer within " + s.opts.Timeout.String() + "; check that redis runs and can be reached"
	default:
		said(e, err.Error())
	}
	return e
}

// said gives e the reason that Redis's own words stand for.
func said(e *errs.Error, text string) {
	word, _, _ := strings.Cut(text, " ")
	switch word {
	case "NOAUTH", "WRONGPASS", "NOPERM":
		e.Reason, e.Retryable = errs.Denied, false
		e.Detail = "set MC_REDIS_USERNAME and MC_REDIS_PASSWORD"
	case "OOM", "MISCONF":
		e.Reason = errs.Overloaded
	case "ERR", "WRONGTYPE":
		e.Reason, e.Retryable = errs.Invalid, false
	}
}
