package redis

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/testenv"
	"github.com/tideway-io/tideway/metadata"
	"github.com/tideway-io/tideway/metadata/metadatatest"
)

const patience = 20 * time.Second

func open(t testing.TB, o Options) *Store {
	t.Helper()
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func TestConformance(t *testing.T) {
	testenv.Leak(t)
	server := testenv.Redis(t)
	metadatatest.Run(t, func(t testing.TB) metadata.Store {
		s := open(t, Options{Addr: server.Addr, DB: 3, WatchEvery: 2 * time.Millisecond})
		if err := s.client.FlushAll(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		return s
	}, metadatatest.Options{TTL: time.Second})
}

// TestValuesAsMooncakeWrites: one line end behind each value, and none is needed.
func TestValuesAsMooncakeWrites(t *testing.T) {
	s := open(t, Options{Addr: testenv.Redis(t).Addr})
	for range 2 {
		if err := s.Put(t.Context(), "mooncake/ram/n", []byte("{}")); err != nil {
			t.Fatal(err)
		}
		if v := s.client.Get(t.Context(), "mooncake/ram/n").Val(); v != "{}\n" {
			t.Errorf("%q", v)
		}
		if err := s.client.Set(t.Context(), "mooncake/ram/n", "[]", 0).Err(); err != nil {
			t.Fatal(err)
		}
		if v, err := s.Get(t.Context(), "mooncake/ram/n"); err != nil || string(v) != "[]" {
			t.Errorf("%q, %v", v, err)
		}
	}
}

// TestSameValueForGood: the renewal of a lease does not give an end to the same
// value that somebody has put for good.
func TestSameValueForGood(t *testing.T) {
	addr := testenv.Redis(t).Addr
	s, other := open(t, Options{Addr: addr}), open(t, Options{Addr: addr})
	if err := s.PutLeased(t.Context(), "k", []byte("v"), 30*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if err := other.Put(t.Context(), "k", []byte("v")); err != nil {
		t.Fatal(err)
	}
	if s.renew(t.Context(), "k", digest("v"+newline), time.Second) {
		t.Error("a value for good was renewed")
	}
	if ttl := s.client.PTTL(t.Context(), "k").Val(); ttl >= 0 {
		t.Errorf("it ends in %v", ttl)
	}
}

func TestPassword(t *testing.T) {
	addr := testenv.Redis(t, "--requirepass", "secret", "--user", "moon", "on", ">cake", "~mooncake/*", "+@all").Addr
	if err := open(t, Options{Addr: addr}).Put(t.Context(), "mooncake/k", nil); !errors.Is(err, errs.ErrDenied) || !strings.Contains(err.Error(), "MC_REDIS_PASSWORD") {
		t.Errorf("without: %v, want denied and what to do", err)
	}
	for _, o := range []Options{{Addr: addr, Password: "secret"}, {Addr: addr, Username: "moon", Password: "cake"}} {
		if err := open(t, o).Put(t.Context(), "mooncake/k", nil); err != nil {
			t.Errorf("%+v: %v", o, err)
		}
	}
	err := open(t, Options{Addr: addr, Username: "moon", Password: "cake"}).Put(t.Context(), "other", nil)
	if !errors.Is(err, errs.ErrDenied) {
		t.Errorf("a key that is not allowed: %v", err)
	}
	err = open(t, Options{Addr: addr, Password: "wrong"}).Put(t.Context(), "mooncake/k", nil)
	if !errors.Is(err, errs.ErrDenied) || strings.Contains(err.Error(), "wrong") && !strings.Contains(err.Error(), "WRONGPASS") {
		t.Errorf("a wrong one: %v", err)
	}
}

func TestFull(t *testing.T) {
	s := open(t, Options{Addr: testenv.Redis(t, "--maxmemory", "1mb", "--maxmemory-policy", "noeviction").Addr})
	if err := s.Put(t.Context(), "k", make([]byte, 2<<20)); !errors.Is(err, errs.ErrOverloaded) {
		// the first one may be taken, since memory is looked at before
		if err = s.Put(t.Context(), "l", make([]byte, 2<<20)); !errors.Is(err, errs.ErrOverloaded) {
			t.Errorf("%v, want overloaded", err)
		}
	}
}

func TestWrongOptions(t *testing.T) {
	for _, o := range []Options{{}, {Addr: "h"}, {Addr: ":1"}, {Addr: "h:x"}, {Addr: "h:0"}, {Addr: "h:1", DB: 256}, {Addr: "h:1", DB: -1}} {
		if _, err := New(o); !errors.Is(err, errs.ErrInvalid) {
			t.Errorf("%+v: %v, want invalid", o, err)
		}
	}
}

// TestServerAway: a server that is stopped, silent or gone costs a bounded wait
// and an error that says so; when it is back, so is the store.
func TestServerAway(t *testing.T) {
	testenv.Leak(t)
	server := testenv.Redis(t)
	px := testenv.NewProxy(t, server.Addr)
	s := open(t, Options{Addr: px.Addr, Timeout: 200 * time.Millisecond, MaxConns: 4})
	works := func() bool { return s.Put(t.Context(), "k", []byte("v")) == nil }
	testenv.Eventually(t, patience, works, "the first call")
	server.Stop()
	var wg sync.WaitGroup
	for range 16 { // more than there may be connections: waiting for one is bounded, too
		wg.Go(func() {
			if _, err := s.Get(t.Context(), "k"); errs.Of(err) != errs.Unresponsive || !strings.Contains(err.Error(), px.Addr) {
				t.Errorf("stopped: %v, want unresponsive", err)
			}
		})
	}
	wg.Wait()
	server.Cont()
	testenv.Eventually(t, patience, works, "after it goes on")
	px.BlackHole(true)
	if err := s.Put(t.Context(), "k", nil); errs.Of(err) != errs.Unresponsive {
		t.Errorf("half open: %v, want unresponsive", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := s.Put(ctx, "k", nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the caller's deadline: %v", err)
	}
	px.BlackHole(false)
	px.Cut()
	testenv.Eventually(t, patience, works, "after the black hole")
	server.Kill()
	if err := s.Put(t.Context(), "k", nil); !errors.Is(err, errs.ErrUnreachable) {
		t.Errorf("killed: %v, want unreachable", err)
	}
	server.Restart()
	testenv.Eventually(t, patience, works, "after a restart")
}

func TestMain(m *testing.M) {
	Silence()
	os.Exit(m.Run())
}
