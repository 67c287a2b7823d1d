package etcd

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

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
	server := testenv.Etcd(t)
	metadatatest.Run(t, func(t testing.TB) metadata.Store {
		s := open(t, Options{Endpoints: []string{server.Addr}})
		if _, err := s.client.Delete(t.Context(), "\x00", clientv3.WithFromKey()); err != nil {
			t.Fatal(err)
		}
		return s
	}, metadatatest.Options{TTL: time.Second})
}

// TestValuesAsMooncakeWrites: one line end behind each value, and none is needed.
func TestValuesAsMooncakeWrites(t *testing.T) {
	s := open(t, Options{Endpoints: []string{testenv.Etcd(t).Addr}})
	if err := s.Put(t.Context(), "mooncake/ram/n", []byte("{}")); err != nil {
		t.Fatal(err)
	}
	r, err := s.client.Get(t.Context(), "mooncake/ram/n")
	if err != nil || len(r.Kvs) != 1 || string(r.Kvs[0].Value) != "{}\n" {
		t.Errorf("%v, %v", r, err)
	}
	if _, err := s.client.Put(t.Context(), "mooncake/ram/n", "[]"); err != nil {
		t.Fatal(err)
	}
	if v, err := s.Get(t.Context(), "mooncake/ram/n"); err != nil || string(v) != "[]" {
		t.Errorf("%q, %v", v, err)
	}
}

// TestLeaseIsKept: a key has one lease however often it is put, and gets another
// one when etcd has lost that.
func TestLeaseIsKept(t *testing.T) {
	s := open(t, Options{Endpoints: []string{testenv.Etcd(t).Addr}})
	put := func() clientv3.LeaseID {
		t.Helper()
		if err := s.PutLeased(t.Context(), "k", []byte("v"), 10*time.Second); err != nil {
			t.Fatal(err)
		}
		r, err := s.client.Get(t.Context(), "k")
		if err != nil || len(r.Kvs) != 1 {
			t.Fatal(r, err)
		}
		return clientv3.LeaseID(r.Kvs[0].Lease)
	}
	first := put()
	if second := put(); first == 0 || second != first {
		t.Errorf("leases %x and %x, want one", first, second)
	}
	if left, err := s.renew(t.Context(), first); err != nil || left != 10 {
		t.Errorf("renewed for %d s, %v", left, err)
	}
	if _, err := s.client.Revoke(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	if s.renewer("k", grant{first, 10})(t.Context()) {
		t.Error("a lease that is gone is said to be there")
	}
	if third := put(); third == first || third == 0 {
		t.Errorf("lease %x after %x was revoked", third, first)
	}
	if err := s.Put(t.Context(), "k", []byte("w")); err != nil {
		t.Fatal(err)
	}
	if g := s.granted("k"); g != (grant{}) {
		t.Errorf("%+v after a Put for good", g)
	}
}

func TestTooLong(t *testing.T) {
	s := open(t, Options{Endpoints: []string{testenv.Etcd(t).Addr}})
	for _, n := range []int{2 << 20, 40 << 20} { // more than etcd takes, and than the client sends
		err := s.Put(t.Context(), "k", make([]byte, n))
		if !errors.Is(err, errs.ErrInvalid) || !strings.Contains(err.Error(), "max-request-bytes") {
			t.Errorf("%d bytes: %v, want invalid and what to do", n, err)
		}
	}
}

func TestWrongEndpoints(t *testing.T) {
	for _, list := range [][]string{nil, {""}, {"h:1", " "}, {"h/x"}} {
		if _, err := New(Options{Endpoints: list}); !errors.Is(err, errs.ErrInvalid) {
			t.Errorf("%q: %v, want invalid", list, err)
		}
	}
}

// TestServerAway: a server that is stopped, silent or gone costs a bounded wait
// and an error that says so; when it is back, so is the store, and what it kept.
func TestServerAway(t *testing.T) {
	testenv.Leak(t)
	server := testenv.Etcd(t)
	px := testenv.NewProxy(t, server.Addr)
	s := open(t, Options{Endpoints: []string{px.Addr}, Timeout: 300 * time.Millisecond})
	works := func() bool { return s.Put(t.Context(), "k", []byte("v")) == nil }
	testenv.Eventually(t, patience, works, "the first call")
	server.Stop()
	var wg sync.WaitGroup
	for range 16 {
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
	gone := open(t, Options{Endpoints: []string{server.Addr}, Timeout: time.Hour}) // it is refused, and does not wait
	if _, err := gone.Get(t.Context(), "k"); errs.Of(err) != errs.Unreachable || !strings.Contains(err.Error(), "refused") {
		t.Errorf("killed: %v, want unreachable, since refused", err)
	}
	if err := gone.Put(t.Context(), "k", nil); errs.Of(err) != errs.Unreachable {
		t.Errorf("killed: %v, want unreachable", err)
	}
	server.Restart()
	testenv.Eventually(t, patience, func() bool { v, err := s.Get(t.Context(), "k"); return err == nil && string(v) == "v" }, "after a restart")
}

// TestWatchOutlivesTheServer: a watch goes on after a restart, and has what
// changed meanwhile.
func TestWatchOutlivesTheServer(t *testing.T) {
	server := testenv.Etcd(t)
	s := open(t, Options{Endpoints: []string{server.Addr}, Timeout: time.Second})
	seen := make(chan string, 100)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Watch(ctx, "k", func(v []byte) { seen <- string(v) }) }()
	until := func(want string) {
		t.Helper()
		for timeout := time.After(patience); ; {
			select {
			case v := <-seen:
				if v == want {
					return
				}
			case <-timeout:
				t.Fatalf("%q was not reported", want)
			}
		}
	}
	until("")
	for _, v := range []string{"one", "two", "three"} {
		testenv.Eventually(t, patience, func() bool { return s.Put(t.Context(), "k", []byte(v)) == nil }, "put")
		until(v)
		server.Kill()
		server.Restart()
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
