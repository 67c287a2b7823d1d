package engine

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/tideway-io/tideway/errs"
)

func TestDeadlines(t *testing.T) {
	f, net := &fake{}, &network{}
	net.put(peerDesc("b:1", 7))
	e := openFake(t, f, net)
	_, kv := lookUp(t, e, "b:1")
	for name, c := range map[string]struct {
		at   time.Time
		code errs.Code
	}{
		"none":                  {time.Time{}, errs.OK},
		"in the past":           {time.Now().Add(-time.Hour), errs.Deadline},
		"long before the start": {time.Unix(0, 0), errs.Deadline},
		"in a moment":           {time.Now().Add(20 * time.Millisecond), errs.Deadline},
		"in an hour":            {time.Now().Add(time.Hour), errs.OK},
		"in 8000 years":         {time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC), errs.OK},
	} {
		r := writes(1, kv)
		r[0].Deadline = c.at
		b := e.NewBatch()
		add(t, b, r...)
		b.Seal()
		if c.code == errs.OK {
			holding(t, f, 1)
			f.complete(errs.OK)
		}
		err := done(t, b)
		if errs.Of(err) != c.code {
			t.Errorf("%s: %v, want %v", name, err, c.code)
		}
		if c.code == errs.Deadline && !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v does not match the context's error", name, err)
		}
	}
}
