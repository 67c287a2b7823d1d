package listen

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/testenv"
)

func addrs(list ...string) []netip.Addr {
	var out []netip.Addr
	for _, s := range list {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

func answer(list ...string) func(context.Context, string) ([]netip.Addr, error) {
	return func(context.Context, string) ([]netip.Addr, error) { return addrs(list...), nil }
}

// silent binds an address whose queue is full, so that connecting to it is
// answered by nothing, and returns its port.
func silent(t *testing.T, ip [4]byte) uint16 {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	if err := errors.Join(syscall.Bind(fd, &syscall.SockaddrInet4{Addr: ip}), syscall.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	port := uint16(name.(*syscall.SockaddrInet4).Port)
	for {
		c, err := net.DialTimeout("tcp4", JoinAddr(netip.AddrFrom4(ip).String(), port), 50*time.Millisecond)
		if err != nil {
			return port
		}
		t.Cleanup(func() { _ = c.Close() })
	}
}

// TestDialTakesTheOneThatAnswers: IPv6 first, and only IPv4 listens.
func TestDialTakesTheOneThatAnswers(t *testing.T) {
	l := open(t, Options{})
	_, port, _ := ParseAddr(l.Addr(), 0)
	d := Dialer{Lookup: answer("::1", "127.0.0.1")}
	c, err := d.Dial(t.Context(), JoinAddr("both", port))
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
}

// TestDialDoesNotWaitForASilentOne: the second address is tried beside the first.
func TestDialDoesNotWaitForASilentOne(t *testing.T) {
	port := silent(t, [4]byte{127, 0, 0, 2})
	l := open(t, Options{Listen: JoinAddr("127.0.0.1", port)})
	d := Dialer{Lookup: answer("127.0.0.2", "127.0.0.1"), Timeout: time.Minute}
	c, err := d.Dial(t.Context(), JoinAddr("both", port))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if c.RemoteAddr().String() != l.Addr() {
		t.Error("connected to", c.RemoteAddr())
	}
}

func TestDialErrors(t *testing.T) {
	l := open(t, Options{})
	_, port, _ := ParseAddr(l.Addr(), 0)
	l.Close()
	quiet := silent(t, [4]byte{127, 0, 0, 3})
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []struct {
		name   string
		ctx    context.Context
		d      Dialer
		addr   string
		reason errs.Code
		is     error
	}{
		{"refused", t.Context(), Dialer{}, JoinAddr("127.0.0.1", port), errs.Refused, errs.ErrUnreachable},
		{"refused by all", t.Context(), Dialer{Lookup: answer("127.0.0.1", "127.0.0.2")}, JoinAddr("n", port), errs.Refused, syscall.ECONNREFUSED},
		{"silent", t.Context(), Dialer{Timeout: 50 * time.Millisecond}, JoinAddr("127.0.0.3", quiet), errs.Unresponsive, errs.ErrUnreachable},
		{"no address", t.Context(), Dialer{Lookup: answer()}, "n:1", errs.NameLookup, errs.ErrUnreachable},
		{"unknown name", t.Context(), Dialer{Lookup: func(context.Context, string) ([]netip.Addr, error) {
			return nil, &net.DNSError{Err: "no such host", IsNotFound: true}
		}}, "n:1", errs.NameLookup, errs.ErrUnreachable},
		{"canceled", ended, Dialer{}, JoinAddr("127.0.0.3", quiet), errs.Canceled, context.Canceled},
		{"no port", t.Context(), Dialer{}, "127.0.0.1", errs.Invalid, errs.ErrInvalid},
		{"no host", t.Context(), Dialer{}, ":80", errs.Invalid, errs.ErrInvalid},
		{"link-local without a zone", t.Context(), Dialer{}, "[fe80::1]:80", errs.Invalid, errs.ErrInvalid},
		{"nonsense", t.Context(), Dialer{}, "a b", errs.Invalid, errs.ErrInvalid},
	} {
		conn, err := c.d.Dial(c.ctx, c.addr)
		if conn != nil || errs.Of(err) != c.reason || !errors.Is(err, c.is) {
			t.Errorf("%s: %v (%v), want %v", c.name, err, errs.Of(err), c.reason)
		}
	}
}

// TestSlowNames: a name that does not resolve costs a second, not the whole timeout.
func TestSlowNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := Dialer{Lookup: func(ctx context.Context, _ string) ([]netip.Addr, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}}
		start := time.Now()
		_, err := d.Dial(t.Context(), "n:1")
		if took := time.Since(start); errs.Of(err) != errs.NameLookup || took != time.Second {
			t.Errorf("%v after %v", err, took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, err := d.Dial(ctx, "n:1"); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
}

// TestExplain: what is short on this host is never called the peer's death.
func TestExplain(t *testing.T) {
	failed := func(ip string, errno syscall.Errno) error {
		return &net.OpError{Op: "dial", Addr: &net.TCPAddr{IP: net.ParseIP(ip)}, Err: os.NewSyscallError("connect", errno)}
	}
	for _, c := range []struct {
		failures []error
		want     errs.Code
	}{
		{[]error{failed("10.0.0.1", syscall.EADDRNOTAVAIL)}, errs.Overloaded},
		{[]error{failed("fd00::1", syscall.EADDRNOTAVAIL)}, errs.Overloaded},
		{[]error{failed("10.0.0.1", syscall.EMFILE)}, errs.Overloaded},
		{[]error{failed("::1", syscall.EADDRNOTAVAIL), failed("127.0.0.1", syscall.ECONNREFUSED)}, errs.Refused},
		{[]error{failed("10.0.0.1", syscall.EADDRNOTAVAIL), failed("::1", syscall.ECONNREFUSED)}, errs.Overloaded},
		{[]error{failed("10.0.0.1", syscall.EHOSTUNREACH)}, errs.Unreachable},
		{[]error{failed("10.0.0.1", syscall.EPERM)}, errs.Denied},
	} {
		err := new(Dialer).explain(t.Context(), "n:1", telling(c.failures))
		var e *errs.Error
		if !errors.As(err, &e) || e.Reason != c.want || e.Peer != "n:1" || e.Detail == "" || !e.Retryable {
			t.Errorf("%v: %+v, want %v", c.failures, e, c.want)
		}
	}
}

func TestTakeTurns(t *testing.T) {
	got := takeTurns(addrs("fd00::1", "fd00::2", "fd00::3", "10.0.0.1", "::ffff:10.0.0.2"))
	if want := "[fd00::1 10.0.0.1 fd00::2 10.0.0.2 fd00::3]"; fmt.Sprint(got) != want {
		t.Errorf("%v, want %v", got, want)
	}
	var many []netip.Addr
	for i := range 100 {
		many = append(many, netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}))
	}
	if n := len(takeTurns(many)); n != maxAddrs {
		t.Errorf("%d addresses are tried", n)
	}
}

// logged is a slog handler that counts.
type logged struct {
	slog.Handler
	mu sync.Mutex
	n  int
}

func (h *logged) Enabled(context.Context, slog.Level) bool { return true }
func (h *logged) Handle(context.Context, slog.Record) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.n++
	return nil
}
func (h *logged) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.n
}

