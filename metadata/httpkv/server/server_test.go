package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/testenv"
	"github.com/tideway-io/tideway/metadata"
	"github.com/tideway-io/tideway/metadata/httpkv"
	"github.com/tideway-io/tideway/metadata/metadatatest"
)

const patience = 20 * time.Second

func start(t testing.TB, o Options) *Server {
	t.Helper()
	if o.Listen == "" {
		o.Listen = "127.0.0.1:0"
	}
	o.Logger = slog.New(slog.DiscardHandler)
	s, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func (s *Server) url() string { return "http://" + s.Addr() + "/metadata" }

func client(t testing.TB, s *Server) *httpkv.Store {
	t.Helper()
	c, err := httpkv.New(httpkv.Options{URL: s.url(), WatchEvery: 2 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func TestConformance(t *testing.T) {
	for name, database := range map[string]bool{"memory": false, "database": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // it waits for leases most of the time
			metadatatest.Run(t, func(t testing.TB) metadata.Store {
				var o Options
				if database {
					o.Database = filepath.Join(t.TempDir(), "db")
				}
				return client(t, start(t, o))
			}, metadatatest.Options{TTL: time.Second})
		})
	}
}

// reply is an answer to a raw request.
type reply struct {
	code   int
	text   string
	header http.Header
}

func ask(t testing.TB, method, url, body string, header ...string) reply {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	tr := &http.Transport{DisableKeepAlives: true}
	defer tr.CloseIdleConnections()
	resp, err := tr.RoundTrip(req)
	if err != nil {
		t.Fatalf("%s %s: %v", method, url, err)
	}
	defer resp.Body.Close()
	p, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return reply{resp.StatusCode, string(p), resp.Header}
}

// TestAsReferenceServers plays what Mooncake's clients do, and compares with what
// its servers answer; where they differ, with the choice that docs/metadata.md
// names.
func TestAsReferenceServers(t *testing.T) {
	for _, strict := range []bool{false, true} {
		s := start(t, Options{RefuseDuplicates: strict})
		duplicate := reply{code: 200, text: "metadata updated"}
		again := duplicate
		if strict {
			duplicate, again = reply{code: 400, text: "Duplicate rpc_meta key not allowed"}, reply{code: 200, text: "metadata unchanged"}
		}
		const ram, rpc = "?key=mooncake%2Fram%2F10.0.0.1%3A15001", "?key=mooncake%2Frpc_meta%2Fn"
		for i, step := range []struct {
			method, query, body string
			want                reply
		}{
			{"GET", ram, "", reply{code: 404, text: "metadata not found"}},
			{"PUT", ram, `{"name":"n"}`, reply{code: 200, text: "metadata updated"}},
			{"PUT", ram, `{"name":"m"}`, reply{code: 200, text: "metadata updated"}},
			{"GET", ram, "", reply{code: 200, text: `{"name":"m"}`}},
			{"GET", "?key=mooncake/ram/10.0.0.1:15001", "", reply{code: 200, text: `{"name":"m"}`}},
			{"DELETE", ram, "", reply{code: 200, text: "metadata deleted"}},
			{"DELETE", ram, "", reply{code: 404, text: "metadata not found"}},
			{"PUT", rpc, `{"rpc_port":1}`, reply{code: 200, text: "metadata updated"}},
			{"PUT", rpc, `{"rpc_port":1}`, again},
			{"PUT", rpc, `{"rpc_port":2}`, duplicate},
			{"DELETE", rpc, "", reply{code: 200, text: "metadata deleted"}},
			{"PUT", rpc, `{"rpc_port":2}`, reply{code: 200, text: "metadata updated"}},
			{"GET", "?key=", "", reply{code: 400, text: "metadata key is required"}},
			{"PUT", "", "x", reply{code: 400, text: "metadata key is required"}},
			{"POST", ram, "x", reply{code: 405, text: "Method not allowed"}},
			{"GET", "?key=%zz", "", reply{code: 400, text: "the query is not well-formed"}},
		} {
			if got := ask(t, step.method, s.url()+step.query, step.body); got.code != step.want.code || got.text != step.want.text {
				t.Errorf("strict %v, step %d, %s %s: %d %q, want %d %q", strict, i, step.method, step.query, got.code, got.text, step.want.code, step.want.text)
			}
		}
		base := "http://" + s.Addr()
		if got := ask(t, "GET", base+"/health", ""); got.code != 200 || got.text != "OK" {
			t.Errorf("health: %+v", got)
		}
		if got := ask(t, "GET", base+"/", ""); got.code != 404 {
			t.Errorf("another path: %+v", got)
		}
	}
}

// TestAddressOfADeadEngine: a client that keeps to the contract replaces an address
// also at a server that refuses duplicates.
func TestAddressOfADeadEngine(t *testing.T) {
	s := start(t, Options{RefuseDuplicates: true})
	for _, v := range []string{"one", "two"} {
		c := client(t, s) // another process
		if err := c.PutLeased(t.Context(), "mooncake/rpc_meta/n", []byte(v), time.Minute); err != nil {
			t.Fatal(err)
		}
		if got, err := c.Get(t.Context(), "mooncake/rpc_meta/n"); err != nil || string(got) != v {
			t.Errorf("%q, %v, want %q", got, err, v)
		}
	}
}

// TestDatabase: what was answered is there after a restart, and leases go on.
func TestDatabase(t *testing.T) {
	testenv.Leak(t)
	path := filepath.Join(t.TempDir(), "db")
	one := start(t, Options{Database: path})
	if _, err := Open(t.Context(), Options{Listen: "127.0.0.1:0", Database: path}); errs.Of(err) != errs.Busy {
		t.Errorf("a second server on the database: %v, want busy", err)
	}
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			if got := ask(t, "PUT", fmt.Sprintf("%s?key=k%d", one.url(), i), fmt.Sprint(i)); got.code != 200 {
				t.Error(got)
			}
		})
	}
	wg.Wait()
	lease := ask(t, "PUT", one.url()+"?key=leased", "v", httpkv.HeaderTTL, "300").header.Get(httpkv.HeaderLease)
	ask(t, "DELETE", one.url()+"?key=k0", "")
	if err := one.Close(); err != nil {
		t.Fatal(err)
	}
	two := start(t, Options{Database: path})
	if n := two.Len(); n != 64 {
		t.Errorf("%d keys after a restart, want 64", n)
	}
	for i := 1; i < 64; i++ {
		if got := ask(t, "GET", fmt.Sprintf("%s?key=k%d", two.url(), i), ""); got.text != fmt.Sprint(i) {
			t.Errorf("k%d: %+v", i, got)
		}
	}
	if got := ask(t, "PATCH", two.url()+"?key=leased", "", httpkv.HeaderLease, lease); got.code != 200 {
		t.Errorf("renew after a restart: %+v", got)
	}
	testenv.Eventually(t, patience, func() bool { return two.Len() == 63 }, "the lease does not end")
	if err := two.Close(); err != nil {
		t.Fatal(err)
	}
	if three := start(t, Options{Database: path}); three.Len() != 63 {
		t.Errorf("%d keys, want 63: the end of the lease did not last", three.Len())
	} else if err := three.Close(); err != nil {
		t.Error(err)
	}
}

