// Package httpkv is a metadata store behind HTTP, as Mooncake's engines speak
// it: a URL such as http://host:8080/metadata, with the key in its query. It
// works with Mooncake's reference servers; with the server of this project
// (package server) values can end by themselves, too.
package httpkv

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/metadata"
)

// What this project's server and client add to a request and its answer.
const (
	HeaderTTL   = "Tideway-TTL"   // of a PUT: milliseconds after which the value is dropped unless it is renewed
	HeaderLease = "Tideway-Lease" // of the answer, and of the PATCH that renews: names the value that was put
)

// Options are for New. Zero fields have the documented default.
type Options struct {
	URL            string        // http://host:port/metadata, verbatim what comes before "?key="
	Timeout        time.Duration // bounds each request, default 3 s
	ConnectTimeout time.Duration // bounds a connection attempt, default 1.5 s
	MaxValue       int64         // bytes of the longest value that is read, default 64 MiB
	MaxConns       int           // connections at a time; more requests wait. Default 16
	WatchEvery     time.Duration // how often Watch looks, default 1 s
}

// Store is a metadata.Store, Watcher and Leaser. Make it with New.
type Store struct {
	opts   Options
	client *http.Client
	leases metadata.Leases
}

// New returns a store. Nothing is sent yet; a wrong URL is errs.Invalid.
func New(opts Options) (*Store, error) {
	u, err := url.Parse(opts.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return nil, errs.New(errs.Invalid, "open metadata store", "%q, want a URL such as http://host:8080/metadata", opts.URL)
	}
	def(&opts.Timeout, 3*time.Second)
	def(&opts.ConnectTimeout, 1500*time.Millisecond)
	def(&opts.MaxValue, 64<<20)
	def(&opts.MaxConns, 16)
	def(&opts.WatchEvery, time.Second)
	return &Store{opts: opts, client: &http.Client{
		Timeout:       opts.Timeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			Proxy: http.ProxyFromEnvironment, DialContext: (&net.Dialer{Timeout: opts.ConnectTimeout}).DialContext,
			TLSHandshakeTimeout: opts.ConnectTimeout, MaxConnsPerHost: opts.MaxConns, MaxIdleConnsPerHost: opts.MaxConns,
			IdleConnTimeout: 30 * time.Second, DisableCompression: true, MaxResponseHeaderBytes: 64 << 10,
		},
	}}, nil
}

