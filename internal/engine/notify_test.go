package engine

import (
	"testing"

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