func TestStrangeDatabase(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	if err := os.WriteFile(path, bytes.Repeat([]byte("no database "), 10_000), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), Options{Listen: "127.0.0.1:0", Database: path}); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("garbage: %v, want an error that names the file", err)
	}
	for _, p := range [][]byte{nil, {}, {2, 0, 0}, {1}, {1, 0x80}, {1, 0, 200, 1}, {1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 0}} {
		if e, err := decodeEntry(p); err == nil {
			t.Errorf("%x: %+v", p, e)
		}
	}
}

// failing is a journal whose writes fail on demand.
type failing struct {
	nothing
	err error
}

func (f *failing) write([]*change) error { return f.err }

// TestFailedWrite: what could not be written is undone, told, and seen in health.
func TestFailedWrite(t *testing.T) {
	j := &failing{}
	var o Options
	if err := o.fill(); err != nil {
		t.Fatal(err)
	}
	tb, err := newTable(o, j, &counts{})
	if err != nil {
		t.Fatal(err)
	}
	put := func(key, value string) *change {
		return &change{key: key, entry: newEntry([]byte(value), 0), done: make(chan outcome, 1)}
	}
	if err := tb.apply([]*change{put("a", "1"), put("b", "1")}); err != nil {
		t.Fatal(err)
	}
	j.err = errors.New("no space left")
	list := []*change{put("a", "2"), {key: "b", done: make(chan outcome, 1)}, put("c", "2"), put("a", "3")}
	if err := tb.apply(list); err == nil {
		t.Fatal("no error")
	}
	for _, c := range list {
		if o := <-c.done; !errors.Is(o.err, errs.ErrInternal) {
			t.Errorf("%q: %+v", c.key, o)
		}
	}
	for key, want := range map[string]string{"a": "1", "b": "1"} {
		if e := tb.get(key); e == nil || string(e.value) != want {
			t.Errorf("%s: %v, want %s", key, e, want)
		}
	}
	if keys, _, bytes := tb.size(); keys != 2 || bytes != 4 || tb.broken.Load() == nil {
		t.Errorf("%d keys of %d bytes, broken %v", keys, bytes, tb.broken.Load())
	}
	j.err = nil
	if err := tb.apply([]*change{put("c", "4")}); err != nil || tb.broken.Load() != nil {
		t.Errorf("%v, broken %v", err, tb.broken.Load())
	}
}

