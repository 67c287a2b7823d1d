package main

import (
	"math"
	"math/rand/v2"
	"testing"
)

// The exact p values are those of the published tables, and of counting by hand.
func TestMannWhitney(t *testing.T) {
	for _, c := range []struct {
		a, b []float64
		want float64
	}{
		{[]float64{1}, []float64{2}, 1},
		{[]float64{1, 2, 3}, []float64{4, 5, 6}, 2.0 / 20},
		{[]float64{1, 2, 3, 4}, []float64{5, 6, 7, 8}, 2.0 / 70},
		{[]float64{5, 6, 7, 8, 9}, []float64{0, 1, 2, 3, 4}, 2.0 / 252},
		{[]float64{1, 2, 4}, []float64{3, 5, 6}, 4.0 / 20},
		{[]float64{7, 7, 7}, []float64{7, 7}, 1},
		{[]float64{1, 1, 2}, []float64{2, 3, 3}, 4.0 / 20},
	} {
		if got := mannWhitney(c.a, c.b); math.Abs(got-c.want) > 1e-12 {
			t.Errorf("%v, %v: %v, want %v", c.a, c.b, got, c.want)
		}
		if x, y := mannWhitney(c.a, c.b), mannWhitney(c.b, c.a); math.Abs(x-y) > 1e-12 {
			t.Errorf("%v, %v: %v one way and %v the other", c.a, c.b, x, y)
		}
	}
}

// Where there is no difference, p is under a limit as often as the limit says, at
// most; where there is one, nearly always.
func TestMannWhitneyErrs(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	draw := func(shift float64) []float64 {
		out := make([]float64, 7)
		for i := range out {
			out[i] = rng.NormFloat64() + shift
		}
		return out
	}
	const n = 2000
	wrong, found := 0, 0
	for range n {
		if mannWhitney(draw(0), draw(0)) < significant {
			wrong++
		}
		if mannWhitney(draw(0), draw(3)) < significant {
			found++
		}
	}
	if wrong > n*7/100 || found < n*95/100 {
		t.Errorf("of %d, %d differences that are not there and %d that are", n, wrong, found)
	}
}

func TestCanTell(t *testing.T) {
	for _, c := range []struct {
		n, m int
		want bool
	}{{1, 50, true}, {1, 30, false}, {3, 3, false}, {4, 4, true}, {5, 5, true}, {3, 5, true}} {
		if got := canTell(c.n, c.m); got != c.want {
			t.Errorf("%d and %d: %v", c.n, c.m, got)
		}
	}
}

func TestQuantile(t *testing.T) {
	for q, want := range map[float64]float64{0: 1, 0.25: 1.75, 0.5: 2.5, 1: 4} {
		if got := quantile([]float64{1, 2, 3, 4}, q); got != want {
			t.Errorf("%v: %v, want %v", q, got, want)
		}
	}
	if quantile(nil, 0.5) != 0 {
		t.Error("nothing has a median")
	}
}
