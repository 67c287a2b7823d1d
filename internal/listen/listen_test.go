package listen

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"go.uber.org/goleak"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/testenv"
	"github.com/tideway-io/tideway/topology"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var prefaceA = [8]byte{'A', 'A', 'A', 'A', 'A', 'A', 'A', 'A'}

func open(t *testing.T, opts Options) *Listener {
	t.Helper()
	testenv.Leak(t)
	l, err := Open(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	l.Start()
	return l
}

func dial(t *testing.T, l *Listener) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", l.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	return c
}

// echo says who it is and gives back one byte.
func echo(who string) func(net.Conn) {
	return func(c net.Conn) {
		_, _ = io.WriteString(c, who)
		_, _ = io.CopyN(c, c, 1)
	}
}

func say(t *testing.T, c net.Conn, s string) {
	t.Helper()
	if _, err := io.WriteString(c, s); err != nil {
		t.Fatal(err)
	}
}

func hear(t *testing.T, c net.Conn, want string) {
	t.Helper()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != want {
		t.Fatalf("heard %q, %v, want %q", got, err, want)
	}
}

// closed checks that the other side closed.
func closed(t *testing.T, c net.Conn) {
	t.Helper()
	if n, err := c.Read(make([]byte, 1)); n != 0 || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("read %d, %v, want a closed connection", n, err)
	}
}

func TestHandsOnByPreface(t *testing.T) {
	l := open(t, Options{})
	if err := l.Handle(prefaceA, echo("a")); err != nil {
		t.Fatal(err)
	}
	if err := l.Handle(prefaceA, echo("b")); !errors.Is(err, errs.ErrInvalid) {
		t.Fatal("a preface taken twice:", err)
	}
	c := dial(t, l)
	for i := range 8 { // byte by byte
		say(t, c, string(prefaceA[i]))
	}
	hear(t, c, "a")
	say(t, c, "x")
	hear(t, c, "x")
	closed(t, c) // the handler returned

	c = dial(t, l)
	say(t, c, "MOONCAKE")
	closed(t, c) // nobody takes it
	l.HandleOther(func(first [8]byte, c net.Conn) { _, _ = c.Write(first[:]) })
	c = dial(t, l)
	say(t, c, "MOONCAKE")
	hear(t, c, "MOONCAKE")
	testenv.Eventually(t, 10*time.Second, func() bool { n, _ := l.Conns(); return n == 0 }, "no connection is left")
}

