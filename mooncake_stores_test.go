package tideway_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tideway-io/tideway"
	"github.com/tideway-io/tideway/internal/testenv"
	"github.com/tideway-io/tideway/metadata/all"
	"github.com/tideway-io/tideway/metadata/httpkv/server"
	"github.com/tideway-io/tideway/segment"
)

// storeOp is one thing that an engine asked of a store.
type storeOp struct {
	what  string // PUT, GET or DELETE
	key   string
	value string // of a PUT
}

// changes are those of ops that change what is stored.
func changes(ops []storeOp) []string {
	var out []string
	for _, o := range ops {
		if o.what != "GET" {
			out = append(out, o.what+" "+o.key+" "+alike(o.value))
		}
	}
	return out
}

// alike takes out of a value what cannot be equal: ports, addresses, times and our
// own member.
func alike(value string) string {
	s := ourMember.ReplaceAllString(value, `"timestamp"`)
	for re, with := range map[string]string{`"timestamp":""`: stampText.String(), `"tcp_data_port":0`: portText.String(), `"addr":0`: addrText.String(), `"rpc_port":0`: `"rpc_port":\d+`} {
		s = mustReplace(s, re, with)
	}
	return s
}

// recordedOps reads what the clients of a transcript asked, by stream.
func recordedOps(t *testing.T, turns []turn) map[int][]storeOp {
	t.Helper()
	out := map[int][]storeOp{}
	for _, x := range turns {
		if !x.client {
			continue
		}
		op, err := httpOp(bufio.NewReader(bytes.NewReader(x.data)))
		if x.role == "redis" {
			op, err = redisOp(bufio.NewReader(bytes.NewReader(x.data)))
		}
		if err != nil {
			t.Fatalf("stream %d: %v in %q", x.stream, err, x.data)
		}
		out[x.stream] = append(out[x.stream], op)
	}
	return out
}

func httpOp(r *bufio.Reader) (storeOp, error) {
	req, err := http.ReadRequest(r)
	if err != nil {
		return storeOp{}, err
	}
	return opOf(req)
}

// opOf says what a request asks. The query is compared as it was sent.
func opOf(req *http.Request) (storeOp, error) {
	body, err := io.ReadAll(req.Body)
	key, ok := strings.CutPrefix(req.URL.RawQuery, "key=")
	if !ok || req.URL.Path != "/metadata" {
		return storeOp{}, fmt.Errorf("path %s, query %s", req.URL.Path, req.URL.RawQuery)
	}
	return storeOp{req.Method, key, string(body)}, err
}

// redisOp reads one command and gives it HTTP's name.
func redisOp(r *bufio.Reader) (storeOp, error) {
	words, err := redisCommand(r)
	if err != nil {
		return storeOp{}, err
	}
	names := map[string]string{"SET": "PUT", "GET": "GET", "DEL": "DELETE"}
	op := storeOp{what: names[strings.ToUpper(words[0])]}
	if len(words) > 1 {
		op.key = url.QueryEscape(words[1])
	}
	if op.what == "PUT" {
		op.value = words[2]
	}
	return op, nil
}

// redisCommand reads an array of strings.
func redisCommand(r *bufio.Reader) ([]string, error) {
	number := func(mark byte) (int, error) {
		line, err := r.ReadString('\n')
		if err != nil || line[0] != mark {
			return 0, fmt.Errorf("line %q, want %c: %w", line, mark, err)
		}
		return strconv.Atoi(strings.TrimSpace(line[1:]))
	}
	n, err := number('*')
	if err != nil {
		return nil, err
	}
	words := make([]string, n)
	for i := range words {
		size, err := number('$')
		if err != nil {
			return nil, err
		}
		p := make([]byte, size+2)
		if _, err := io.ReadFull(r, p); err != nil {
			return nil, err
		}
		words[i] = string(p[:size])
	}
	return words, nil
}

