//go:build shm

package shm

import (
	"runtime"
	"sync"
	"time"

	"github.com/tideway-io/tideway/transport"
)

const (
	// idleTime is how long a worker waits for more before it ends.
	idleTime = time.Second
	// maxWorkers bounds the goroutines that copy at the same time: a few fill
	// the memory bandwidth of a host.
	maxWorkers = 8
)

// task is work in steps of some 100 µs. step does the next one and reports
// whether there are more. Tasks take turns after each step.
type task interface{ step() (more bool) }

// pool runs tasks on a few goroutines, urgent ones first. A worker is started
// when there is more work than workers and ends when there is none.
type pool struct {
	urgent, rest chan task
	stop         chan struct{}
	wg           sync.WaitGroup
	mu           struct {
		sync.Mutex
		workers int
		pending int // tasks that have steps left; both channels have room for all
	}
}

// init makes room for limit tasks.
func (p *pool) init(limit int) {
	p.urgent, p.rest = make(chan task, limit), make(chan task, limit)
	p.stop = make(chan struct{})
}

// usual is how many workers share what many tasks have to do: half of the
// processors, since one core nearly fills the memory bandwidth of a small host.
func usual() int { return min(max(runtime.GOMAXPROCS(0)/2, 1), maxWorkers/2) }

// wide is how many share one long copy.
func wide() int { return min(runtime.GOMAXPROCS(0), maxWorkers) }

// put queues a task for one of up to workers goroutines, or returns false if
// there are too many tasks.
func (p *pool) put(t task, class transport.Class, workers int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.pending == cap(p.rest) {
		return false
	}
	p.mu.pending++
	p.lane(class) <- t
	if p.mu.workers < min(workers, p.mu.pending) {
		p.mu.workers++
		p.wg.Go(p.work)
	}
	return true
}

func (p *pool) lane(class transport.Class) chan task {
	if class == 0 {
		return p.urgent
	}
	return p.rest
}

func (p *pool) work() {
	idle := time.NewTimer(idleTime)
	defer idle.Stop()
	for {
		t, from := p.next(idle)
		if t == nil {
			return
		}
		if t.step() {
			from <- t // it still counts as pending, so there is room
		} else {
			p.mu.Lock()
			p.mu.pending--
			p.mu.Unlock()
		}
		idle.Reset(idleTime)
	}
}

// next waits for a task; nil: there is none and the worker must end.
func (p *pool) next(idle *time.Timer) (t task, from chan task) {
	for {
		select {
		case t = <-p.urgent:
			return t, p.urgent
		default:
		}
		select {
		case t = <-p.urgent:
			return t, p.urgent
		case t = <-p.rest:
			return t, p.rest
		case <-p.stop:
		case <-idle.C:
		}
		if p.retire() {
			return nil, nil
		}
	}
}

// retire ends a worker unless a task came in meanwhile.
func (p *pool) retire() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.urgent)+len(p.rest) > 0 {
		return false
	}
	p.mu.workers--
	return true
}

// close ends the workers and waits for them. Nothing is put any more.
func (p *pool) close() {
	close(p.stop)
	p.wg.Wait()
}