func def[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

// Close ends renewals and closes idle connections.
func (s *Store) Close() error {
	s.leases.Close()
	s.client.CloseIdleConnections()
	return nil
}

// Get returns the value, or errs.NotFound.
func (s *Store) Get(ctx context.Context, key string) ([]byte, error) {
	a, err := s.do(ctx, "get", http.MethodGet, key, nil, nil)
	if err != nil {
		return nil, err
	}
	if a.code == http.StatusNotFound {
		return nil, errs.New(errs.NotFound, "get", "no key %q at %s", key, s.opts.URL)
	}
	return a.body, s.refused("get", key, a)
}

// Put creates or replaces the value.
func (s *Store) Put(ctx context.Context, key string, value []byte) error {
	return s.leases.Change(ctx, key, 0, func() (metadata.Renew, error) {
		_, err := s.put(ctx, key, value, nil)
		return nil, err
	})
}

// put returns the name of the lease that the value has, empty if it has none.
func (s *Store) put(ctx context.Context, key string, value []byte, header http.Header) (string, error) {
	a, err := s.do(ctx, "put", http.MethodPut, key, value, header)
	if err == nil && duplicate(a, key) {
		if err := s.delete(ctx, key); err != nil {
			return "", err
		}
		a, err = s.do(ctx, "put", http.MethodPut, key, value, header)
	}
	if err != nil {
		return "", err
	}
	return a.lease, s.refused("put", key, a)
}

// duplicate reports whether a server refuses to replace what it has: two of the
// reference servers do so for an engine's address, also after it restarted
// elsewhere. It has to be deleted first.
func duplicate(a answer, key string) bool {
	return a.code == http.StatusBadRequest && strings.Contains(key, "rpc_meta") && bytes.Contains(a.body, []byte("uplicate"))
}

// Delete removes the key.
func (s *Store) Delete(ctx context.Context, key string) error {
	return s.leases.Change(ctx, key, 0, func() (metadata.Renew, error) { return nil, s.delete(ctx, key) })
}

func (s *Store) delete(ctx context.Context, key string) error {
	a, err := s.do(ctx, "delete", http.MethodDelete, key, nil, nil)
	if err != nil || a.code == http.StatusNotFound {
		return err
	}
	return s.refused("delete", key, a)
}

// PutLeased is Put of a value that the server drops when it was not renewed for
// ttl. A reference server, which knows no leases, keeps it.
func (s *Store) PutLeased(ctx context.Context, key string, value []byte, ttl time.Duration) error {
	return s.leases.Change(ctx, key, ttl, func() (metadata.Renew, error) {
		lease, err := s.put(ctx, key, value, http.Header{HeaderTTL: {strconv.FormatInt(ttl.Milliseconds(), 10)}})
		if err != nil || lease == "" {
			return nil, err
		}
		return func(ctx context.Context) bool { return s.renew(ctx, key, lease) }, nil
	})
}

// renew reports whether the value is still there, as far as is known.
func (s *Store) renew(ctx context.Context, key, lease string) bool {
	a, err := s.do(ctx, "renew", http.MethodPatch, key, nil, http.Header{HeaderLease: {lease}})
	return err != nil || a.code != http.StatusNotFound
}

// Watch looks at the key every Options.WatchEvery, and calls changed as
// metadata.Watcher says.
func (s *Store) Watch(ctx context.Context, key string, changed func(value []byte)) error {
	return metadata.Poll(ctx, s, key, s.opts.WatchEvery, changed)
}

// answer is what a server said.
type answer struct {
	code  int
	body  []byte
	lease string
}

func (s *Store) do(ctx context.Context, op, method, key string, body []byte, header http.Header) (answer, error) {
	if err := ctx.Err(); err != nil {
		return answer{}, s.failed(ctx, op, key, err)
	}
	var r io.Reader
	if method == http.MethodPut {
		r = bytes.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, method, s.opts.URL+"?key="+Escape(key), r)
	if err != nil {
		return answer{}, s.failed(ctx, op, key, err)
	}
	req.Header["Accept"], req.Header["User-Agent"] = []string{"*/*"}, nil // as libcurl does
	if r != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	for k, v := range header {
		req.Header[http.CanonicalHeaderKey(k)] = v
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return answer{}, s.failed(ctx, op, key, err)
	}
	defer resp.Body.Close()
	a := answer{code: resp.StatusCode, lease: resp.Header.Get(HeaderLease)}
	if a.body, err = io.ReadAll(io.LimitReader(resp.Body, s.opts.MaxValue+1)); err != nil {
		return answer{}, s.failed(ctx, op, key, err)
	}
	if int64(len(a.body)) > s.opts.MaxValue {
		return answer{}, errs.New(errs.Invalid, op, "key %q has more than %d bytes at %s, the limit", key, s.opts.MaxValue, s.opts.URL)
	}
	return a, nil
}

// maxShown is how much of what a server says is passed on.
const maxShown = 200

// refused is an answer other than yes as an error, nil for yes.
func (s *Store) refused(op, key string, a answer) error {
	if a.code == http.StatusOK {
		return nil
	}
	e := errs.New(errs.Invalid, op, "key %q: %s answered %d %s: %s; check that the URL is that of a metadata server",
		key, s.opts.URL, a.code, http.StatusText(a.code), strings.TrimSpace(string(a.body[:min(len(a.body), maxShown)])))
	switch {
	case a.code == http.StatusTooManyRequests, a.code == http.StatusServiceUnavailable, a.code == http.StatusInsufficientStorage:
		e.Reason, e.Retryable = errs.Overloaded, true
	case a.code == http.StatusRequestEntityTooLarge:
		e.Detail += "; it takes no value of that size"
	case a.code == http.StatusUnauthorized, a.code == http.StatusForbidden:
		e.Reason = errs.Denied
	case a.code >= http.StatusInternalServerError:
		e.Reason, e.Retryable = errs.Unreachable, true
	}
	return e
}

// failed is the error of a request that has no answer.
func (s *Store) failed(ctx context.Context, op, key string, err error) error {
	e := &errs.Error{Op: op, Peer: s.opts.URL, Reason: errs.Unreachable, Retryable: true, Err: err}
	var dns *net.DNSError
	var timeout net.Error
	switch {
	case ctx.Err() != nil:
		e.Reason, e.Retryable, e.Err = errs.Of(ctx.Err()), false, context.Cause(ctx)
	case errors.As(err, &dns):
		e.Reason = errs.NameLookup
	case errors.As(err, &timeout) && timeout.Timeout():
		e.Reason = errs.Unresponsive
		e.Detail = "key " + strconv.Quote(key) + ": no answer within " + s.opts.Timeout.String() + "; check that the metadata server runs and can be reached"
	}
	return e
}

// Escape encodes a key as libcurl does: all but letters, digits and "-._~".
func Escape(key string) string {
	const hex = "0123456789ABCDEF"
	p := make([]byte, 0, 3*len(key))
	for _, c := range []byte(key) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', strings.IndexByte("-._~", c) >= 0:
			p = append(p, c)
		default:
			p = append(p, '%', hex[c>>4], hex[c&15])
		}
	}
	return string(p)
}
