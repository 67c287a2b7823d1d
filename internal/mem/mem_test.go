package mem

import (
	"bytes"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/tideway-io/tideway/errs"
)

func TestAllocIsZeroedAlignedAndFreedOnce(t *testing.T) {
	for _, n := range []uint64{1, 4095, 4096, 4097, HugePage - 1, HugePage, HugePage + 1, 3*HugePage + 17} {
		for _, o := range []Options{{}, {Prefault: true}} {
			b, free, err := Alloc(n, o)
			if err != nil {
				t.Fatalf("Alloc(%d, %+v): %v", n, o, err)
			}
			align := uintptr(os.Getpagesize())
			if n >= HugePage {
				align = HugePage
			}
			if uint64(len(b)) != n || uint64(cap(b)) != n || Addr(b)%align != 0 {
				t.Errorf("Alloc(%d): len %d, cap %d, address %#x; want exactly %d bytes at a multiple of %#x", n, len(b), cap(b), Addr(b), n, align)
			}
			if i := bytes.IndexFunc(b, func(r rune) bool { return r != 0 }); i >= 0 {
				t.Errorf("Alloc(%d): byte %d is not 0", n, i)
			}
			b[0], b[n-1] = 1, 2 // the ends are mapped
			if err := free(); err != nil {
				t.Errorf("free of %d bytes: %v", n, err)
			}
			// What takes the place of the freed range must survive a second free.
			next, freeNext, err := Alloc(n, Options{})
			if err != nil {
				t.Fatal(err)
			}
			if err := free(); err != nil {
				t.Errorf("second free: %v", err)
			}
			next[0], next[n-1] = 1, 2
			if err := freeNext(); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestAllocRefusesSillyLengths(t *testing.T) {
	for _, n := range []uint64{0, MaxAlloc + 1, math.MaxInt64, math.MaxUint64} {
		if _, _, err := Alloc(n, Options{}); !errors.Is(err, errs.ErrInvalid) {
			t.Errorf("Alloc(%d): %v, want ErrInvalid", n, err)
		}
	}
}

func TestSlice(t *testing.T) {
	b := []byte("tideway")
	got, err := Slice(Addr(b), uint64(len(b)))
	if err != nil || !bytes.Equal(got, b) {
		t.Fatalf("Slice: %q, %v", got, err)
	}
	for _, c := range []struct {
		addr uintptr
		n    uint64
		want error
	}{
		{0, 1, errs.New(errs.Invalid, "", "")},
		{Addr(b), 0, errs.New(errs.Invalid, "", "")},
		{Addr(b), math.MaxUint64, errs.New(errs.Overflow, "", "")},
		{Addr(b), math.MaxInt64 + 1, errs.New(errs.Overflow, "", "")},
		{math.MaxUint, 2, errs.New(errs.Overflow, "", "")},
	} {
		if _, err := Slice(c.addr, c.n); errs.Of(err) != errs.Of(c.want) {
			t.Errorf("Slice(%#x, %d): %v, want %v", c.addr, c.n, err, errs.Of(c.want))
		}
	}
}

// TestBackward copies in steps, as Backward says, and compares with memmove for
// every kind of overlap.
func TestBackward(t *testing.T) {
	const n = 3*Step + 5
	base := make([]byte, 2*n)
	rng := rand.NewChaCha8([32]byte{1})
	for _, shift := range []int{-n, -Step - 1, -Step, -1, 0, 1, Step - 1, Step, 2*Step + 3, n} {
		_, _ = rng.Read(base)
		from := max(0, -shift)
		src, dst := base[from:from+n], base[from+shift:from+shift+n]
		want, back := bytes.Clone(src), Backward(dst, src, n)
		for done := 0; done < n; done += Step {
			from, to := done, min(done+Step, n)
			if back {
				from, to = n-to, n-from
			}
			copy(dst[from:to], src[from:to])
		}
		if !bytes.Equal(dst, want) {
			t.Errorf("steps with dst %d bytes after src, backward %v, differ from memmove", shift, back)
		}
	}
}
