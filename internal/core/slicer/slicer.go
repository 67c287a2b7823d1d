// Package slicer is the arithmetic of cutting a range into slices. It knows
// lengths only; who takes which slice where is the scheduler's business.
package slicer

// Next returns the length of the next slice of a range of remaining bytes whose
// first byte is at offset in the target's buffer. It is between 1 and the lesser
// of limit and remaining; 0 only when remaining is 0. A limit of 0 is none.
//
// Slices of one range come out about equally long, so that none is a crumb.
// Where align, a power of two, is above 1 and not above limit, every slice but
// the last ends at a multiple of it. offset+remaining must not exceed 1<<64.
func Next(offset, remaining, limit, align uint64) uint64 {
	if limit == 0 || remaining <= limit {
		return remaining
	}
	return cut(offset, remaining, limit, align)
}

// cut is Next for a range longer than limit.
func cut(offset, remaining, limit, align uint64) uint64 {
	count := (remaining-1)/limit + 1
	n := (remaining-1)/count + 1
	if align <= 1 {
		return n
	}
	// remaining > limit, so offset+limit and what is below it fit 64 bits.
	limitEnd := (offset + limit) &^ (align - 1)
	if limitEnd <= offset {
		return n // no multiple of align within reach
	}
	end := limitEnd
	if up := (offset + n + align - 1) &^ (align - 1); up > offset {
		end = min(end, up) // up <= offset when it wrapped
	}
	return end - offset
}
