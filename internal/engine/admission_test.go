package engine

import (
	"context"
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/core/admit"
)

func newAdmission(requests, bytes int64) *admission {
	a := &admission{}
	a.mu.door = admit.New(admit.Config{Limits: admit.Limits{Requests: requests, Bytes: bytes}})
	return a
}

func one(requests, bytes int64) []demand { return []demand{{"", requests, bytes}} }

func TestAdmissionIsAllOrNothing(t *testing.T) {
	a := newAdmission(10, 1000)
	call := []demand{{"red", 2, 100}, {"blue", 9, 100}}
	if err := a.take(t.Context(), call); !errors.Is(err, errs.ErrInvalid) {
		t.Fatalf("err = %v, want a refusal of what can never fit", err)
	}
	if n, b := a.inside(); n != 0 || b != 0 {
		t.Errorf("a refused call left %d requests of %d bytes inside", n, b)
	}
	if n, _ := a.mu.door.Tenant("red"); n != 0 {
		t.Errorf("a refused call left %d requests of a tenant inside", n)
	}
}

func TestAdmissionWaitsInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAdmission(10, 1000)
		if err := a.take(t.Context(), one(8, 0)); err != nil {
			t.Fatal(err)
		}
		order := make(chan int, 2)
		go func() {
			if err := a.take(t.Context(), one(10, 0)); err == nil {
				order <- 1
			}
		}()
		synctest.Wait()
		go func() {
			if err := a.take(t.Context(), one(1, 0)); err == nil { // would fit now, but came second
				order <- 2
			}
		}()
		synctest.Wait()
		if len(order) != 0 {
			t.Fatal("a later call overtook the one that waits")
		}
		if err := a.give("", 8, 0); err != nil {
			t.Fatal(err)
		}
		if first := <-order; first != 1 {
			t.Errorf("call %d was let in first", first)
		}
		if err := a.give("", 10, 0); err != nil {
			t.Fatal(err)
		}
		<-order
	})
}

// TestAdmissionRefusesWhatNeverFits: a call that would not fit into an empty
// engine does not wait for ever, nor hold those behind it.
func TestAdmissionRefusesWhatNeverFits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAdmission(10, 1000)
		if err := a.take(t.Context(), one(8, 0)); err != nil {
			t.Fatal(err)
		}
		never, behind := make(chan error, 1), make(chan error, 1)
		go func() { never <- a.take(t.Context(), []demand{{"red", 6, 0}, {"blue", 6, 0}}) }()
		synctest.Wait()
		go func() { behind <- a.take(t.Context(), one(9, 0)) }()
		synctest.Wait()
		if err := a.give("", 8, 0); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if len(never)+len(behind) != 2 {
			t.Fatalf("%d of 2 calls came back", len(never)+len(behind))
		}
		if err := <-never; !errors.Is(err, errs.ErrInvalid) {
			t.Errorf("12 requests where 10 may be inside: %v", err)
		}
		if err := <-behind; err != nil {
			t.Errorf("the call behind it: %v", err)
		}
	})
}

func TestAdmissionSaysWhyNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAdmission(10, 1000)
		if err := a.take(t.Context(), one(8, 0)); err != nil {
			t.Fatal(err)
		}
		go func() { _ = a.take(t.Context(), one(9, 0)) }()
		synctest.Wait()
		now, cancel := context.WithCancel(t.Context())
		cancel()
		for _, n := range []int64{9, 1} { // one that does not fit, one that others wait before
			err := a.take(now, one(n, 0))
			var e *errs.Error
			if !errors.As(err, &e) || e.Reason != errs.Overloaded || e.Detail == "" || !e.Retryable {
				t.Errorf("%d requests without waiting: %#v", n, err)
			}
		}
		if err := a.give("", 8, 0); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
	})
}

func TestAdmissionEndsWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAdmission(10, 1000)
		if err := a.take(t.Context(), one(10, 0)); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := a.take(ctx, one(5, 0))
		if !errors.Is(err, errs.ErrOverloaded) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("err = %v, want overloaded because of the deadline", err)
		}
		if len(a.mu.waiters) != 0 {
			t.Error("a call that gave up still waits")
		}
	})
}

func TestAdmissionBoundsItsWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAdmission(1, 1000)
		if err := a.take(t.Context(), one(1, 0)); err != nil {
			t.Fatal(err)
		}
		for range maxWaiters {
			go func() { _ = a.take(t.Context(), one(1, 0)) }() // ends with close
		}
		synctest.Wait()
		if err := a.take(t.Context(), one(1, 0)); !errors.Is(err, errs.ErrOverloaded) {
			t.Errorf("err = %v, want overloaded", err)
		}
		a.close(errClosed)
		synctest.Wait()
		if err := a.take(t.Context(), one(1, 0)); !errors.Is(err, errs.ErrClosed) {
			t.Errorf("err = %v, want closed", err)
		}
	})
}

func TestDemandsAddUpByTenant(t *testing.T) {
	reqs := []Request{{Tenant: "a", Local: Range{Length: 1}}, {Tenant: "b", Local: Range{Length: 2}}, {Tenant: "a", Local: Range{Length: 3}}}
	got, err := demands(reqs, nil)
	if err != nil || len(got) != 2 || got[0] != (demand{"a", 2, 4}) || got[1] != (demand{"b", 1, 2}) {
		t.Errorf("demands = %v, %v", got, err)
	}
	if _, err := demands([]Request{{Local: Range{Length: math.MaxInt64}}, {Local: Range{Length: 1}}}, nil); !errors.Is(err, errs.ErrInvalid) {
		t.Errorf("a sum beyond 63 bits: %v", err)
	}
}