// TestStart: what comes before Start waits, and a second Start is nothing.
func TestStart(t *testing.T) {
	l, err := Open(t.Context(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	c := dial(t, l)
	say(t, c, string(prefaceA[:]))
	_ = l.Handle(prefaceA, echo("a"))
	l.Start()
	l.Start()
	hear(t, c, "a")
	l.Close()
	l.Start()
}

func TestSilentConnectionsEnd(t *testing.T) {
	l := open(t, Options{PrefaceTimeout: 20 * time.Millisecond})
	c := dial(t, l)
	say(t, c, "AAAAAAA")
	closed(t, c)
	testenv.Eventually(t, 10*time.Second, func() bool { n, h := l.Conns(); return n == 0 && h == 0 }, "it is forgotten")
}

// TestHalfOpenLimit: silent connections push each other out and nobody else.
func TestHalfOpenLimit(t *testing.T) {
	l := open(t, Options{MaxHalfOpen: 3, PrefaceTimeout: time.Hour})
	if err := l.Handle(prefaceA, echo("a")); err != nil {
		t.Fatal(err)
	}
	silent := make([]net.Conn, 10)
	for i := range silent {
		silent[i] = dial(t, l)
		testenv.Eventually(t, 10*time.Second, func() bool { n, _ := l.Conns(); return n >= min(i+1, 3) }, "it is accepted")
	}
	for _, c := range silent[:7] {
		closed(t, c)
	}
	good := dial(t, l)
	say(t, good, string(prefaceA[:]))
	hear(t, good, "a")
	if n, half := l.Conns(); n > 4 || half > 3 {
		t.Errorf("%d connections, %d silent", n, half)
	}
}

func TestConnectionLimit(t *testing.T) {
	l := open(t, Options{MaxConns: 2})
	if err := l.Handle(prefaceA, echo("a")); err != nil {
		t.Fatal(err)
	}
	var good []net.Conn
	for range 2 {
		c := dial(t, l)
		say(t, c, string(prefaceA[:]))
		hear(t, c, "a")
		good = append(good, c)
	}
	closed(t, dial(t, l))
	say(t, good[0], "x")
	hear(t, good[0], "x")
	closed(t, good[0])
	testenv.Eventually(t, 10*time.Second, func() bool { n, _ := l.Conns(); return n == 1 }, "there is room again")
	c := dial(t, l)
	say(t, c, string(prefaceA[:]))
	hear(t, c, "a")
}

// TestStopAndClose: Stop frees the port and keeps what runs; Close ends it and waits.
func TestStopAndClose(t *testing.T) {
	l := open(t, Options{})
	var running sync.WaitGroup
	running.Add(1)
	ended := false
	_ = l.Handle(prefaceA, func(c net.Conn) {
		running.Done()
		_, _ = io.Copy(io.Discard, c)
		ended = true
	})
	c, silent := dial(t, l), dial(t, l)
	say(t, c, string(prefaceA[:]))
	running.Wait()
	testenv.Eventually(t, 10*time.Second, func() bool { n, _ := l.Conns(); return n == 2 }, "the silent one is accepted")
	l.Stop()
	l.Stop()
	closed(t, silent)
	if _, err := net.Dial("tcp", l.Addr()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Error("stopped, but", err)
	}
	say(t, c, "still there")
	l.Close()
	if !ended {
		t.Error("Close returned before the handler")
	}
	closed(t, c)
}

func TestPortInUse(t *testing.T) {
	l := open(t, Options{Listen: "127.0.0.1:0"})
	_, port, _ := ParseAddr(l.Addr(), 0)
	_, err := Open(t.Context(), Options{Listen: l.Addr()})
	if !errors.Is(err, errs.ErrPortInUse) {
		t.Fatal(err)
	}
	for _, part := range []string{fmt.Sprintf("port %d", port), fmt.Sprintf("(pid %d)", os.Getpid()), "fall"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%v does not say %q", err, part)
		}
	}
	other := open(t, Options{Listen: l.Addr(), PortFallback: true, Logger: slog.New(slog.DiscardHandler)})
	if at, _ := other.Advertised(); at != other.Addr() || at == l.Addr() {
		t.Errorf("fell back to %s, advertised %s", other.Addr(), at)
	}
}

func TestOwner(t *testing.T) {
	header := "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
	line := func(addr, state, inode string) string {
		return "   0: " + addr + " 00000000:0000 " + state + " 00000000:00000000 00:00000000 00000000     0        0 " + inode + " 1\n"
	}
	link := func(to string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(to), Mode: os.ModeSymlink} }
	proc := fstest.MapFS{
		"net/tcp":   {Data: []byte(header + line("0100007F:1B9F", "01", "11") + line("0100007F:1B9E", "0A", "12") + "short\n")},
		"net/tcp6":  {Data: []byte(header + line("00000000000000000000000000000000:1B9F", "0A", "13"))},
		"9/fd/3":    link("socket:[11]"),
		"10/fd/3":   link("pipe:[13]"),
		"10/fd/4":   link("socket:[13]"),
		"10/comm":   {Data: []byte("tideway\n")},
		"11/fd/9":   link("socket:[12]"),
		"self/fd/4": link("socket:[13]"),
	}
	for port, want := range map[uint16]string{7071: " by tideway (pid 10)", 7070: " by pid 11", 7072: ""} {
		if got := ownerIn(proc, port); got != want {
			t.Errorf("port %d: %q, want %q", port, got, want)
		}
	}
	if got := ownerIn(fstest.MapFS{}, 7071); got != "" {
		t.Errorf("no /proc: %q", got)
	}
}

func TestBindErrors(t *testing.T) {
	for _, c := range []struct {
		listen string
		want   error
	}{
		{"a b", errs.ErrInvalid}, {"127.0.0.1:99999", errs.ErrInvalid}, {"192.0.2.77:0", errs.ErrInvalid},
		{"no-such-host.invalid:0", errs.ErrUnreachable},
	} {
		if _, err := Open(t.Context(), Options{Listen: c.listen}); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.listen, err, c.want)
		}
	}
	if err := explainBind("h", 80, syscall.EACCES); !errors.Is(err, errs.ErrDenied) {
		t.Error(err)
	}
	if err := explainBind("h", 80, syscall.EMFILE); !errors.Is(err, errs.ErrOverloaded) {
		t.Error(err)
	}
}

