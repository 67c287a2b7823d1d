package tcp

import (
	"bytes"
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/testenv"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
)

// TestPatience: spins in vain become rare, a useful one forgets them all.
func TestPatience(t *testing.T) {
	var p patience
	spins := 0
	for range 10_000 {
		if p.may() {
			spins++
			p.count(false)
		}
	}
	if most := 10_000/(maxSkip+1) + 8; spins == 0 || spins > most {
		t.Errorf("%d spins in vain on 10000 occasions, want 1 to %d", spins, most)
	}
	p.count(true)
	for i := range 100 {
		if !p.may() {
			t.Fatalf("no spin on occasion %d after a useful one", i)
		}
		p.count(true)
	}
}

// TestSpinner: one at a time.
func TestSpinner(t *testing.T) {
	var s spinner
	var absent *spinner
	if absent.take() {
		t.Error("took a permission that there is not")
	}
	if !s.take() || s.take() {
		t.Error("the permission was not there, or was there twice")
	}
	if s.give(); !s.take() {
		t.Error("the permission did not come back")
	}
}

// TestHush: what comes while a link is hushed is received when that ends, though
// nobody looks for it, and the end of the stream at once.
func TestHush(t *testing.T) {
	for _, last := range []string{"bytes", "end"} {
		t.Run(last, func(t *testing.T) {
			near, far := socketPair(t)
			k, err := newLink(near)
			if err != nil {
				t.Fatal(err)
			}
			got, hushed := make(chan error, 100), make(chan struct{})
			buf, on := make([]byte, 100), true
			k.bind(func() bool {
				if on {
					on = false
					if !k.hush(true) {
						t.Error("cannot be hushed")
					}
					close(hushed)
				}
				n, err := k.readv([][]byte{buf})
				if n > 0 || err != errAgain {
					got <- err
				}
				return n > 0 || err != errAgain
			}, nil, nil, func() { k.hush(false) })
			ended := make(chan error)
			go func() { ended <- k.waitRead() }()
			<-hushed
			if last == "end" {
				_ = far.Close()
			} else {
				if _, err := far.Write([]byte("x")); err != nil {
					t.Fatal(err)
				}
				if err := k.poll(); err != nil {
					t.Fatal(err)
				}
			}
			select {
			case <-got:
			case <-time.After(30 * time.Second):
				t.Error("nobody was told")
				k.stop()
			}
			<-ended
			_ = k.Close()
		})
	}
}

// socketPair returns both ends of a connection over loopback.
func socketPair(t *testing.T) (near, far net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	if far, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if near, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = near.Close(), far.Close() })
	return near, far
}

// atOnce is a waiter that is satisfied with whatever came.
type atOnce struct{}

func (atOnce) Satisfied() bool { return true }

// TestProgress has the waiter receive, with the receiver and other waiters beside
// it, and compares every byte.
func TestProgress(t *testing.T) {
	a, b := newHost(t, loopback{}, defaultLimits()), newHost(t, loopback{}, defaultLimits())
	ep := a.connect(t, b)
	if n := ep.Progress(atOnce{}, time.Second); n != 0 {
		t.Errorf("delivered %d of nothing", n)
	}
	const size, rounds = 4096, 300
	remote, local := make([]byte, size), make([]byte, size)
	buf := b.memory.add(remote, segment.ReadWrite)
	ctx, stop := context.WithCancel(t.Context())
	var others sync.WaitGroup
	for range 2 {
		others.Go(func() {
			for ctx.Err() == nil {
				ep.Progress(atOnce{}, time.Millisecond)
			}
		})
	}
	led := 0
	for i := range rounds {
		pattern(local, uint64(i))
		back := make([]byte, size)
		w := transport.Slice{Op: transport.Write, Class: 1, Local: local, Buffer: buf, Tag: transport.Tag(2*i + 1)}
		r := transport.Slice{Op: transport.Read, Class: 1, Local: back, Buffer: buf, Tag: transport.Tag(2*i + 2)}
		for _, s := range []transport.Slice{w, r} {
			a.post(t, ep, []transport.Slice{s})
			led += ep.Progress(atOnce{}, time.Millisecond)
			wantAll(t, a, []transport.Slice{s})
		}
		if !bytes.Equal(back, local) {
			t.Fatalf("round %d: what was read differs", i)
		}
		if i == rounds/2 {
			stop() // from here on nobody else
			others.Wait()
		}
	}
	stop()
	t.Logf("%d of %d completions were delivered by Progress", led, 2*rounds)
	if d := a.sink.doubles(); len(d) > 0 {
		t.Errorf("slices %v completed twice", d)
	}
}

// TestProgressAndLoss kills lanes, closes and cancels under a waiter that
// receives: each slice completes once and Close returns.
func TestProgressAndLoss(t *testing.T) {
	for i, kill := range []func(b *host, ep *Endpoint){
		func(b *host, _ *Endpoint) { _ = b.tr.Close() },
		func(_ *host, ep *Endpoint) { _ = ep.Close() },
		func(_ *host, ep *Endpoint) {
			(*ep.table.Load())[0].lane.fail(errs.New(errs.LaneLost, "test", "killed"))
		},
	} {
		a, b := newHost(t, loopback{}, defaultLimits()), newHost(t, loopback{}, defaultLimits())
		ep := a.connect(t, b)
		buf := b.memory.add(make([]byte, 4096), segment.ReadWrite)
		killed := make(chan struct{})
		go func() {
			testenv.Eventually(t, time.Minute, func() bool { return a.sink.count() > 50 }, "nothing moves")
			kill(b, ep)
			close(killed)
		}()
		posted := 0
		for done := false; !done; {
			select {
			case <-killed:
				done = true
			default:
			}
			n, _ := ep.Post([]transport.Slice{{Op: transport.Write, Class: 1, Local: make([]byte, 4096), Buffer: buf, Tag: transport.Tag(posted + 1)}})
			posted += n
			ep.Progress(atOnce{}, time.Millisecond)
			ep.Cancel([]transport.Tag{transport.Tag(posted - 3)})
		}
		if err := ep.Close(); err != nil {
			t.Error(err)
		}
		if n := a.sink.count(); n != posted || len(a.sink.doubles()) > 0 {
			t.Errorf("case %d: %d of %d slices completed, twice: %v", i, n, posted, a.sink.doubles())
		}
	}
}
