//go:build linux && cgo

package main

// #include "include/transfer_engine_c.h"
// #include "table.h"
import "C"

import (
	"context"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tideway-io/tideway"
	"github.com/tideway-io/tideway/errs"
)

// batch is one batch of the interface: up to capacity tasks, started by one or
// more submissions, each of which is a batch of the engine.
type batch struct {
	e        *engine
	id       uint64
	capacity int
	slot     *C.tw_slot
	tasks    []C.tw_task

	waiting    atomic.Int32 // callers of wait
	submitting sync.Mutex   // held by the submission under way
	mu         struct {
		sync.Mutex
		count    int // tasks
		left     int // tasks that have not ended
		failed   int
		failures map[int]error
		running  map[*tideway.Batch]*submission
		asleep   uint64 // of those, how many have no pump
		note     *note
		idle     chan struct{} // closed when left reaches zero; nil while nobody waits
		freed    bool
	}
}

// submission is the tasks of one call, first to first+n.
type submission struct {
	first, n int
	awake    bool   // a pump publishes its ends
	left     int    // tasks that have not ended
	taken    []bool // those whose ends somebody publishes, or has
	unwanted int    // of those left, how many somebody wants to end
	asked    []bool // those tasks; nil: none
}

// note is the message that follows when all of a batch has completed.
type note struct {
	to *tideway.Segment
	n  tideway.Notification
}

// admissionTimeout bounds the wait for room in the engine's queue.
const admissionTimeout = 30 * time.Second

// submit starts requests as the batch's next tasks: all of them, or none.
func (b *batch) submit(reqs []tideway.Request, n *note) error {
	b.submitting.Lock()
	defer b.submitting.Unlock()
	b.mu.Lock()
	first, freed := b.mu.count, b.mu.freed
	b.mu.Unlock()
	if freed {
		return errs.New(errs.Invalid, "submit", "the batch was freed")
	}
	if len(reqs) > b.capacity-first {
		return errs.New(errs.Overloaded, "submit", "%d requests into a batch of %d that has %d; allocate a larger one", len(reqs), b.capacity, first)
	}
	ctx, cancel := context.WithTimeout(context.Background(), admissionTimeout)
	defer cancel()
	sub, err := b.e.tw.Submit(ctx, reqs...)
	if err != nil {
		return err
	}
	b.took(sub, first, len(reqs), n)
	if n != nil { // which is sent although nobody looks
		b.wake()
	}
	return nil
}

// took records a submission whose tasks begin at first.
func (b *batch) took(sub *tideway.Batch, first, n int, note *note) {
	for i := first; i < first+n; i++ {
		store32(&b.tasks[i].state, C.STATUS_WAITING)
		store(&b.tasks[i].bytes, 0)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.count += n
	b.mu.left += n
	if note != nil {
		b.mu.note = note
	}
	if b.mu.running == nil {
		b.mu.running = make(map[*tideway.Batch]*submission)
	}
	part := &submission{first: first, n: n, left: n, taken: make([]bool, n)}
	b.mu.running[sub] = part
	b.mu.asleep++
	store(&b.slot.asleep, b.mu.asleep)
	store(&b.slot.count, uint64(b.mu.count))
}

// wake has the ends of what was submitted published as they come.
func (b *batch) wake() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.wakeLocked()
}

func (b *batch) wakeLocked() {
	for sub, part := range b.mu.running {
		if !part.awake && b.e.pumps.start(func() { b.pump(sub, part) }) {
			part.awake = true
			b.mu.asleep--
		}
	}
	store(&b.slot.asleep, b.mu.asleep)
}

// collect publishes what has ended and was not published, and lets go of the
// submissions that are over. The lock is held.
func (b *batch) collect() {
	for sub, part := range b.mu.running {
		for at, r := range sub.Results() {
			b.publish(sub, part, at, r)
		}
		if part.left == 0 && !part.awake {
			b.drop(sub)
		}
	}
}

// drop forgets a submission that is over. The lock is held.
func (b *batch) drop(sub *tideway.Batch) {
	if part := b.mu.running[sub]; part != nil && !part.awake {
		b.mu.asleep--
		store(&b.slot.asleep, b.mu.asleep)
	}
	delete(b.mu.running, sub)
}

// pump publishes the ends of a submission as they come, unless somebody waits for
// the batch, who does it himself.
func (b *batch) pump(sub *tideway.Batch, part *submission) {
	for at, r := range sub.Finished(context.Background()) {
		if b.waiting.Load() > 0 {
			<-sub.Done()
		}
		b.mu.Lock()
		b.publish(sub, part, at, r)
		b.mu.Unlock()
	}
	b.mu.Lock()
	b.drop(sub)
	over := b.mu.freed && b.mu.left == 0
	b.mu.Unlock()
	if over {
		lib.batches.remove(b)
	}
}

