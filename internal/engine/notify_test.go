package engine

import (
	"errors"
	"strings"
	"testing"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/testenv"
)

// engines returns one that the other finds as "b".
func engines(t *testing.T) (a, b *Engine) {
	t.Helper()
	net := &network{}
	b = openFake(t, &fake{}, net)
	d := *b.ownDesc()
	d.Name = "b"
	net.put(&d)
	return openFake(t, &fake{}, net), b
}

// TestNotifyAfterSweep: a peer that was forgotten and found again is not taken
// for one that repeats its notifications.
func TestNotifyAfterSweep(t *testing.T) {
	a, b := engines(t)
	for i := range 3 {
		s, err := a.OpenSegment(t.Context(), "b")
		if err != nil {
			t.Fatal(err)
		}
		for range i + 1 {
			if err := a.Notify(t.Context(), s, Notification{Name: "n"}); err != nil {
				t.Fatal(err)
			}
			select {
			case <-b.notices.queue:
			default:
				t.Fatalf("round %d: delivered, says the sender, and there is none", i)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, testTime, func() bool { a.peers.sweep(); return len(a.peers.all()) == 1 }, "the peer is kept")
	}
}

func TestNotificationsOfABatchAreBounded(t *testing.T) {
	e := openFake(t, &fake{}, &network{}, func(c *Config) { c.MaxNotifications = maxNotices })
	own, err := e.OpenSegment(t.Context(), e.Name())
	if err != nil {
		t.Fatal(err)
	}
	b := e.NewBatch()
	for range maxNotices {
		if err := b.NotifyOnSuccess(own, Notification{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.NotifyOnSuccess(own, Notification{}); !errors.Is(err, errs.ErrOverloaded) {
		t.Errorf("one more than the limit: %v", err)
	}
	for _, n := range []Notification{{Name: strings.Repeat("x", maxNoticeName+1)}, {Body: make([]byte, maxNoticeBody+1)}} {
		if err := b.NotifyOnSuccess(own, n); !errors.Is(err, errs.ErrInvalid) {
			t.Errorf("a notification that is too long: %v", err)
		}
	}
	b.Seal()
	if err := done(t, b); err != nil {
		t.Error(err)
	}
	if err := b.NotifyOnSuccess(own, Notification{}); !errors.Is(err, errs.ErrClosed) {
		t.Errorf("after Seal: %v", err)
	}
	// The queue is full now; the next batch ends well and says who was not told.
	if err := b.Reset(); err != nil {
		t.Fatal(err)
	}
	if err := b.NotifyOnSuccess(own, Notification{}); err != nil {
		t.Fatal(err)
	}
	b.Seal()
	if err := done(t, b); !errors.Is(err, errs.ErrOverloaded) {
		t.Errorf("a notification that its receiver has no room for: %v", err)
	}
}