// TestOutOfDescriptors: without descriptors the listener waits and goes on when
// there are some again, and a dialer says that it is this host's fault.
func TestOutOfDescriptors(t *testing.T) {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	few := syscall.Rlimit{Cur: 128, Max: limit.Max}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit) })
	log := &logged{}
	l := open(t, Options{Logger: slog.New(log)})
	_ = l.Handle(prefaceA, echo("a"))
	var held []*os.File
	release := func() {
		for _, f := range held {
			_ = f.Close()
		}
		held = nil
	}
	t.Cleanup(release)
	for {
		f, err := os.Open("/dev/null")
		if err != nil {
			break
		}
		held = append(held, f)
	}
	var d Dialer
	if _, err := d.Dial(t.Context(), l.Addr()); !errors.Is(err, errs.ErrOverloaded) || !strings.Contains(err.Error(), "ulimit") {
		t.Fatal(err)
	}
	_ = held[0].Close()
	held = held[1:]
	c := dial(t, l) // takes the last one, so that accept has none
	testenv.Eventually(t, 10*time.Second, func() bool { return log.count() > 0 }, "accept fails")
	release()
	say(t, c, string(prefaceA[:]))
	hear(t, c, "a")
	if n := log.count(); n != 1 {
		t.Errorf("%d lines logged for one shortage", n)
	}
}
