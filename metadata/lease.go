package metadata

import (
	"context"
	"sync"
	"time"

	"github.com/tideway-io/tideway/errs"
)

// Leases renew values for a Leaser whose store has to be asked for it again and
// again. The zero value is ready; Close ends it.
type Leases struct {
	mu struct {
		sync.Mutex
		keys   map[string]*turn
		closed bool
	}
	work sync.WaitGroup
}

// turn is a key that is being changed, or whose value is renewed.
type turn struct {
	taken chan struct{} // holds one token: who has it changes the key
	users int           // who has it, waits for it or renews
	stop  context.CancelFunc
}

// Renew asks the store to keep a value for another ttl. It returns false when the
// value is not there any more.
type Renew = func(ctx context.Context) bool

// Change has change put or delete the key, one after the other for each key, so
// that what is renewed is what was put last. When it succeeds, an earlier value
// is renewed no more, and a renew that it returns is called three times in ttl
// until ctx ends, it returns false, or the key is changed again. One call may
// take ttl at the most.
func (l *Leases) Change(ctx context.Context, key string, ttl time.Duration, change func() (Renew, error)) error {
	k := l.enter(key)
	defer l.leave(key, k)
	select {
	case k.taken <- struct{}{}:
	case <-ctx.Done():
		return &errs.Error{Op: "change", Reason: errs.Of(ctx.Err()), Detail: "another change of " + key + " is under way", Err: context.Cause(ctx)}
	}
	defer func() { <-k.taken }()
	renew, err := change()
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if k.stop != nil {
		k.stop()
		k.stop = nil
	}
	if renew != nil && !l.mu.closed {
		ctx, k.stop = context.WithCancel(ctx)
		k.users++
		l.work.Go(func() {
			defer l.leave(key, k)
			keep(ctx, ttl, renew)
		})
	}
	return nil
}

func (l *Leases) enter(key string) *turn {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.keys == nil {
		l.mu.keys = make(map[string]*turn)
	}
	k := l.mu.keys[key]
	if k == nil {
		k = &turn{taken: make(chan struct{}, 1)}
		l.mu.keys[key] = k
	}
	k.users++
	return k
}

func (l *Leases) leave(key string, k *turn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k.users--; k.users == 0 {
		if k.stop != nil {
			k.stop() // it has ended by itself
		}
		delete(l.mu.keys, key)
	}
}

// keep renews until ctx ends or there is nothing to renew.
func keep(ctx context.Context, ttl time.Duration, renew Renew) {
	tick := time.NewTicker(max(ttl/3, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		one, done := context.WithTimeout(ctx, ttl)
		more := renew(one)
		done()
		if !more {
			return
		}
	}
}

// Close ends all renewals and waits for that. Values last for their ttl then.
func (l *Leases) Close() {
	l.mu.Lock()
	l.mu.closed = true
	for _, k := range l.mu.keys {
		if k.stop != nil {
			k.stop()
		}
	}
	l.mu.Unlock()
	l.work.Wait()
}

// Poll is Watch for a store that reports nothing by itself: it looks at the key
// every so often. While the store cannot be asked, nothing is reported.
func Poll(ctx context.Context, s Store, key string, every time.Duration, changed func(value []byte)) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	var last []byte
	for first := true; ; {
		value, err := s.Get(ctx, key)
		gone := errs.Of(err) == errs.NotFound
		switch {
		case err == nil && value == nil:
			value = []byte{}
		case gone:
			value = nil
		}
		if (err == nil || gone) && (first || (value == nil) != (last == nil) || string(value) != string(last)) {
			changed(value)
			last, first = append([]byte(nil), value...), false
			if value != nil && last == nil {
				last = []byte{}
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return &errs.Error{Op: "watch", Reason: errs.Of(ctx.Err()), Err: context.Cause(ctx)}
		}
	}
}
