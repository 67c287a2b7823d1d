package tcp

// ring is a queue whose elements keep their absolute numbers: head is the
// oldest, tail the next to be pushed. It grows to what was ever in it at once;
// its users bound that.
type ring[T any] struct {
	v          []T // length a power of two
	head, tail uint64
}

func (r *ring[T]) len() int { return int(r.tail - r.head) }

// at returns the element with number n, head <= n < tail.
func (r *ring[T]) at(n uint64) *T { return &r.v[n&uint64(len(r.v)-1)] }

func (r *ring[T]) push(x T) {
	if r.len() == len(r.v) {
		r.grow()
	}
	*r.at(r.tail) = x
	r.tail++
}

// pop drops the oldest element.
func (r *ring[T]) pop() {
	var zero T
	*r.at(r.head) = zero
	r.head++
}

func (r *ring[T]) grow() {
	old := *r
	r.v = make([]T, max(16, 2*len(old.v)))
	for n := old.head; n < old.tail; n++ {
		*r.at(n) = *old.at(n)
	}
}
