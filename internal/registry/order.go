package registry

import (
	"cmp"
	"slices"
	"sort"
)

// order keeps buffers sorted by address, then name, then key: files, which
// have address 0, come first. It is a list of sorted runs of bounded length, so
// that an insertion moves a few kilobytes whatever the number of buffers.
//
// It is not safe for concurrent use.
type order struct {
	runs [][]*Buffer // none is empty
}

// maxRun is the length at which a run is cut in two. At 100,000 buffers there
// are some 400 runs, so both levels are a few pages.
const maxRun = 512

func compare(a, b *Buffer) int {
	if c := cmp.Compare(a.pub.Addr, b.pub.Addr); c != 0 {
		return c
	}
	if c := cmp.Compare(a.pub.Name, b.pub.Name); c != 0 {
		return c
	}
	return cmp.Compare(a.pub.Key, b.pub.Key)
}

// floor returns the last memory that starts at or before addr, or nil. Files
// are in front of all memory.
func (o *order) floor(addr uint64) *Buffer {
	r := sort.Search(len(o.runs), func(i int) bool { return o.runs[i][0].pub.Addr > addr }) - 1
	if r < 0 {
		return nil
	}
	run := o.runs[r]
	i := sort.Search(len(run), func(i int) bool { return run[i].pub.Addr > addr }) - 1
	if run[i].pub.Addr == 0 {
		return nil
	}
	return run[i]
}

// run returns the index of the run where b is or belongs.
func (o *order) run(b *Buffer) int {
	r := sort.Search(len(o.runs), func(i int) bool { return compare(o.runs[i][0], b) > 0 })
	return max(0, r-1)
}

func (o *order) insert(b *Buffer) {
	if len(o.runs) == 0 {
		o.runs = [][]*Buffer{{b}}
		return
	}
	r := o.run(b)
	i, _ := slices.BinarySearchFunc(o.runs[r], b, compare)
	o.runs[r] = slices.Insert(o.runs[r], i, b)
	if run := o.runs[r]; len(run) > maxRun {
		half := slices.Clone(run[maxRun/2:])
		clear(run[maxRun/2:])
		o.runs[r] = run[:maxRun/2]
		o.runs = slices.Insert(o.runs, r+1, half)
	}
}

// remove takes b, which must be there, out.
func (o *order) remove(b *Buffer) {
	r := o.run(b)
	i, _ := slices.BinarySearchFunc(o.runs[r], b, compare)
	o.runs[r] = slices.Delete(o.runs[r], i, i+1)
	if len(o.runs[r]) == 0 {
		o.runs = slices.Delete(o.runs, r, r+1)
	}
}

// all yields every buffer in order.
func (o *order) all(yield func(*Buffer) bool) {
	for _, run := range o.runs {
		for _, b := range run {
			if !yield(b) {
				return
			}
		}
	}
}
