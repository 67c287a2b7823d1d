package server

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/metadata/httpkv"
)

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := &call{w: w, r: r}
	switch r.URL.Path {
	case "/metadata":
		s.serveKey(c)
	case "/metadata/keys":
		s.list(c)
	case "/health":
		s.health(c)
	case "/metrics":
		c.say(http.StatusOK, s.metrics())
	default:
		c.say(http.StatusNotFound, "not found: want /metadata?key=KEY, /metadata/keys, /health or /metrics")
	}
	s.counts.request(r.Method, c.code)
}

// call is a request and its answer.
type call struct {
	w    http.ResponseWriter
	r    *http.Request
	code int
}

func (c *call) say(code int, text string) {
	c.code = code
	c.w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	c.w.Header().Set("X-Content-Type-Options", "nosniff")
	c.w.WriteHeader(code)
	_, _ = io.WriteString(c.w, text)
}

// fail answers with an error of a change.
func (c *call) fail(err error) {
	var e *errs.Error
	code, text := http.StatusInternalServerError, err.Error()
	if errors.As(err, &e) {
		text = e.Detail
		switch e.Reason {
		case errs.Busy:
			code = http.StatusBadRequest // as the servers do that refuse duplicates
		case errs.Overloaded:
			code = http.StatusServiceUnavailable
			if e.Op == "put" {
				code = http.StatusInsufficientStorage
			}
		}
	}
	c.say(code, text)
}

// serveKey is what Mooncake's clients know: one key, by GET, PUT or DELETE.
func (s *Server) serveKey(c *call) {
	if !slices.Contains([]string{http.MethodGet, http.MethodPut, http.MethodDelete, http.MethodPatch}, c.r.Method) {
		c.w.Header().Set("Allow", "GET, PUT, DELETE, PATCH")
		c.say(http.StatusMethodNotAllowed, "Method not allowed")
		return
	}
	query, err := url.ParseQuery(c.r.URL.RawQuery)
	key := query.Get("key")
	switch {
	case err != nil:
		c.say(http.StatusBadRequest, "the query is not well-formed")
	case key == "":
		c.say(http.StatusBadRequest, "metadata key is required")
	case len(key) > s.opts.MaxKey:
		c.say(http.StatusRequestURITooLong, "the key has "+strconv.Itoa(len(key))+" bytes, at most "+strconv.Itoa(s.opts.MaxKey))
	default:
		s.serve(c, key)
	}
}

func (s *Server) serve(c *call, key string) {
	switch c.r.Method {
	case http.MethodGet:
		e := s.table.get(key)
		if e == nil {
			c.say(http.StatusNotFound, "metadata not found")
			return
		}
		c.code = http.StatusOK
		c.w.Header().Set("Content-Type", "application/json; charset=utf-8")
		c.w.Header().Set("Content-Length", strconv.Itoa(len(e.value)))
		_, _ = c.w.Write(e.value)
	case http.MethodPut:
		s.put(c, key)
	case http.MethodDelete:
		o := s.change(c, &change{key: key})
		switch {
		case o.err != nil:
			c.fail(o.err)
		case !o.was:
			c.say(http.StatusNotFound, "metadata not found")
		default:
			c.say(http.StatusOK, "metadata deleted")
		}
	case http.MethodPatch:
		if !s.table.renew(key, c.r.Header.Get(httpkv.HeaderLease)) {
			c.say(http.StatusNotFound, "this value is not there any more")
			return
		}
		s.counts.renewals.Add(1)
		c.say(http.StatusOK, "renewed")
	}
}

func (s *Server) put(c *call, key string) {
	ttl, err := parseTTL(c.r.Header.Get(httpkv.HeaderTTL))
	if err != nil {
		c.say(http.StatusBadRequest, err.Error())
		return
	}
	body, held, code := s.read(c)
	defer s.incoming.Add(-held)
	if code != 0 {
		c.w.Header().Set("Connection", "close") // the rest of the body is not waited for
		c.say(code, bodyTrouble(code, s.opts.MaxValue))
		return
	}
	e := newEntry(body, ttl)
	o := s.change(c, &change{key: key, entry: e})
	switch {
	case o.err != nil:
		c.fail(o.err)
	case o.same:
		c.say(http.StatusOK, "metadata unchanged")
	default:
		if e.lease != "" {
			c.w.Header().Set(httpkv.HeaderLease, e.lease)
		}
		c.say(http.StatusOK, "metadata updated")
	}
}

