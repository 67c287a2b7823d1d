package control

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/testenv"
	"github.com/tideway-io/tideway/internal/wire"
	"github.com/tideway-io/tideway/segment"
)

// box collects what was delivered.
type box struct {
	mu     sync.Mutex
	count  map[string]int
	refuse errs.Code
}

func (b *box) take(from, name string, body []byte) errs.Code {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.refuse != errs.OK {
		return b.refuse
	}
	if b.count == nil {
		b.count = make(map[string]int)
	}
	b.count[from+"/"+name+"/"+string(body)]++
	return errs.OK
}

func (b *box) times(what string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.count[what]
}

func TestNotify(t *testing.T) {
	var b box
	r := serve(t, ServerOptions{OnNotify: b.take})
	p := r.dial(t, Options{})
	if err := p.Notify(t.Context(), 1, "n", []byte("body")); err != nil || b.times("a/n/body") != 1 {
		t.Error(err, b.count)
	}
	if err := p.Notify(t.Context(), 1, "n", []byte("body")); err != nil || b.times("a/n/body") != 1 {
		t.Error("the same id again:", err, b.count)
	}
	for name, err := range map[string]error{
		"no id": p.Notify(t.Context(), 0, "n", nil), "long name": p.Notify(t.Context(), 2, strings.Repeat("n", MaxName+1), nil),
		"long body": p.Notify(t.Context(), 2, "n", make([]byte, MaxBody+1)),
	} {
		if errs.Of(err) != errs.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	b.refuse = errs.Overloaded
	if err := p.Notify(t.Context(), 2, "n", nil); !errors.Is(err, errs.ErrOverloaded) {
		t.Error(err)
	}
	none := serve(t, ServerOptions{})
	if err := none.dial(t, Options{}).Notify(t.Context(), 1, "n", nil); !errors.Is(err, errs.ErrUnsupported) {
		t.Error(err)
	}
}

// reconnect returns a connect function that dials anew when the last connection
// has ended, and wraps each in what wrap makes of it.
func reconnect(t *testing.T, r *rig, wrap func(net.Conn) net.Conn) func(context.Context) (*Peer, error) {
	var mu sync.Mutex
	var last *Peer
	t.Cleanup(func() {
		mu.Lock()
		defer mu.Unlock()
		if last != nil {
			_ = last.Close()
		}
	})
	return func(ctx context.Context) (*Peer, error) {
		mu.Lock()
		defer mu.Unlock()
		if last != nil && last.Err() == nil {
			return last, nil
		}
		if last != nil {
			_ = last.Close()
		}
		p, err := Dial(ctx, func(ctx context.Context, addr string) (net.Conn, error) {
			conn, err := tcpDial(ctx, addr)
			if err != nil {
				return nil, err
			}
			return wrap(conn), nil
		}, r.addr(), selfA, selfB.Incarnation, Options{})
		if err == nil {
			last = p
		}
		return p, err
	}
}

// deafening is a connection that loses what comes back after the welcome, as
// often as the counter allows: it ends instead.
type deafening struct {
	net.Conn
	left *atomic.Int32
	got  int
}

func (d *deafening) Read(p []byte) (int, error) {
	n, err := d.Conn.Read(p)
	d.got++
	if d.got > 2 && n > 0 && d.left.Add(-1) >= 0 { // the welcome takes two reads: head and meta
		_ = d.Conn.Close()
		return 0, errors.New("connection reset")
	}
	return n, err
}

// TestNotifyOnce: the acknowledgement is lost again and again, and the
// notification is delivered once.
func TestNotifyOnce(t *testing.T) {
	var b box
	r := serve(t, ServerOptions{OnNotify: b.take})
	var losses atomic.Int32
	n := NewNotifier(reconnect(t, r, func(c net.Conn) net.Conn { return &deafening{Conn: c, left: &losses} }), 0, 0)
	for i := range 20 {
		losses.Store(int32(i % 4))
		if err := n.Send(t.Context(), "n", fmt.Append(nil, i)); err != nil {
			t.Fatal(i, err)
		}
		if got := b.times(fmt.Sprintf("a/n/%d", i)); got != 1 {
			t.Errorf("%d delivered %d times", i, got)
		}
	}
	if losses.Load() > 0 {
		t.Error("nothing was lost")
	}
}

// TestNotifyManyOnce is the same for many at once.
func TestNotifyManyOnce(t *testing.T) {
	var b box
	r := serve(t, ServerOptions{OnNotify: b.take})
	var losses atomic.Int32
	n := NewNotifier(reconnect(t, r, func(c net.Conn) net.Conn { return &deafening{Conn: c, left: &losses} }), 0, 0)
	var wg sync.WaitGroup
	const many = 500
	for i := range many {
		wg.Go(func() {
			if i%50 == 0 {
				losses.Store(1)
			}
			if err := n.Send(t.Context(), "n", fmt.Append(nil, i)); err != nil {
				t.Error(i, err)
			}
		})
	}
	wg.Wait()
	for i := range many {
		if got := b.times(fmt.Sprintf("a/n/%d", i)); got != 1 {
			t.Errorf("%d delivered %d times", i, got)
		}
	}
}

// TestNotifyInDoubt: when nobody is left who could tell, the error says so.
func TestNotifyInDoubt(t *testing.T) {
	for name, c := range map[string]struct {
		then func() (*Peer, error)
		code errs.Code
	}{
		"the peer restarted": {func() (*Peer, error) { return nil, restarted("x:1", 2, 3) }, errs.Restarted},
		"the peer is gone":   {func() (*Peer, error) { return nil, errs.New(errs.Refused, "dial", "") }, errs.Refused},
	} {
		t.Run(name, func(t *testing.T) {
			var b box
			r := serve(t, ServerOptions{OnNotify: b.take})
			var losses atomic.Int32
			losses.Store(1)
			connect := reconnect(t, r, func(c net.Conn) net.Conn { return &deafening{Conn: c, left: &losses} })
			var tries atomic.Int32
			n := NewNotifier(func(ctx context.Context) (*Peer, error) {
				if tries.Add(1) > 1 {
					return c.then()
				}
				return connect(ctx)
			}, 50*time.Millisecond, 0)
			err := n.Send(t.Context(), "n", nil)
			var e *errs.Error
			if !errors.As(err, &e) || !e.InDoubt || e.Reason != c.code {
				t.Errorf("%+v", err)
			}
			if b.times("a/n/") != 1 {
				t.Error("not delivered")
			}
		})
	}
}

// TestNotifyFails: what certainly was not delivered is not in doubt.
func TestNotifyFails(t *testing.T) {
	n := NewNotifier(func(context.Context) (*Peer, error) { return nil, errs.New(errs.Refused, "dial", "") }, 0, 0)
	var e *errs.Error
	if err := n.Send(t.Context(), "n", nil); !errors.As(err, &e) || e.InDoubt || e.Reason != errs.Refused {
		t.Errorf("%+v", err)
	}
	b := box{refuse: errs.Overloaded}
	r := serve(t, ServerOptions{OnNotify: b.take})
	n = NewNotifier(reconnect(t, r, func(c net.Conn) net.Conn { return c }), 0, 0)
	if err := n.Send(t.Context(), "n", nil); !errors.As(err, &e) || e.InDoubt || e.Reason != errs.Overloaded {
		t.Errorf("%+v", err)
	}
}

// TestNotifyIsBounded: beyond the bound a notification waits for its turn.
func TestNotifyIsBounded(t *testing.T) {
	gate := make(chan struct{})
	var in atomic.Int32
	n := NewNotifier(func(ctx context.Context) (*Peer, error) {
		in.Add(1)
		<-gate
		return nil, errs.New(errs.Refused, "dial", "")
	}, 0, 0)
	var wg sync.WaitGroup
	for range maxOutstanding {
		wg.Go(func() { _ = n.Send(context.Background(), "n", nil) })
	}
	testenv.Eventually(t, 10*time.Second, func() bool { return in.Load() == maxOutstanding }, "all are outstanding")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := n.Send(ctx, "n", nil); !errors.Is(err, context.DeadlineExceeded) || in.Load() != maxOutstanding {
		t.Error(err, in.Load())
	}
	close(gate)
	wg.Wait()
}

// TestNoticesOfManyLives: the window is the sender's, whatever connection it uses.
func TestNoticesOfManyLives(t *testing.T) {
	var b box
	r := serve(t, ServerOptions{OnNotify: b.take})
	for range 3 {
		for life := range 3 {
			self := Self{segment.Incarnation(10 + life), func() segment.Name { return segment.Name(fmt.Sprint(life)) }}
			p, err := Dial(t.Context(), tcpDial, r.addr(), self, 0, Options{})
			if err != nil {
				t.Fatal(err)
			}
			if err := p.Notify(t.Context(), 1, "n", nil); err != nil {
				t.Error(err)
			}
			_ = p.Close()
		}
	}
	for life := range 3 {
		if n := b.times(fmt.Sprintf("%d/n/", life)); n != 1 {
			t.Errorf("life %d: %d times", life, n)
		}
	}
}

// TestHostileNotices: ids far apart, backwards, and zero, on the bare wire.
func TestHostileNotices(t *testing.T) {
	var b box
	r := serve(t, ServerOptions{OnNotify: b.take})
	conn, err := tcpDial(t.Context(), r.addr())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	hello := wire.Greeting{MinVersion: 1, MaxVersion: 1, From: 1}
	out := appendFrame(wire.PrefaceControl[:], wire.Header{Type: wire.Hello}, hello.Append(nil), nil)
	ids := map[uint64]errs.Code{1 << 63: errs.OK, 5: errs.Invalid, 0: errs.Invalid, 1<<63 + 1: errs.OK}
	order := []uint64{1 << 63, 5, 0, 1<<63 + 1}
	for _, id := range order {
		out = appendFrame(out, wire.Header{Type: wire.Notify, Seq: id}, []byte("n"), nil)
	}
	_, _ = conn.Write(out)
	if _, err := readFrame(conn, answerLimit); err != nil {
		t.Fatal(err)
	}
	for _, id := range order {
		if f, err := readFrame(conn, answerLimit); err != nil || f.Type != wire.Noted || f.Seq != id || f.Status != ids[id] {
			t.Errorf("id %d: %+v, %v", id, f, err)
		}
	}
}