func TestLimits(t *testing.T) {
	s := start(t, Options{Limits: Limits{MaxKeys: 2, MaxKey: 10, MaxValue: 1000, MaxBytes: 1500}})
	for _, c := range []struct {
		key, body string
		want      int
	}{
		{"a", strings.Repeat("x", 1000), 200},
		{"a", strings.Repeat("y", 1000), 200}, // in place of it
		{"a", strings.Repeat("x", 1001), 413},
		{"b", strings.Repeat("x", 600), 507},
		{"b", "x", 200},
		{"c", "x", 507},
		{"0123456789", "x", 507},
		{"01234567890", "x", 414},
	} {
		if got := ask(t, "PUT", s.url()+"?key="+c.key, c.body); got.code != c.want {
			t.Errorf("%s of %d bytes: %+v, want %d", c.key, len(c.body), got, c.want)
		}
	}
	if got := ask(t, "GET", s.url()+"?key=a", ""); got.text != strings.Repeat("y", 1000) {
		t.Errorf("a refused value replaced one: %+v", got)
	}
	for _, ttl := range []string{"0", "-1", "x", "86400001", "99999999999999999999"} {
		if got := ask(t, "PUT", s.url()+"?key=b", "y", httpkv.HeaderTTL, ttl); got.code != 400 {
			t.Errorf("ttl %s: %+v", ttl, got)
		}
	}
	for name, o := range map[string]Options{"keys": {Limits: Limits{MaxKeys: -1}}, "key": {Limits: Limits{MaxKey: 1 << 20}}} {
		if _, err := Open(t.Context(), o); !errors.Is(err, errs.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// raw sends bytes and returns the first line of the answer, empty if there is none.
func raw(t testing.TB, s *Server, text string) string {
	t.Helper()
	c, err := net.Dial("tcp", s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	_, _ = io.WriteString(c, text)
	line, _ := bufio.NewReader(c).ReadString('\n')
	return strings.TrimSpace(line)
}

// TestHostile: whatever comes, the server answers or hangs up, holds little, and
// serves the next one.
func TestHostile(t *testing.T) {
	testenv.Leak(t)
	s := start(t, Options{Limits: Limits{MaxConns: 8, MaxValue: 1 << 20, MaxBytes: 4 << 20}})
	for text, want := range map[string]string{
		"\x16\x03\x01 not http\r\n\r\n": "HTTP/1.1 400",
		"GET /metadata?key=" + strings.Repeat("a", 80<<10) + " HTTP/1.1\r\nHost: h\r\n\r\n":                        "HTTP/1.1 4",
		"PUT /metadata?key=a HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999999\r\n\r\n":                           "HTTP/1.1 413",
		"PUT /metadata?key=a HTTP/1.1\r\nHost: h\r\nContent-Length: -1\r\n\r\n":                                    "HTTP/1.1 400",
		"PUT /metadata?key=a HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n": "HTTP/1.1 400",
		"PUT /metadata?key=a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n":      "HTTP/1.1 400",
		"GET /../../etc/passwd HTTP/1.1\r\nHost: h\r\n\r\n":                                                        "HTTP/1.1 404",
		"TRACE /metadata?key=a HTTP/1.1\r\nHost: h\r\n\r\n":                                                        "HTTP/1.1 405",
		"GET /metadata?key=a&key=b;c HTTP/1.1\r\nHost: h\r\n\r\n":                                                  "HTTP/1.1 400",
	} {
		if got := raw(t, s, text); !strings.HasPrefix(got, want) {
			t.Errorf("%.60q: %q, want %s", text, got, want)
		}
	}
	testenv.Eventually(t, patience, func() bool { return s.counts.conns.Load() == 0 }, "those are closed")
	held := crowd(t, s, 8, "PUT /metadata?key=a HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\nsome")
	testenv.Eventually(t, patience, func() bool { return s.counts.conns.Load() == 8 }, "connections")
	if n := s.incoming.Load(); n > 8*bodyStep {
		t.Errorf("%d bytes are held for what did not come", n)
	}
	testenv.Eventually(t, patience, func() bool {
		return strings.HasPrefix(raw(t, s, "GET /health HTTP/1.1\r\nHost: h\r\n\r\n"), "HTTP/1.1 503")
	}, "one connection too many is told")
	for _, c := range held {
		c.Close()
	}
	testenv.Eventually(t, patience, func() bool { return s.counts.conns.Load() == 0 && s.incoming.Load() == 0 }, "what was held is given back")
	if got := ask(t, "PUT", s.url()+"?key=a", "fine"); got.code != 200 {
		t.Errorf("afterwards: %+v", got)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func crowd(t testing.TB, s *Server, n int, text string) (list []net.Conn) {
	t.Helper()
	for range n {
		c, err := net.Dial("tcp", s.Addr())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		_, _ = io.WriteString(c, text)
		list = append(list, c)
	}
	return list
}

// TestIncomingBytes: bodies that are being received share a bound.
func TestIncomingBytes(t *testing.T) {
	s := start(t, Options{Limits: Limits{MaxValue: 1 << 20, MaxBytes: 1 << 20}})
	slow := "PUT /metadata?key=a HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\n" + strings.Repeat("x", 600_000)
	crowd(t, s, 1, slow)
	testenv.Eventually(t, patience, func() bool { return s.incoming.Load() > 600_000 }, "the first one")
	if got := ask(t, "PUT", s.url()+"?key=b", strings.Repeat("x", 600_000)); got.code != 503 {
		t.Errorf("a second one beyond the bound: %d %s", got.code, got.text)
	}
	if got := ask(t, "PUT", s.url()+"?key=b", "x"); got.code != 200 {
		t.Errorf("a small one beside it: %+v", got)
	}
}

func TestListAndMetrics(t *testing.T) {
	s := start(t, Options{})
	for i := range 1100 {
		s.table.change(t.Context(), &change{key: fmt.Sprintf("p/%04d", i), entry: newEntry([]byte("v"), 0)})
	}
	ask(t, "PUT", s.url()+"?key=leased", "v", httpkv.HeaderTTL, "60000")
	var out struct {
		Keys []listed
		More bool
	}
	get := func(query string) {
		t.Helper()
		out.Keys, out.More = nil, false
		if err := json.Unmarshal([]byte(ask(t, "GET", s.url()+"/keys"+query, "").text), &out); err != nil {
			t.Fatal(err)
		}
	}
	get("?prefix=p%2F")
	if len(out.Keys) != 1000 || !out.More || out.Keys[999] != (listed{Key: "p/0999", Bytes: 1}) {
		t.Errorf("%d keys, more %v", len(out.Keys), out.More)
	}
	get("?prefix=p%2F&after=p%2F0999")
	if len(out.Keys) != 100 || out.More || out.Keys[99].Key != "p/1099" {
		t.Errorf("%d keys, more %v", len(out.Keys), out.More)
	}
	get("?prefix=leased")
	if len(out.Keys) != 1 || out.Keys[0].TTL != 60000 || out.Keys[0].Left < 1 || out.Keys[0].Left > 60000 {
		t.Errorf("%+v", out.Keys)
	}
	text := ask(t, "GET", "http://"+s.Addr()+"/metrics", "").text
	for _, want := range []string{
		"\ntideway_metadata_keys 1101\n", "\ntideway_metadata_leased_keys 1\n", "\ntideway_metadata_healthy 1\n",
		"\ntideway_metadata_requests_total{method=\"PUT\",code=\"200\"} 1\n", "# TYPE tideway_metadata_requests_total counter\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("metrics lack %q:\n%s", want, text)
		}
	}
}

// TestShutdown: requests under way end well, what was answered is kept, new
// connections are refused.
func TestShutdown(t *testing.T) {
	testenv.Leak(t)
	path := filepath.Join(t.TempDir(), "db")
	s := start(t, Options{Database: path})
	c := crowd(t, s, 1, "PUT /metadata?key=late HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nva")[0]
	testenv.Eventually(t, patience, func() bool { return s.incoming.Load() > 0 }, "the request is under way")
	ended := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		ended <- s.Shutdown(ctx)
	}()
	testenv.Eventually(t, patience, func() bool {
		d, err := net.Dial("tcp", s.Addr())
		if err == nil {
			d.Close()
		}
		return err != nil
	}, "no new connections")
	_, _ = io.WriteString(c, "l!")
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "HTTP/1.1 200") {
		t.Errorf("the request under way: %q, %v", line, err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	c.Close()
	again := start(t, Options{Database: path})
	if e := again.table.get("late"); e == nil || string(e.value) != "val!" {
		t.Errorf("what was answered at the end is lost: %+v", e)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}

func FuzzDecodeEntry(f *testing.F) {
	f.Add(encodeEntry(newEntry([]byte("v"), 0)))
	f.Add(encodeEntry(newEntry([]byte("v"), time.Minute)))
	f.Add([]byte{recordVersion, 0x80, 1, 255})
	f.Fuzz(func(t *testing.T, p []byte) {
		e, err := decodeEntry(p)
		if err != nil {
			return
		}
		again, err := decodeEntry(encodeEntry(e))
		if err != nil || again.lease != e.lease || again.ttl != e.ttl || !bytes.Equal(again.value, e.value) {
			t.Fatalf("%x: %+v, then %+v, %v", p, e, again, err)
		}
	})
}
