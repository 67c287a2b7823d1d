package mem

const (
	// streamFrom and streamTo are the lengths between which Move writes around
	// the caches. Shorter ranges are likely to be used while they are in a cache;
	// from 1 MiB up Go's own copy writes around them.
	streamFrom = 16 << 10
	streamTo   = 1 << 20
	// streamUnit is what stream moves at a time, and how dst must be aligned.
	streamUnit = 64
)

// Move copies src to dst, which must be as long, as fast as memory allows where
// neither is in a cache. The ranges may overlap. All of it is visible to other
// processors, and processes, when Move returns.
func Move(dst, src []byte) {
	if len(src) < streamFrom || len(src) >= streamTo || !canStream || near(dst, src) {
		copy(dst, src)
		return
	}
	head := int(-Addr(dst) & (streamUnit - 1))
	body := (len(src) - head) &^ (streamUnit - 1)
	copy(dst[:head], src)
	stream(&dst[head], &src[head], body/streamUnit)
	copy(dst[head+body:], src[head+body:])
}

// near reports whether the two ranges of one length overlap.
func near(dst, src []byte) bool {
	d, s, n := Addr(dst), Addr(src), uintptr(len(src))
	return d-s < n || s-d < n
}
