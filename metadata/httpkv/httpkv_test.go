package httpkv

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/testenv"
	"github.com/tideway-io/tideway/metadata"
)

func openStore(t testing.TB, o Options) *Store {
	t.Helper()
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// recorder is a server that keeps what it is sent, byte by byte.
type recorder struct {
	mu    sync.Mutex
	lines []string
}

func (r *recorder) serve(t *testing.T, answers ...string) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for _, a := range answers {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p := make([]byte, 64<<10)
			n, _ := c.Read(p)
			r.mu.Lock()
			r.lines = append(r.lines, string(p[:n]))
			r.mu.Unlock()
			io.WriteString(c, "HTTP/1.1 "+a+"\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
			c.Close()
		}
	}()
	return l.Addr().String()
}

// TestSentAsMooncakeSends compares requests with those of Mooncake's client:
// line, encoding of the key, headers.
func TestSentAsMooncakeSends(t *testing.T) {
	var r recorder
	addr := r.serve(t, "200 OK", "200 OK", "200 OK")
	s := openStore(t, Options{URL: "http://" + addr + "/metadata"})
	key := "mooncake/c1/rpc_meta/10.0.0.1:12384"
	if err := s.Put(t.Context(), key, []byte(`{"a":1}`)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	if err := s.Delete(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	target := " /metadata?key=mooncake%2Fc1%2Frpc_meta%2F10.0.0.1%3A12384 HTTP/1.1\r\nHost: " + addr + "\r\n"
	want := []string{
		"PUT" + target + "Content-Length: 7\r\nAccept: */*\r\nContent-Type: application/json\r\n\r\n{\"a\":1}",
		"GET" + target + "Accept: */*\r\n\r\n",
		"DELETE" + target + "Accept: */*\r\n\r\n",
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, w := range want {
		if r.lines[i] != w {
			t.Errorf("sent\n%q, want\n%q", r.lines[i], w)
		}
	}
}

func TestEscape(t *testing.T) {
	for in, want := range map[string]string{"aZ09-._~": "aZ09-._~", "a b+c/%é[": "a%20b%2Bc%2F%25%C3%A9%5B", "": ""} {
		if got := Escape(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

// TestDuplicateAddress: a server that refuses another address for a name is made
// to forget the old one. Nothing else is put twice.
func TestDuplicateAddress(t *testing.T) {
	kept := map[string]string{}
	var deletes int
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key := r.URL.Query().Get("key")
		switch r.Method {
		case http.MethodPut:
			if _, ok := kept[key]; ok && strings.Contains(key, "rpc_meta") {
				http.Error(w, "Duplicate rpc_meta key not allowed", http.StatusBadRequest)
				return
			}
			if key == "never" {
				http.Error(w, "Duplicate", http.StatusBadRequest)
				return
			}
			p, _ := io.ReadAll(r.Body)
			kept[key] = string(p)
		case http.MethodDelete:
			deletes++
			delete(kept, key)
		}
	}))
	t.Cleanup(srv.Close)
	s := openStore(t, Options{URL: srv.URL + "/metadata"})
	for _, v := range []string{"1", "2"} {
		if err := s.PutLeased(t.Context(), "mooncake/rpc_meta/n", []byte(v), time.Hour); err != nil || kept["mooncake/rpc_meta/n"] != v {
			t.Errorf("%s: %v, kept %v", v, err, kept)
		}
	}
	if err := s.Put(t.Context(), "never", nil); !errors.Is(err, errs.ErrInvalid) || deletes != 1 {
		t.Errorf("%v after %d deletes, want invalid after 1", err, deletes)
	}
}

// TestAnswers: what servers say that is not yes, as errors.
func TestAnswers(t *testing.T) {
	var code int
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", "/elsewhere")
		w.WriteHeader(code)
		io.WriteString(w, strings.Repeat("because ", 1000))
	}))
	t.Cleanup(srv.Close)
	s := openStore(t, Options{URL: srv.URL + "/metadata", MaxValue: 10_000})
	for c, want := range map[int]error{
		204: errs.ErrInvalid, 302: errs.ErrInvalid, 400: errs.ErrInvalid, 403: errs.ErrDenied, 404: errs.ErrNotFound, 413: errs.ErrInvalid,
		500: errs.ErrUnreachable, 502: errs.ErrUnreachable, 503: errs.ErrOverloaded, 507: errs.ErrOverloaded,
	} {
		code = c
		_, err := s.Get(t.Context(), "k")
		if !errors.Is(err, want) || len(err.Error()) > 600 || !strings.Contains(err.Error(), srv.URL) {
			t.Errorf("%d: %v, want %v and the URL, briefly", c, err, want)
		}
	}
	code = 200
	small := openStore(t, Options{URL: srv.URL + "/metadata", MaxValue: 100})
	if _, err := small.Get(t.Context(), "k"); !errors.Is(err, errs.ErrInvalid) {
		t.Errorf("a value beyond the limit: %v", err)
	}
}

func TestWrongURL(t *testing.T) {
	for _, u := range []string{"", "127.0.0.1:8080", "etcd://h:1", "http://", "http://h/metadata?key=", "http://h/#x", "://", "http://h:x/"} {
		if _, err := New(Options{URL: u}); !errors.Is(err, errs.ErrInvalid) {
			t.Errorf("%q: %v, want invalid", u, err)
		}
	}
}

// TestSilentServer: a server that accepts and says nothing, or refuses, costs a
// bounded wait and gives an error that says so.
func TestSilentServer(t *testing.T) {
	testenv.Leak(t)
	px := testenv.NewProxy(t, "127.0.0.1:1")
	px.BlackHole(true)
	s := openStore(t, Options{URL: "http://" + px.Addr + "/metadata", Timeout: 100 * time.Millisecond, MaxConns: 2})
	var wg sync.WaitGroup
	for range 16 { // more than there may be connections: waiting for one is bounded, too
		wg.Go(func() {
			if _, err := s.Get(t.Context(), "k"); errs.Of(err) != errs.Unresponsive || !strings.Contains(err.Error(), px.Addr) {
				t.Errorf("silent: %v, want unresponsive and the address", err)
			}
		})
	}
	wg.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := s.Put(ctx, "k", nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the caller's deadline: %v", err)
	}
	if err := px.Refuse(true); err != nil {
		t.Fatal(err)
	}
	px.Cut()
	if err := s.Put(t.Context(), "k", nil); !errors.Is(err, errs.ErrUnreachable) {
		t.Errorf("refused: %v", err)
	}
}

var _ interface {
	metadata.Store
	metadata.Watcher
	metadata.Leaser
} = (*Store)(nil)
