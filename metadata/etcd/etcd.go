// Package etcd is a metadata store in an etcd cluster, with the keys and values
// that Mooncake's engines put there.
package etcd

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/metadata"
)

// Options are for New. Zero fields have the documented default.
type Options struct {
	Endpoints []string      // host:port of each member, or a URL of it
	Timeout   time.Duration // bounds each call, default 5 s
	MaxValue  int           // bytes of the longest value, default 32 MiB; etcd itself allows 1.5 MiB unless it is told otherwise
}

// Store is a metadata.Store, Watcher and Leaser. Make it with New.
type Store struct {
	opts   Options
	client *clientv3.Client
	leases metadata.Leases
	mu     struct {
		sync.Mutex
		granted map[string]grant // of keys whose value has a lease of this store
	}
}

// grant is a lease, which a key keeps from one value to the next.
type grant struct {
	id  clientv3.LeaseID
	ttl int64
}

// Bounds of how the client behaves while members are away.
const (
	pingEvery = 10 * time.Second // a member that does not answer pings is left
	pingWait  = 3 * time.Second
	retries   = 4                      // of one call, each at another member
	minPause  = 100 * time.Millisecond // between tries to watch
	maxPause  = 5 * time.Second
	maxRedial = 2 * time.Second // gRPC itself would wait for up to two minutes for a member that is back
)

// New returns a store. It connects when it is used first, so that a cluster that
// is away is told by the first call. Wrong endpoints are errs.Invalid.
func New(opts Options) (*Store, error) {
	if len(opts.Endpoints) == 0 {
		return nil, errs.New(errs.Invalid, "open metadata store", "no endpoint, want host:port, several with commas between")
	}
	for _, e := range opts.Endpoints {
		if strings.TrimSpace(e) == "" || strings.ContainsAny(e, " \t/") && !strings.Contains(e, "://") {
			return nil, errs.New(errs.Invalid, "open metadata store", "endpoint %q, want host:port", e)
		}
	}
	def(&opts.Timeout, 5*time.Second)
	def(&opts.MaxValue, 32<<20)
	client, err := clientv3.New(clientv3.Config{
		Endpoints: opts.Endpoints, DialTimeout: opts.Timeout, Logger: zap.NewNop(),
		DialKeepAliveTime: pingEvery, DialKeepAliveTimeout: pingWait,
		MaxCallSendMsgSize: opts.MaxValue + 1<<20, MaxCallRecvMsgSize: opts.MaxValue + 1<<20, MaxUnaryRetries: retries,
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
			MinConnectTimeout: opts.Timeout,
			Backoff:           backoff.Config{BaseDelay: minPause, Multiplier: 1.6, Jitter: 0.4, MaxDelay: maxRedial},
		}), grpc.WithChainUnaryInterceptor(refuse)},
	})
	if err != nil {
		return nil, &errs.Error{Op: "open metadata store", Reason: errs.Invalid, Detail: "endpoints " + strings.Join(opts.Endpoints, ","), Err: err}
	}
	s := &Store{opts: opts, client: client}
	s.mu.granted = make(map[string]grant)
	return s, nil
}

