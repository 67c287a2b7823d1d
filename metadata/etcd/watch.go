package etcd

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tideway-io/tideway/errs"
)

// Watch calls changed with the present value and after each change, as
// metadata.Watcher says. While etcd is away it waits for it.
func (s *Store) Watch(ctx context.Context, key string, changed func(value []byte)) error {
	inner, stop := context.WithCancel(ctx)
	latest := make(chan []byte, 1)
	var work sync.WaitGroup
	work.Go(func() { s.follow(inner, key, latest) })
	defer work.Wait()
	defer stop()
	for {
		select {
		case v := <-latest:
			changed(v)
		case <-ctx.Done():
			return &errs.Error{Op: "watch", Reason: errs.Of(ctx.Err()), Err: context.Cause(ctx)}
		}
	}
}

// follow keeps the last value in latest until ctx ends.
func (s *Store) follow(ctx context.Context, key string, latest chan []byte) {
	seen := int64(-1) // revision of the value reported last, 0: it is not there
	for pause := minPause; ctx.Err() == nil; {
		if s.followOnce(ctx, key, &seen, latest) {
			pause = minPause
		}
		select {
		case <-time.After(pause/2 + rand.N(pause)): // not all watchers at once
		case <-ctx.Done():
		}
		pause = min(2*pause, maxPause)
	}
}

// followOnce reads the value and its changes until something fails. It reports
// whether it got that far.
func (s *Store) followOnce(ctx context.Context, key string, seen *int64, latest chan []byte) bool {
	call, cancel := context.WithTimeout(ctx, s.opts.Timeout)
	r, err := s.client.Get(call, key)
	cancel()
	if err != nil {
		return false
	}
	report := func(revision int64, v []byte) {
		if revision == *seen {
			return
		}
		*seen = revision
		select {
		case <-latest: // it was not taken, and is old
		default:
		}
		latest <- v
	}
	if len(r.Kvs) == 0 {
		report(0, nil)
	} else {
		report(r.Kvs[0].ModRevision, value(r.Kvs[0].Value))
	}
	watch, stop := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer stop() // else the client goes on with it
	for w := range s.client.Watch(watch, key, clientv3.WithRev(r.Header.Revision+1)) {
		if w.Err() != nil {
			return true
		}
		for _, e := range w.Events {
			if e.Type == clientv3.EventTypeDelete {
				report(0, nil)
			} else {
				report(e.Kv.ModRevision, value(e.Kv.Value))
			}
		}
	}
	return true
}