// change bounds the wait for the disk. A client that is gone ends it, too.
func (s *Server) change(c *call, ch *change) outcome {
	ctx, cancel := context.WithTimeout(c.r.Context(), changeTimeout)
	defer cancel()
	return s.table.change(ctx, ch)
}

func parseTTL(text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	ms, err := strconv.ParseInt(text, 10, 64)
	if err != nil || ms < 1 || ms > int64(MaxTTL/time.Millisecond) {
		return 0, errors.New(httpkv.HeaderTTL + ": want milliseconds, from 1 to those of " + MaxTTL.String())
	}
	return time.Duration(ms) * time.Millisecond, nil
}

// bodyStep is how many bytes of a body are read before more room is made.
const bodyStep = 64 << 10

// read reads the body. It makes room as bytes come, whatever the client says
// their number will be, and all bodies that are being read share one bound. It
// returns what it holds of that, to be given back, and a status if it failed.
func (s *Server) read(c *call) (body []byte, held int64, code int) {
	if c.r.ContentLength > s.opts.MaxValue {
		return nil, 0, http.StatusRequestEntityTooLarge
	}
	for {
		if len(body) == cap(body) {
			grow := int64(max(bodyStep, len(body)))
			if n := c.r.ContentLength; n >= 0 && n < bodyStep {
				grow = n + 1
			}
			held += grow
			if s.incoming.Add(grow) > s.opts.MaxBytes {
				return nil, held, http.StatusServiceUnavailable
			}
			body = slices.Grow(body, int(grow))
		}
		n, err := c.r.Body.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		switch {
		case int64(len(body)) > s.opts.MaxValue:
			return nil, held, http.StatusRequestEntityTooLarge
		case err == io.EOF:
			return slices.Clip(slices.Clone(body)), held, 0 // what stays has no room to spare
		case err != nil:
			return nil, held, http.StatusBadRequest
		}
	}
}

func bodyTrouble(code int, most int64) string {
	switch code {
	case http.StatusRequestEntityTooLarge:
		return "the value is too long: at most " + strconv.FormatInt(most, 10) + " bytes"
	case http.StatusServiceUnavailable:
		return "too many bytes are being received; try again later"
	}
	return "the body ended early"
}

// health says whether changes can be made.
func (s *Server) health(c *call) {
	switch err := s.table.broken.Load(); {
	case s.draining.Load():
		c.say(http.StatusServiceUnavailable, "draining")
	case err != nil:
		c.say(http.StatusServiceUnavailable, (*err).Error())
	default:
		c.say(http.StatusOK, "OK")
	}
}

// maxListed is how many keys one answer lists.
const maxListed = 1000

// listed is one key in a list.
type listed struct {
	Key   string `json:"key"`
	Bytes int    `json:"bytes"`
	TTL   int64  `json:"ttl_ms,omitempty"`     // what it was put for
	Left  int64  `json:"ends_in_ms,omitempty"` // unless it is renewed
}

// list answers with keys in order: those that begin with prefix, from behind
// after, at most maxListed.
func (s *Server) list(c *call) {
	if c.r.Method != http.MethodGet {
		c.w.Header().Set("Allow", "GET")
		c.say(http.StatusMethodNotAllowed, "Method not allowed")
		return
	}
	if !s.listing.TryLock() { // it looks at every key
		c.say(http.StatusServiceUnavailable, "another list is being made; try again later")
		return
	}
	q := c.r.URL.Query()
	var out struct {
		Keys []listed `json:"keys"`
		More bool     `json:"more"` // ask again, with after= the last key
	}
	out.Keys, out.More = s.table.list(q.Get("prefix"), q.Get("after"), maxListed)
	s.listing.Unlock() // before a slow client reads the answer
	c.code = http.StatusOK
	c.w.Header().Set("Content-Type", "application/json; charset=utf-8")
	_ = json.NewEncoder(c.w).Encode(out)
}

// list returns at most n keys, in order.
func (t *table) list(prefix, after string, n int) (out []listed, more bool) {
	out = []listed{}
	t.mu.RLock()
	for key, e := range t.mu.keys {
		if strings.HasPrefix(key, prefix) && key > after && !t.ended(e) {
			l := listed{Key: key, Bytes: len(e.value), TTL: e.ttl.Milliseconds()}
			if e.ttl > 0 {
				l.Left = max(1, (e.ends.Load()-t.now())/int64(time.Millisecond))
			}
			out = append(out, l)
		}
	}
	t.mu.RUnlock()
	slices.SortFunc(out, func(a, b listed) int { return strings.Compare(a.Key, b.Key) })
	return out[:min(n, len(out))], len(out) > n
}