func fakeNetwork() ([]topology.NIC, []topology.Route, error) {
	nic := func(name string, addrs ...string) topology.NIC {
		n := topology.NIC{Name: name, Up: true, Carrier: true, Loopback: name == "lo", Kind: topology.NICPhysical}
		for _, a := range addrs {
			n.Addrs = append(n.Addrs, netip.MustParsePrefix(a))
		}
		return n
	}
	return []topology.NIC{nic("lo", "127.0.0.1/8", "::1/128"), nic("eth0", "10.0.0.5/24", "fd00::5/64"), nic("eth1", "10.1.0.5/24")},
		[]topology.Route{{Interface: "eth0", Gateway: netip.MustParseAddr("10.0.0.1")}}, nil
}

func TestAdvertised(t *testing.T) {
	for _, c := range []struct {
		listen, advertise, iface string
		want                     string // with P for the port that was bound; empty: errs.ErrInvalid
		reason                   string
	}{
		{"", "", "", "127.0.0.1:P", "bound"},
		{"localhost", "", "", "127.0.0.1:P", "bound"},
		{"::1", "", "", "[::1]:P", "bound"},
		{"0.0.0.0", "", "", "10.0.0.5:P", "default route"},
		{":0", "", "", "10.0.0.5:P", "default route"},
		{"[::]:0", "", "", "10.0.0.5:P", "default route"},
		{":0", "", "eth1", "10.1.0.5:P", "eth1"},
		{":0", "node17", "", "node17:P", "asked for"},
		{"127.0.0.1", "203.0.113.9:7070", "", "203.0.113.9:7070", "asked for"},
		{":0", "fd00::9", "", "[fd00::9]:P", "asked for"},
		{":0", "0.0.0.0:1", "", "", ""},
		{":0", "[::]", "", "", ""},
		{":0", ":7070", "", "", ""},
		{":0", "", "eth9", "", ""},
		{"127.0.0.1", "", "eth0", "", ""},
	} {
		l, err := Open(t.Context(), Options{Listen: c.listen, Advertise: c.advertise, Interface: c.iface, Network: fakeNetwork})
		if err != nil {
			if c.want != "" || !errors.Is(err, errs.ErrInvalid) {
				t.Errorf("%+v: %v", c, err)
			}
			continue
		}
		_, port, _ := ParseAddr(l.Addr(), 0)
		at, reason := l.Advertised()
		if want := strings.Replace(c.want, ":P", fmt.Sprintf(":%d", port), 1); at != want || !strings.Contains(reason, c.reason) {
			t.Errorf("%+v: %s because %q, want %s", c, at, reason, want)
		}
		l.Close()
	}
}

// TestThisHost: the choice works on whatever this is run on.
func TestThisHost(t *testing.T) {
	l := open(t, Options{Listen: "0.0.0.0:0"})
	at, reason := l.Advertised()
	host, _, err := ParseAddr(at, 0)
	if a, perr := netip.ParseAddr(host); err != nil || perr != nil || a.IsUnspecified() || reason == "" {
		t.Errorf("%s because %q, %v, %v", at, reason, err, perr)
	}
}

// TestIPv4Wildcard: who asks for 0.0.0.0 is not reached over IPv6.
func TestIPv4Wildcard(t *testing.T) {
	for _, c := range []struct {
		listen, dial string
		answers      bool
	}{
		{"0.0.0.0:0", "127.0.0.1", true}, {"0.0.0.0:0", "::1", false}, {":0", "127.0.0.1", true},
	} {
		l := open(t, Options{Listen: c.listen, Advertise: "10.0.0.1"})
		at, _ := l.Advertised()
		_, port, err := ParseAddr(at, 0)
		if err != nil {
			t.Fatal(err)
		}
		conn, err := net.DialTimeout("tcp", JoinAddr(c.dial, port), 5*time.Second)
		if err == nil {
			conn.Close()
		}
		if (err == nil) != c.answers {
			t.Errorf("%s at %s: %v", c.listen, c.dial, err)
		}
	}
}

// TestManyAtOnce: thirty listeners in one place never collide.
func TestManyAtOnce(t *testing.T) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	seen := make(map[string]bool)
	for range 30 {
		wg.Go(func() {
			l, err := Open(context.Background(), Options{})
			if err != nil {
				t.Error(err)
				return
			}
			t.Cleanup(l.Close)
			mu.Lock()
			defer mu.Unlock()
			at, _ := l.Advertised()
			if seen[at] {
				t.Error("twice:", at)
			}
			seen[at] = true
		})
	}
	wg.Wait()
}
