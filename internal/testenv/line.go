package testenv

import (
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	chunkMax   = 64 << 10               // bytes in one chunk
	lineMax    = 64 << 20               // bytes in a delay line without a rate
	linkQueue  = time.Millisecond       // how long bytes may wait to enter a link with a rate
	chunkTime  = 250 * time.Microsecond // what a chunk may take on a link with a rate
	coarseness = 2 * time.Millisecond   // how far off a Go timer may be, with room
)

// link is what all connections in one direction share: a rate, and a delay.
type link struct {
	mu    sync.Mutex
	rate  float64 // bytes a second, 0 for no limit
	delay time.Duration
	free  time.Time // when the last byte accepted has entered
}

func (l *link) set(bitsPerSecond float64, delay time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rate, l.delay = bitsPerSecond/8, delay
}

// place is what a reader may do next on a link.
type place struct {
	chunk    int           // bytes to read at the most
	capacity int           // bytes in the line: twice what is under way at this rate
	late     time.Duration // how long it has waited beyond its turn
}

// admit waits until the link's queue is short.
func (l *link) admit(s *sleeper, done <-chan struct{}) (p place, ok bool) {
	for {
		l.mu.Lock()
		rate, delay, free := l.rate, l.delay, l.free
		l.mu.Unlock()
		if rate == 0 {
			return place{chunkMax, lineMax, 0}, true
		}
		p.chunk = int(min(max(rate*chunkTime.Seconds(), 1500), chunkMax))
		p.capacity = 2*int(rate*(delay+linkQueue).Seconds()) + 4*p.chunk
		if time.Until(free) <= linkQueue {
			return p, true
		}
		if !s.until(free.Add(-linkQueue), done) {
			return p, false
		}
		p.late = max(-time.Until(free), 0)
	}
}

// enter takes n bytes in and returns when they come out. That a busy machine was
// late to take them does not make the link slower.
func (l *link) enter(n int, late time.Duration) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	if start := time.Now().Add(-late); l.free.Before(start) {
		l.free = start
	}
	if l.rate > 0 {
		l.free = l.free.Add(time.Duration(float64(n) / l.rate * float64(time.Second)))
	}
	return l.free.Add(l.delay)
}

// sleeper sleeps to within some 0.1 ms, where a Go timer may be a millisecond
// late: it waits for a timer of the kernel as for a socket, so that no processor
// is held meanwhile. The zero value is ready; one goroutine uses it and closes it.
type sleeper struct {
	fd    int
	timer *os.File
}

// until returns false when done was closed first.
func (s *sleeper) until(t time.Time, done <-chan struct{}) bool {
	if d := time.Until(t) - coarseness; d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-done:
			return false
		}
	}
	for d := time.Until(t); d > 0; d = time.Until(t) {
		if s.nap(d) != nil {
			time.Sleep(d)
		}
	}
	return true
}

// nap waits for the kernel's timer.
func (s *sleeper) nap(d time.Duration) error {
	if s.timer == nil {
		fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
		if err != nil {
			return err
		}
		s.fd, s.timer = fd, os.NewFile(uintptr(fd), "timer")
	}
	if err := unix.TimerfdSettime(s.fd, 0, &unix.ItimerSpec{Value: unix.NsecToTimespec(d.Nanoseconds())}, nil); err != nil {
		return err
	}
	_, err := s.timer.Read(make([]byte, 8))
	return err
}

func (s *sleeper) close() {
	if s.timer != nil {
		s.timer.Close()
	}
}

// chunk is a piece of a stream on its way, or its end.
type chunk struct {
	buf  []byte
	due  time.Time
	ends Kind
}

// line is the delay line of one direction of one connection.
type line struct {
	mu    sync.Mutex
	moved sync.Cond
	queue []chunk
	spare [][]byte // buffers of chunkMax bytes
	bytes int
	shut  bool
}

func newLine() *line {
	l := &line{}
	l.moved.L = &l.mu
	return l
}

// buffer returns a free buffer.
func (l *line) buffer() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.spare); n > 0 {
		b := l.spare[n-1]
		l.spare = l.spare[:n-1]
		return b
	}
	return make([]byte, chunkMax)
}

// recycle takes a buffer back.
func (l *line) recycle(b []byte) {
	if cap(b) != chunkMax {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.spare = append(l.spare, b[:chunkMax])
}

// push waits until fewer than capacity bytes are under way and appends c. It
// returns false when the line was shut.
func (l *line) push(c chunk, capacity int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.bytes >= max(capacity, 1) && !l.shut {
		l.moved.Wait()
	}
	l.queue, l.bytes = append(l.queue, c), l.bytes+len(c.buf)
	l.moved.Broadcast()
	return !l.shut
}

// pop waits for the oldest chunk. It returns false when the line was shut.
func (l *line) pop() (chunk, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.queue) == 0 && !l.shut {
		l.moved.Wait()
	}
	if l.shut {
		return chunk{}, false
	}
	c := l.queue[0]
	l.queue = l.queue[1:]
	return c, true
}

// left says that n popped bytes are no longer under way.
func (l *line) left(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.bytes -= n
	l.moved.Broadcast()
}

// close makes push and pop return false.
func (l *line) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.shut = true
	l.moved.Broadcast()
}