// refuse has a call fail at once when no member takes connections. The client
// would wait for one until the call's time is over, and then say nothing but that.
func refuse(ctx context.Context, method string, req, reply any, c *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	return call(ctx, method, req, reply, c, append(opts, grpc.WaitForReady(false))...)
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

// newline ends every value in etcd, as Mooncake writes them.
const newline = "\n"

// Get returns the value, or errs.NotFound.
func (s *Store) Get(ctx context.Context, key string) ([]byte, error) {
	call, cancel := context.WithTimeout(ctx, s.opts.Timeout)
	defer cancel()
	r, err := s.client.Get(call, key)
	if err != nil {
		return nil, s.failed(ctx, "get", key, err)
	}
	if len(r.Kvs) == 0 {
		return nil, errs.New(errs.NotFound, "get", "no key %q at %s", key, s.endpoints())
	}
	return value(r.Kvs[0].Value), nil
}

// value is what was put: it lacks the line's end, and is never nil.
func value(p []byte) []byte { return append([]byte{}, strings.TrimSuffix(string(p), newline)...) }

// Put creates or replaces the value.
func (s *Store) Put(ctx context.Context, key string, value []byte) error {
	return s.leases.Change(ctx, key, 0, func() (metadata.Renew, error) {
		err := s.put(ctx, key, value, clientv3.NoLease)
		if err == nil {
			s.grant(key, grant{})
		}
		return nil, err
	})
}

func (s *Store) put(ctx context.Context, key string, value []byte, lease clientv3.LeaseID) error {
	call, cancel := context.WithTimeout(ctx, s.opts.Timeout)
	defer cancel()
	_, err := s.client.Put(call, key, string(value)+newline, clientv3.WithLease(lease))
	return s.failed(ctx, "put", key, err)
}

// Delete removes the key.
func (s *Store) Delete(ctx context.Context, key string) error {
	return s.leases.Change(ctx, key, 0, func() (metadata.Renew, error) {
		call, cancel := context.WithTimeout(ctx, s.opts.Timeout)
		defer cancel()
		_, err := s.client.Delete(call, key)
		if err == nil {
			s.grant(key, grant{})
		}
		return nil, s.failed(ctx, "delete", key, err)
	})
}

// PutLeased is Put of a value that etcd drops when it was not renewed for ttl,
// which is whole seconds, rounded up. Members may take two seconds as the least.
func (s *Store) PutLeased(ctx context.Context, key string, value []byte, ttl time.Duration) error {
	return s.leases.Change(ctx, key, ttl, func() (metadata.Renew, error) {
		g := s.granted(key)
		if seconds := int64((ttl + time.Second - 1) / time.Second); g.ttl != seconds {
			g = grant{ttl: seconds}
		}
		known := g.id != clientv3.NoLease
		if known {
			err := s.put(ctx, key, value, g.id)
			if err == nil {
				return s.renewer(key, g), nil
			}
			if !errors.Is(err, rpctypes.ErrLeaseNotFound) {
				return nil, err
			}
		}
		id, err := s.newLease(ctx, key, g.ttl)
		if err != nil {
			return nil, err
		}
		g.id = id
		if err := s.put(ctx, key, value, id); err != nil {
			return nil, err // the lease ends by itself
		}
		s.grant(key, g)
		return s.renewer(key, g), nil
	})
}

func (s *Store) newLease(ctx context.Context, key string, seconds int64) (clientv3.LeaseID, error) {
	call, cancel := context.WithTimeout(ctx, s.opts.Timeout)
	defer cancel()
	r, err := s.client.Grant(call, seconds)
	if err != nil {
		return 0, s.failed(ctx, "grant lease", key, err)
	}
	return r.ID, nil
}

// granted returns the lease that the key's value has of this store.
func (s *Store) granted(key string) grant {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.granted[key]
}

// grant notes the lease of a key; the zero one: it has none.
func (s *Store) grant(key string, g grant) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if g == (grant{}) {
		delete(s.mu.granted, key)
	} else {
		s.mu.granted[key] = g
	}
}

// renewer renews a lease by a call of its own each time: clientv3.KeepAlive stops
// for good at some failures of a member, and KeepAliveOnce tries without a pause
// while there is none.
func (s *Store) renewer(key string, g grant) metadata.Renew {
	return func(ctx context.Context) bool {
		ctx, cancel := context.WithTimeout(ctx, s.opts.Timeout)
		defer cancel()
		left, err := s.renew(ctx, g.id)
		if err == nil && left <= 0 {
			s.mu.Lock()
			if s.mu.granted[key] == g {
				delete(s.mu.granted, key)
			}
			s.mu.Unlock()
			return false
		}
		return true
	}
}

// renew returns the seconds that the lease has from now on, 0 if there is none.
func (s *Store) renew(ctx context.Context, id clientv3.LeaseID) (int64, error) {
	stream, err := pb.NewLeaseClient(s.client.ActiveConnection()).LeaseKeepAlive(ctx)
	if err != nil {
		return 0, err
	}
	if err := stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(id)}); err != nil {
		return 0, err
	}
	r, err := stream.Recv()
	if err != nil {
		return 0, err
	}
	return r.TTL, stream.CloseSend()
}

func (s *Store) endpoints() string { return strings.Join(s.opts.Endpoints, ",") }

// failed is a call's error, typed; nil for nil.
func (s *Store) failed(ctx context.Context, op, key string, err error) error {
	if err == nil {
		return nil
	}
	e := &errs.Error{Op: op, Peer: s.endpoints(), Reason: errs.Unreachable, Retryable: true, Err: err}
	if ctx.Err() != nil {
		e.Reason, e.Retryable, e.Err = errs.Of(ctx.Err()), false, context.Cause(ctx)
		return e
	}
	if errors.Is(err, context.DeadlineExceeded) {
		e.Reason, e.Err = errs.Unresponsive, nil
		e.Detail = "key " + key + ": no answer within " + s.opts.Timeout.String() + "; check that etcd runs, has a leader and can be reached"
		return e
	}
	code := status.Code(err)
	var server rpctypes.EtcdError
	if errors.As(err, &server) {
		code = server.Code()
	}
	switch {
	case errors.Is(err, rpctypes.ErrRequestTooLarge), strings.Contains(err.Error(), "larger than max"):
		e.Reason, e.Retryable = errs.Invalid, false
		e.Detail = "the value is too long for etcd; start it with a larger --max-request-bytes, or register fewer, larger buffers"
	case errors.Is(err, rpctypes.ErrNoSpace):
		e.Reason, e.Detail = errs.Overloaded, "etcd has no room: compact, defragment, disarm its alarm"
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		e.Reason = errs.NotFound
	case code == codes.PermissionDenied, code == codes.Unauthenticated:
		e.Reason, e.Retryable = errs.Denied, false
	case code == codes.ResourceExhausted:
		e.Reason = errs.Overloaded
	case code == codes.InvalidArgument:
		e.Reason, e.Retryable = errs.Invalid, false
	}
	return e
}
