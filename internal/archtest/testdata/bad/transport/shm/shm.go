package shm

import (
	"sync"
	"sync/atomic"
	"unsafe"
)

var (
	pool    sync.Pool
	count   atomic.Int64
	last    int
	table   = map[string]int{"a": 1}
	array   [4]int
	clearly = map[int]int{}
	ready   = make(chan int)
	config  = &struct{ size int }{7}
	sum     = compute()
	oops    error
	// Exported is changed by another package.
	Exported = 1
	guarded  struct{ mu sync.Mutex }
	fine     = []int{1, 2, 3}
)

func compute() int { return 7 }

func init() { last = 1 }

// Open opens.
func Open() {
	pool.Put(1)
	count.Add(1)
	table["b"] = 2
	p := &array[1]
	*p = 3
	delete(clearly, 1)
	_, _, _, _, _, _ = ready, config, sum, oops, &guarded, fine[0]
	_ = unsafe.Pointer(p)
}
