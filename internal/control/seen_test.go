package control

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/segment"
)

// TestWindowAgainstTheObvious: random ids, sent once or more, refused or not,
// in the order that a correct sender may produce, against a plain set.
func TestWindowAgainstTheObvious(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var w window
		delivered := make(map[uint64]bool)
		last := uint64(0)
		for range 3000 {
			id := last + uint64(r.IntN(70))
			if r.IntN(2) == 0 || id == 0 {
				id = max(1, last-min(last, uint64(r.IntN(windowSize-1))))
			}
			refuse := r.IntN(8) == 0
			called := false
			code := w.deliver(id, func() errs.Code {
				called = true
				if refuse {
					return errs.Overloaded
				}
				return errs.OK
			})
			if called == delivered[id] {
				t.Fatalf("id %d, last %d: delivered before %v, called %v", id, last, delivered[id], called)
			}
			if want := called && refuse; (code != errs.OK) != want {
				t.Fatalf("id %d: %v", id, code)
			}
			if called && !refuse {
				delivered[id] = true
				last = max(last, id)
			}
		}
	}
}

func TestWindowEdges(t *testing.T) {
	var w window
	take := func() errs.Code { return errs.OK }
	for _, c := range []struct {
		id   uint64
		want errs.Code
	}{
		{0, errs.Invalid}, {1, errs.OK}, {windowSize, errs.OK}, {1, errs.OK}, {windowSize + 1, errs.OK}, {1, errs.Invalid}, {2, errs.OK},
		{1 << 40, errs.OK}, {1<<40 - windowSize + 1, errs.OK}, {1<<40 - windowSize, errs.Invalid}, {math.MaxUint64, errs.OK}, {math.MaxUint64 - 1, errs.OK}, {1 << 40, errs.Invalid},
	} {
		if got := w.deliver(c.id, take); got != c.want {
			t.Errorf("id %d: %v, want %v", c.id, got, c.want)
		}
	}
}

// TestSendersAreBounded: the one that left longest ago is forgotten; those that
// are connected are not.
func TestSendersAreBounded(t *testing.T) {
	var s seen
	s.init()
	take := func() errs.Code { return errs.OK }
	here := s.hold(1)
	here.deliver(7, take)
	for i := range segment.Incarnation(3 * maxWindows) {
		w := s.hold(10 + i)
		w.deliver(1, take)
		s.release(w)
	}
	if n := len(s.windows); n > maxWindows {
		t.Errorf("%d senders, limit %d", n, maxWindows)
	}
	never := func() errs.Code { t.Error("delivered again"); return errs.OK }
	s.hold(1).deliver(7, never)
	last := s.hold(10 + 3*maxWindows - 1)
	last.deliver(1, never)
}
