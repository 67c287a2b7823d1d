package memory

import (
	"sync"
	"time"
)

const (
	// maxQueued bounds the slices that wait for a worker of one pool or are with
	// one. Beyond it Post says errs.ErrOverloaded.
	maxQueued = 1024
	// idleTime is how long a worker waits for more before it ends.
	idleTime = time.Second
)

// pool runs jobs on at most max goroutines, urgent ones first. A worker is
// started when there is more work than workers and ends when there is none.
type pool struct {
	max    int
	urgent chan *job // class 0
	rest   chan *job
	stop   chan struct{}
	wg     sync.WaitGroup
	mu     struct {
		sync.Mutex
		workers int
		pending int // queued or being done; both channels have room for all
	}
}

func (p *pool) init(limit int) {
	p.max = limit
	p.urgent, p.rest = make(chan *job, maxQueued), make(chan *job, maxQueued)
	p.stop = make(chan struct{})
}

// put queues a job, or returns false if there are too many.
func (p *pool) put(j *job) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.pending == maxQueued {
		return false
	}
	p.mu.pending++
	if j.slice.Class == 0 {
		p.urgent <- j
	} else {
		p.rest <- j
	}
	if p.mu.workers < min(p.max, p.mu.pending) {
		p.mu.workers++
		p.wg.Go(p.work)
	}
	return true
}

// done counts a job out, so that its completion may bring the next one.
func (p *pool) done() {
	p.mu.Lock()
	p.mu.pending--
	p.mu.Unlock()
}

func (p *pool) work() {
	idle := time.NewTimer(idleTime)
	defer idle.Stop()
	for {
		j := p.next(idle)
		if j == nil {
			return
		}
		j.run()
		idle.Reset(idleTime)
	}
}

// next waits for a job; nil: there is none and the worker must end.
func (p *pool) next(idle *time.Timer) *job {
	for {
		select {
		case j := <-p.urgent:
			return j
		default:
		}
		select {
		case j := <-p.urgent:
			return j
		case j := <-p.rest:
			return j
		case <-p.stop:
		case <-idle.C:
		}
		if p.retire() {
			return nil
		}
	}
}

// retire ends a worker unless a job came in meanwhile.
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
	select {
	case <-p.stop:
	default:
		close(p.stop)
	}
	p.wg.Wait()
}
