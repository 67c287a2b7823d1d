package mem

const canStream = true

// stream copies units*streamUnit bytes, which must not overlap, with stores that
// leave the caches alone. dst is aligned to streamUnit.
//
//go:noescape
func stream(dst, src *byte, units int)