// storeTranscript reads the streams between engines and a store.
func storeTranscript(t *testing.T, name string) []turn {
	return transcript(t, filepath.Join("testdata/mooncake/stores", name+".txt"))
}

// TestReplayStoreServer: our metadata server answers what real engines asked as
// the two real servers did, by code and by body.
func TestReplayStoreServer(t *testing.T) {
	for _, name := range []string{"classic-http-go", "classic-http-py", "classic-segdesc"} {
		t.Run(name, func(t *testing.T) {
			s, err := server.Open(t.Context(), server.Options{Listen: "127.0.0.1:0", RefuseDuplicates: name != "classic-http-go", Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = s.Close() })
			conns, asked := map[int]*bufio.ReadWriter{}, 0
			var last []byte
			for _, x := range storeTranscript(t, name) {
				c := conns[x.stream]
				if c == nil {
					conn := mustDial(t, s.Addr())
					c = bufio.NewReadWriter(bufio.NewReader(conn), bufio.NewWriter(conn))
					conns[x.stream] = c
				}
				if x.client {
					last = x.data
					_, _ = c.Write(x.data)
					if err := c.Flush(); err != nil {
						t.Fatal(err)
					}
					continue
				}
				asked++
				if got, want := answerOf(t, c.Reader), answerOf(t, bufio.NewReader(bytes.NewReader(x.data))); got != want {
					t.Errorf("%.100q is answered\n%s, want\n%s", last, got, want)
				}
			}
			if asked < 10 {
				t.Errorf("%d requests in the transcript", asked)
			}
		})
	}
}

// answerOf reads an answer's code and body.
func answerOf(t *testing.T, r *bufio.Reader) string {
	t.Helper()
	a, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(a.Body)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(a.StatusCode, " ", string(body))
}

// storeDouble is a store that remembers what it was asked.
type storeDouble struct {
	mu     sync.Mutex
	values map[string]string
	ops    []storeOp
	strip  bool // descriptors lose our member: their owners look like Mooncake's
}

// do carries out an operation and returns the value that it found, and whether.
func (d *storeDouble) do(op storeOp) (string, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ops = append(d.ops, op)
	old, ok := d.values[op.key]
	switch op.what {
	case "PUT":
		if d.strip {
			op.value = ourMember.ReplaceAllString(op.value, `"timestamp"`)
		}
		d.values[op.key] = op.value
	case "DELETE":
		delete(d.values, op.key)
	}
	return old, ok
}

func (d *storeDouble) seen() []storeOp {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.ops)
}

// ServeHTTP answers as the Go server does.
func (d *storeDouble) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	op, err := opOf(req)
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	value, ok := d.do(op)
	switch {
	case op.what == "GET" && !ok:
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, "metadata not found")
	case op.what == "GET":
		_, _ = io.WriteString(w, value)
	case op.what == "PUT":
		_, _ = io.WriteString(w, "metadata updated")
	default:
		_, _ = io.WriteString(w, "metadata deleted")
	}
}

// serveRedis answers the commands of one connection.
func (d *storeDouble) serveRedis(c net.Conn) {
	defer c.Close()
	r := bufio.NewReader(c)
	for {
		words, err := redisCommand(r)
		if err != nil {
			return
		}
		answer := "+OK\r\n"
		switch name := strings.ToUpper(words[0]); name {
		case "SET":
			d.do(storeOp{"PUT", url.QueryEscape(words[1]), words[2]})
		case "GET":
			value, ok := d.do(storeOp{"GET", url.QueryEscape(words[1]), ""})
			if answer = "$-1\r\n"; ok {
				answer = fmt.Sprintf("$%d\r\n%s\r\n", len(value), value)
			}
		case "DEL":
			d.do(storeOp{"DELETE", url.QueryEscape(words[1]), ""})
			answer = ":1\r\n"
		case "HELLO":
			answer = "-ERR unknown command\r\n"
		case "PING":
			answer = "+PONG\r\n"
		}
		if _, err := io.WriteString(c, answer); err != nil {
			return
		}
	}
}

