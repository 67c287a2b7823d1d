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
	// A step that takes longer than stuckTime waits for something: memory that
	// is swapped out, or that a peer does not let the kernel have. So that others
	// do not wait with it, there may then be more workers, up to maxStuck.
	stuckTime = 100 * time.Millisecond
	maxStuck  = 64
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
	watch        *time.Timer
	mu           struct {
		sync.Mutex
		workers  int
		pending  int    // tasks that have steps left; both channels have room for all
		watching bool   // watch runs
		closed   bool   // no more workers
		steps    uint64 // so far
		seen     uint64 // steps when watch looked last
	}
}

// init makes room for limit tasks.
func (p *pool) init(limit int) {
	p.urgent, p.rest = make(chan task, limit), make(chan task, limit)
	p.stop = make(chan struct{})
	p.watch = time.AfterFunc(time.Hour, p.look)
	p.watch.Stop()
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
	switch {
	case p.mu.workers < min(workers, p.mu.pending):
		p.mu.workers++
		p.wg.Go(p.work)
	case p.mu.pending > p.mu.workers && !p.mu.watching:
		p.mu.watching, p.mu.seen = true, p.mu.steps
		p.watch.Reset(stuckTime)
	}
	return true
}

// look starts a worker if tasks wait and none of those there are has ended a
// step for a while, and looks again until none waits.
func (p *pool) look() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.watching = p.mu.pending > p.mu.workers && !p.mu.closed
	if !p.mu.watching {
		return
	}
	if p.mu.seen == p.mu.steps && p.mu.workers < maxStuck {
		p.mu.workers++
		p.wg.Go(p.work)
	}
	p.mu.seen = p.mu.steps
	p.watch.Reset(stuckTime)
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
		more := t.step()
		if more {
			from <- t // it still counts as pending, so there is room
		}
		p.mu.Lock()
		p.mu.steps++
		if !more {
			p.mu.pending--
		}
		p.mu.Unlock()
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
	p.mu.Lock()
	p.mu.closed = true
	p.mu.Unlock()
	p.watch.Stop() // one that runs finds it closed
	close(p.stop)
	p.wg.Wait()
}
