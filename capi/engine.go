//go:build linux && cgo

package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tideway-io/tideway"
	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/metadata/all"
)

// callTimeout bounds calls that ask a peer or a store.
const callTimeout = 30 * time.Second

// drainTimeout is what destroyTransferEngine gives transfers under way.
const drainTimeout = 2 * time.Second

// engine is one engine of the interface.
type engine struct {
	handle  uint64
	tw      *tideway.Engine
	store   all.Store // nil peer to peer
	env     environment
	log     *slog.Logger
	logFile *os.File // nil for standard error
	memory  memory
	pumps   pumps

	mu struct {
		sync.RWMutex
		segments []*tideway.Segment // by id; 0 is one's own, nil once removed
		ids      map[string]int32   // by the name opened
		opens    map[int32]int      // by id: how often it was opened and not closed
	}
}

// pumps are an engine's goroutines that publish the ends of tasks.
type pumps struct {
	mu     sync.Mutex
	closed bool
	all    sync.WaitGroup
}

// start runs f in a goroutine; false when the engine ends, which then publishes
// itself what is left.
func (p *pumps) start(f func()) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.all.Go(f)
	return true
}

// close waits for the goroutines, and starts no more.
func (p *pumps) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.all.Wait()
}

// create starts an engine with the store that conn names and the configuration
// that configure makes.
func create(conn string, configure func(*environment) (tideway.Config, error)) (*engine, error) {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	e, err := start(ctx, conn, configure)
	if err != nil {
		return nil, err
	}
	own, err := e.tw.OpenSegment(ctx, e.tw.Name())
	if err != nil {
		return nil, errors.Join(err, e.tw.Close(), e.letGo())
	}
	e.mu.segments = []*tideway.Segment{own}
	e.mu.ids, e.mu.opens = map[string]int32{e.tw.Name(): 0}, map[int32]int{}
	return e, nil
}

// destroy ends the engine: what is under way gets a moment, then is cut short.
func (e *engine) destroy() {
	ctx, cancel := context.WithTimeout(context.Background(), drainTimeout)
	defer cancel()
	if err := e.tw.Shutdown(ctx); err != nil {
		e.log.Warn("transfers were cut short", "error", err)
	}
	e.pumps.close()
	for _, b := range lib.batches.of(e) {
		if err := b.release(); err != nil {
			e.log.Error("a batch outlived its engine", "error", err)
		}
	}
	e.memory.freeAll()
	if err := e.letGo(); err != nil {
		slog.Warn("a store or log did not close well", "error", err)
	}
}

// open returns the id of the segment called name; fresh asks its owner again.
func (e *engine) open(name string, fresh bool) (int32, error) {
	name = strings.TrimLeft(name, "/")
	if name == "" {
		return -1, errs.New(errs.Invalid, "open segment", "the name is empty; give the owner's host:port, or its name in the store")
	}
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	if id, known := e.opened(name); known {
		if fresh && id != 0 {
			return id, e.segmentOrNil(id).Refresh(ctx)
		}
		return id, nil
	}
	s, err := e.tw.OpenSegment(ctx, name)
	if err != nil {
		return -1, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	id, known := e.mu.ids[name]
	if known { // by another thread, just now
		s.Close()
	} else {
		id = int32(len(e.mu.segments))
		e.mu.segments = append(e.mu.segments, s)
		e.mu.ids[name] = id
	}
	e.mu.opens[id]++
	return id, nil
}

// opened returns the id of a segment that is open and counts one more that uses it.
func (e *engine) opened(name string) (id int32, known bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if id, known = e.mu.ids[name]; known && id != 0 {
		e.mu.opens[id]++
	}
	return id, known
}

// known returns the id of a segment that is open by that name, else 0.
func (e *engine) known(name string) int32 {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.mu.ids[name]
}

// close is the end of one open; with the last one the id is void.
func (e *engine) close(id uint64) error {
	if id == 0 {
		return nil
	}
	s, err := e.segment(int64(min(id, 1<<62)))
	if err != nil {
		return err
	}
	e.mu.Lock()
	e.mu.opens[int32(id)]--
	left := e.mu.opens[int32(id)]
	e.mu.Unlock()
	if left > 0 {
		return nil
	}
	return e.forget(s.Name())
}

// segmentOrNil returns the segment of an id, nil if there is none.
func (e *engine) segmentOrNil(id int32) *tideway.Segment {
	e.mu.RLock()
	defer e.mu.RUnlock()
	if id < 0 || int(id) >= len(e.mu.segments) {
		return nil
	}
	return e.mu.segments[id]
}

// segment returns the segment of an id.
func (e *engine) segment(id int64) (*tideway.Segment, error) {
	if s := e.segmentOrNil(int32(id)); s != nil && int64(int32(id)) == id {
		return s, nil
	}
	return nil, errs.New(errs.Invalid, "use segment", "%d is no id of openSegment", id)
}

// forget drops a segment from what is known.
func (e *engine) forget(name string) error {
	name = strings.TrimLeft(name, "/")
	e.mu.Lock()
	defer e.mu.Unlock()
	id, known := e.mu.ids[name]
	if !known || id == 0 {
		return errs.New(errs.NotFound, "forget segment", "%q is not open", name)
	}
	e.mu.segments[id].Close()
	e.mu.segments[id] = nil
	delete(e.mu.ids, name)
	delete(e.mu.opens, id)
	return nil
}

// sync asks the owners of all open segments for what they offer now; what
// cannot be asked stays as it was.
func (e *engine) sync() {
	e.mu.RLock()
	open := slices.Clone(e.mu.segments[1:])
	e.mu.RUnlock()
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	var all sync.WaitGroup
	slots := make(chan struct{}, 16)
	for _, s := range open {
		if s == nil {
			continue
		}
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			if err := s.Refresh(ctx); err != nil {
				e.log.Warn("what a segment offers could not be asked", "segment", s.Name(), "error", err)
			}
		})
	}
	all.Wait()
}