// publish publishes the end of one task of a submission, once. The lock is held,
// but not while the message that belongs to the batch is sent.
func (b *batch) publish(sub *tideway.Batch, part *submission, at int, r tideway.Result) {
	if part.taken[at] {
		return
	}
	part.taken[at] = true
	if b.mu.note != nil {
		b.mu.Unlock()
		b.notify(r.Err)
		b.mu.Lock()
	}
	if b.ended(part, at, r) {
		sub.Cancel()
	}
}

// notify sends the batch's message if the end of this task, the last one, makes
// it complete. The task is not seen to have ended before the message is there.
func (b *batch) notify(failure error) {
	b.mu.Lock()
	n := b.mu.note
	if n == nil || b.mu.left > 1 || b.mu.failed > 0 || failure != nil {
		b.mu.Unlock()
		return
	}
	b.mu.note = nil
	b.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	if err := b.e.tw.Notify(ctx, n.to, n.n); err != nil {
		b.e.log.Warn("the message after a batch was not delivered", "segment", n.to.Name(), "error", err)
	}
}

// ended publishes the end of one task of a submission, and reports whether nobody
// wants what is left of that. The lock is held.
func (b *batch) ended(part *submission, at int, r tideway.Result) (unwanted bool) {
	i := part.first + at
	part.left--
	if part.asked != nil && part.asked[at] {
		part.unwanted--
	}
	if r.Err != nil {
		if b.mu.failures == nil {
			b.mu.failures = make(map[int]error)
		}
		b.mu.failures[i] = r.Err
		b.mu.failed++
		store(&b.slot.failed, uint64(b.mu.failed))
	}
	store(&b.tasks[i].bytes, r.Bytes)
	store32(&b.tasks[i].state, stateOf(r.Err))
	b.mu.left--
	store(&b.slot.ended, uint64(b.mu.count-b.mu.left))
	if b.mu.left == 0 && b.mu.idle != nil {
		close(b.mu.idle)
		b.mu.idle = nil
	}
	return part.left > 0 && part.unwanted == part.left
}

// wait waits until every task has ended, or d has passed; negative: for ever. It
// waits for the engine and publishes itself, so that it is not woken by a pump.
func (b *batch) wait(d time.Duration) error {
	ctx, cancel := context.WithCancel(context.Background())
	if d >= 0 {
		ctx, cancel = context.WithTimeout(ctx, d)
	}
	defer cancel()
	b.mu.Lock()
	running := maps.Clone(b.mu.running)
	b.mu.Unlock()
	b.waiting.Add(1)
	for sub := range running {
		_ = sub.Wait(ctx) // the tasks' errors are in their states
	}
	b.waiting.Add(-1)
	b.mu.Lock()
	b.collect()
	if b.mu.left == 0 {
		b.mu.Unlock()
		return nil
	}
	b.wakeLocked() // for what was submitted meanwhile
	if b.mu.idle == nil {
		b.mu.idle = make(chan struct{})
	}
	idle := b.mu.idle
	b.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return errs.New(errs.Deadline, "wait for batch", "after %v there are tasks under way", d)
	}
}

// cancel withdraws the tasks that have not ended.
func (b *batch) cancel() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for sub := range b.mu.running {
		sub.Cancel()
	}
}

// cancelTask withdraws a task. The engine withdraws submissions as a whole: it
// does so when nobody wants what is left of one.
func (b *batch) cancelTask(task uint64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if task >= uint64(b.mu.count) {
		return errs.New(errs.Invalid, "cancel task", "task %d of %d", task, b.mu.count)
	}
	b.collect()
	for sub, part := range b.mu.running {
		at := int(task) - part.first
		if at < 0 || at >= part.n || load32(&b.tasks[task].state) != C.STATUS_WAITING {
			continue
		}
		if part.asked == nil {
			part.asked = make([]bool, part.n)
		}
		if !part.asked[at] {
			part.asked[at] = true
			part.unwanted++
		}
		if part.unwanted == part.left {
			sub.Cancel()
		}
	}
	return nil
}

// failure returns why a task failed, or nil.
func (b *batch) failure(task int) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.collect()
	return b.mu.failures[task]
}

// release ends the use of the batch, unless a task is under way.
func (b *batch) release() error {
	b.submitting.Lock()
	defer b.submitting.Unlock()
	b.mu.Lock()
	b.collect()
	left := b.mu.left
	b.mu.freed = left == 0
	b.mu.Unlock()
	if left > 0 {
		return errs.New(errs.Busy, "free batch", "%d of its tasks are under way; wait, or cancel them", left)
	}
	lib.batches.remove(b)
	return nil
}

// releaseLater ends the use of the batch now, or when its last task has ended.
func (b *batch) releaseLater() {
	b.submitting.Lock()
	defer b.submitting.Unlock()
	b.mu.Lock()
	b.collect()
	b.mu.freed = true
	idle := b.mu.left == 0
	b.mu.Unlock()
	if idle {
		lib.batches.remove(b)
		return
	}
	b.wake()
}
