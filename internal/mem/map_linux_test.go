package mem

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tideway-io/tideway/internal/sys"
)

// TestMapShares maps one memfd twice: what is written here is seen there.
func TestMapShares(t *testing.T) {
	for _, n := range []int{4096, HugePage + 4096} {
		fd, err := sys.NewMemfd("test", int64(n), 0)
		if err != nil {
			t.Fatal(err)
		}
		a, unmapA, err := Map(fd, n, true)
		if err != nil {
			t.Fatal(err)
		}
		b, unmapB, err := Map(fd, n, false)
		if err != nil {
			t.Fatal(err)
		}
		if err := sys.Close(fd); err != nil { // the mappings stay
			t.Error(err)
		}
		a[n-1] = 3
		Word(a, 8).Store(0x0102)
		if len(b) != n || b[n-1] != 3 || Word(b, 8).Load() != 0x0102 || b[8] != 2 {
			t.Error("the mappings are not of the same memory")
		}
		if err := errors.Join(unmapA(), unmapB()); err != nil {
			t.Error(err)
		}
	}
}

func TestMapRefuses(t *testing.T) {
	if _, _, err := Map(-1, 4096, false); !errors.Is(err, unix.EBADF) {
		t.Errorf("no descriptor: %v", err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	if _, _, err := Map(int(r.Fd()), 4096, false); err == nil {
		t.Error("a pipe was mapped")
	}
}

// TestWordMustBeAligned: a word across two cache lines would not be atomic.
func TestWordMustBeAligned(t *testing.T) {
	b := make([]byte, 32)
	for _, at := range []int{1, 4, 26, 32} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("a word at %d of %d bytes", at, len(b))
				}
			}()
			Word(b, at)
		}()
	}
}
