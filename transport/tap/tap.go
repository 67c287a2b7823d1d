// Package tap is a decorator that shows what goes through a transport: which
// slices are posted, refused, cancelled and completed, when, and how long they
// took. It is for tests and for people who look for a fault; it changes nothing
// and costs a lock and a map entry for each slice.
package tap

import (
	"context"
	"sync"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
)

// Kind is what an Event is about.
type Kind uint8

// The kinds.
const (
	Connect  Kind = iota + 1 // Connect returned; Err says how
	Post                     // a slice is about to be posted
	Refuse                   // that slice was not accepted; the first of them has Err
	Cancel                   // a slice is asked to end
	Complete                 // a slice has ended
	Close                    // an endpoint is closed; Err says how
)

// String returns the kind's name.
func (k Kind) String() string {
	names := [...]string{"invalid", "connect", "post", "refuse", "cancel", "complete", "close"}
	if int(k) < len(names) {
		return names[k]
	}
	return names[0]
}

// Event is one thing that happened at a transport. Fields that do not apply are
// zero.
type Event struct {
	At        time.Time
	Kind      Kind
	Transport string
	Peer      segment.Name
	Tag       transport.Tag
	Op        transport.Op
	Class     transport.Class
	Rail      uint8
	Retry     uint8
	Key       segment.Key
	Offset    uint64
	Bytes     int
	Code      errs.Code
	InDoubt   bool
	Err       error
	Took      time.Duration // Connect, Complete, Close: since it began
}

// Wrap returns d with record called for each event, before whoever is concerned
// learns of it. record is called from any goroutine, with any number at once; it
// must not block and must not call the transport.
func Wrap(d transport.Driver, record func(Event)) transport.Driver { return &driver{d, record} }

type driver struct {
	transport.Driver
	record func(Event)
}

// Unwrap returns the driver inside.
func (d *driver) Unwrap() any { return d.Driver }

// Open opens the transport inside with a sink that records first.
func (d *driver) Open(ctx context.Context, env transport.Env) (transport.Transport, error) {
	t := &tapped{name: d.Name(), sink: env.Sink, record: d.record}
	t.mu.flights = map[transport.Tag]Event{}
	env.Sink = t
	var err error
	t.Transport, err = d.Driver.Open(ctx, env)
	if err != nil {
		return nil, err
	}
	return t, nil
}

// tapped is a transport and the sink that its slices complete to.
type tapped struct {
	transport.Transport
	name   string
	sink   transport.Sink
	record func(Event)

	mu struct {
		sync.Mutex
		flights map[transport.Tag]Event // slices posted and not ended, as posted
	}
}

// Unwrap returns the transport inside.
func (t *tapped) Unwrap() any { return t.Transport }

// Connect connects and records it.
func (t *tapped) Connect(ctx context.Context, peer *segment.Desc) (transport.Endpoint, error) {
	start := time.Now()
	inner, err := t.Transport.Connect(ctx, peer)
	t.record(Event{At: time.Now(), Kind: Connect, Transport: t.name, Peer: peer.Name, Code: errs.Of(err), Err: err, Took: time.Since(start)})
	if err != nil {
		return nil, err
	}
	e := &endpoint{Endpoint: inner, t: t, peer: peer.Name}
	if c, ok := transport.As[transport.Canceler](inner); ok {
		return &cancelable{e, c}, nil
	}
	return e, nil
}

// Complete records completions and passes them on.
func (t *tapped) Complete(done []transport.Completion) {
	now := time.Now()
	events := make([]Event, len(done))
	t.mu.Lock()
	for i, c := range done {
		e, ok := t.mu.flights[c.Tag]
		if ok {
			delete(t.mu.flights, c.Tag)
			e.Took = now.Sub(e.At)
		}
		e.At, e.Kind, e.Transport, e.Tag = now, Complete, t.name, c.Tag
		e.Code, e.InDoubt, e.Err = c.Code, c.InDoubt, c.Err
		events[i] = e
	}
	t.mu.Unlock()
	for _, e := range events {
		t.record(e)
	}
	t.sink.Complete(done)
}

// endpoint records what is posted.
type endpoint struct {
	transport.Endpoint
	t    *tapped
	peer segment.Name
}

// Unwrap returns the endpoint inside.
func (e *endpoint) Unwrap() any { return e.Endpoint }

// Post records the slices and passes them on.
func (e *endpoint) Post(s []transport.Slice) (int, error) {
	now := time.Now()
	events := make([]Event, len(s))
	e.t.mu.Lock()
	for i := range s {
		events[i] = e.event(now, &s[i])
		e.t.mu.flights[s[i].Tag] = events[i]
	}
	e.t.mu.Unlock()
	for _, ev := range events {
		e.t.record(ev)
	}
	n, err := e.Endpoint.Post(s)
	refused := events[max(0, min(n, len(events))):]
	e.t.mu.Lock()
	for _, ev := range refused {
		delete(e.t.mu.flights, ev.Tag)
	}
	e.t.mu.Unlock()
	for i, ev := range refused {
		ev.At, ev.Kind = time.Now(), Refuse
		if i == 0 {
			ev.Code, ev.Err = errs.Of(err), err
		}
		e.t.record(ev)
	}
	return n, err
}

// event describes a slice that is about to be posted.
func (e *endpoint) event(now time.Time, s *transport.Slice) Event {
	ev := Event{
		At: now, Kind: Post, Transport: e.t.name, Peer: e.peer,
		Tag: s.Tag, Op: s.Op, Class: s.Class, Rail: s.Rail, Retry: s.Retry, Offset: s.Offset, Bytes: len(s.Local),
	}
	if s.Buffer != nil {
		ev.Key = s.Buffer.Key
	}
	return ev
}

// Close closes the endpoint inside and records it.
func (e *endpoint) Close() error {
	start := time.Now()
	err := e.Endpoint.Close()
	e.t.record(Event{At: time.Now(), Kind: Close, Transport: e.t.name, Peer: e.peer, Code: errs.Of(err), Err: err, Took: time.Since(start)})
	return err
}

// cancelable is an endpoint whose slices can be withdrawn.
type cancelable struct {
	*endpoint
	inner transport.Canceler
}

// Cancel records the tags and passes them on.
func (c *cancelable) Cancel(tags []transport.Tag) {
	now := time.Now()
	for _, tag := range tags {
		c.t.record(Event{At: now, Kind: Cancel, Transport: c.t.name, Peer: c.peer, Tag: tag})
	}
	c.inner.Cancel(tags)
}
