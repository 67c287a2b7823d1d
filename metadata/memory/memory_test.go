package memory

import (
	"context"
	"errors"
	"strconv"
	"testing"

	"go.uber.org/goleak"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/metadata"
	"github.com/tideway-io/tideway/metadata/metadatatest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	metadatatest.Run(t, func(testing.TB) metadata.Store { return New() }, metadatatest.Options{})
}

func TestBound(t *testing.T) {
	s := New()
	s.limit = 100
	ctx := context.Background()
	for i := range s.limit {
		if err := s.Put(ctx, strconv.Itoa(i), nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Put(ctx, "one more", nil); !errors.Is(err, errs.ErrOverloaded) {
		t.Error(err)
	}
	if err := s.Put(ctx, "7", []byte("replaced")); err != nil {
		t.Error(err)
	}
	if err := errors.Join(s.Delete(ctx, "8"), s.Put(ctx, "one more", nil)); err != nil {
		t.Error(err)
	}
}

// TestNothingIsLeft: watchers that ended leave nothing behind.
func TestNothingIsLeft(t *testing.T) {
	s := New()
	for range 100 {
		ctx, cancel := context.WithCancel(t.Context())
		if err := s.Watch(ctx, "k", func([]byte) { cancel() }); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
	if n := len(s.mu.watchers); n != 0 {
		t.Errorf("%d keys are watched", n)
	}
}
