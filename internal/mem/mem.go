// Package mem is memory outside the garbage collector's heap, and what copying
// memory in steps that can be stopped has to know.
//
// It knows nothing of buffers and registration: package registry decides who
// may touch what and for how long.
package mem

import (
	"math"
	"math/bits"
	"sync"

	"github.com/tideway-io/tideway/errs"
)

const (
	// Step is how many bytes are moved between two looks at a cancel flag: long
	// enough to cost nothing (some 100 µs), short enough to stop soon and not
	// to hold up the garbage collector.
	Step = 1 << 20
	// HugePage is the size from which, and to which, Alloc aligns memory.
	HugePage = 2 << 20
	// MaxAlloc is the largest Alloc: more than any host has, and still a small
	// part of a 64-bit address space.
	MaxAlloc = min(1<<43, math.MaxInt)
)

// Options say how memory is allocated. The zero value maps it and leaves the
// pages to be made when they are first touched.
type Options struct {
	// Prefault makes the pages now, so that a lack of memory is an error here
	// and the first transfer is as fast as the second.
	Prefault bool
}

// Alloc returns n zeroed bytes that the garbage collector never moves, scans or
// frees, aligned to a page and, from 2 MiB up, to a huge page, which it asks
// for. The bytes are gone when free is called: nobody may hold them then. A
// second call of free does nothing. Alloc fails with errs.Invalid for a length
// of 0 or beyond MaxAlloc, with errs.Overloaded where the host has no room.
func Alloc(n uint64, o Options) (b []byte, free func() error, err error) {
	if n == 0 {
		return nil, nil, errs.New(errs.Invalid, "allocate", "length 0: want at least 1 byte")
	}
	if n > MaxAlloc {
		return nil, nil, errs.New(errs.Invalid, "allocate", "length %d is beyond the limit of %d bytes", n, uint64(MaxAlloc))
	}
	b, release, err := alloc(int(n))
	if err == nil && o.Prefault {
		if err = prefault(b); err != nil {
			_ = release() // the lack of memory is what the caller must hear of
		}
	}
	if err != nil {
		e := errs.New(errs.Overloaded, "allocate", "%d bytes: lower the length, or raise the memory limit (ulimit -v, cgroup, vm.overcommit_memory)", n)
		e.Err = err
		return nil, nil, e
	}
	return b, sync.OnceValue(release), nil
}

// contains reports whether [addr, addr+n) lies in the address space without
// wrapping around, starts above 0 and is short enough for a slice.
func contains(addr, n uint64) bool {
	_, carry := bits.Add64(addr, n, 0)
	return addr != 0 && carry == 0 && n <= math.MaxInt && addr+n <= math.MaxUint
}

// Backward reports whether a copy of n bytes in steps, from where src begins to
// where dst begins, must start with the last step, because dst begins inside of
// what is copied.
func Backward(dst, src []byte, n int) bool {
	d, s := Addr(dst), Addr(src)
	return d > s && d-s < uintptr(n)
}