// listenFor serves the double by HTTP or as Redis and returns its URL.
func (d *storeDouble) listenFor(t *testing.T, kind string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if kind == "http" {
		s := &http.Server{Handler: d}
		go func() { _ = s.Serve(l) }()
		t.Cleanup(func() { _ = s.Close() })
		return "http://" + l.Addr().String() + "/metadata"
	}
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			conns.Go(func() { d.serveRedis(c) })
		}
	})
	t.Cleanup(func() { _ = l.Close(); conns.Wait() })
	return "redis://" + l.Addr().String()
}

// member opens an engine of that name with the store at url.
func member(t *testing.T, storeURL, name string) (*tideway.Engine, func()) {
	t.Helper()
	store, err := all.Open(storeURL, os.Getenv)
	if err != nil {
		t.Fatal(err)
	}
	e, err := tideway.Open(t.Context(), tideway.Config{Name: name, Metadata: store, Mooncake: &tideway.Mooncake{}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return e, func() { _, _ = e.Close(), store.Close() }
}

// live runs an engine with one buffer from its first to its last word to the
// store; during is what it does meanwhile.
func (d *storeDouble) live(t *testing.T, storeURL, name string, during func(*tideway.Engine)) {
	t.Helper()
	puts := func() (n int) {
		for _, o := range d.seen() {
			if o.what == "PUT" {
				n++
			}
		}
		return n
	}
	e, closing := member(t, storeURL, name)
	b, err := e.Alloc(4<<20, tideway.BufferOptions{Access: segment.ReadWrite})
	if err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 10*time.Second, func() bool { return puts() == 3 }, "the buffer is published")
	during(e)
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 10*time.Second, func() bool { return puts() == 4 }, "its end is published")
	closing()
}

// asked lists what ops asked for, without repetitions.
func asked(ops []storeOp, about string) []string {
	var out []string
	for _, o := range ops {
		if o.what == "GET" && strings.HasSuffix(o.key, about) && !slices.Contains(out, o.key) {
			out = append(out, o.key)
		}
	}
	return out
}

// TestReplayStoreClient: our engines change a store as real ones did, step by
// step, look the other one up as they did, and understand what real ones stored.
func TestReplayStoreClient(t *testing.T) {
	for name, kind := range map[string]string{"classic-http-go": "http", "classic-http-py": "http", "classic-redis": "redis"} {
		t.Run(name, func(t *testing.T) {
			testenv.Leak(t)
			recorded := recordedOps(t, storeTranscript(t, name))
			d := &storeDouble{values: map[string]string{}}
			d.live(t, d.listenFor(t, kind), "golden-target", func(*tideway.Engine) {})
			if got, want := changes(d.seen()), changes(recorded[0]); !slices.Equal(got, want) {
				t.Errorf("the target changed\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
			if len(d.values) > 0 {
				t.Errorf("left behind: %v", d.values)
			}
			d = &storeDouble{values: map[string]string{}}
			for _, o := range recorded[0][:4] { // what their target had stored when their initiator looked
				if o.what == "PUT" {
					d.values[o.key] = o.value
				}
			}
			d.live(t, d.listenFor(t, kind), "golden-initiator", func(e *tideway.Engine) {
				s := openNamed(t, e, "golden-target")
				if b := s.Buffers(); len(b) != 1 || b[0].Addr != theirBase || b[0].Length != 4<<20 {
					t.Errorf("their target's buffers are %+v", b)
				}
			})
			if got, want := changes(d.seen()), changes(recorded[1]); !slices.Equal(got, want) {
				t.Errorf("the initiator changed\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
			if got, want := asked(d.seen(), "golden-target"), asked(recorded[1], "golden-target"); !slices.Equal(got, want) {
				t.Errorf("the initiator asked for %q, want %q", got, want)
			}
		})
	}
}

func mustReplace(s, with, re string) string { return regexp.MustCompile(re).ReplaceAllString(s, with) }
