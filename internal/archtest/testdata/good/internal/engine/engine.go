// Package engine is the engine.
package engine

import "sync"

// Engine keeps its state in itself.
type Engine struct {
	mu   sync.Mutex
	byte byte
}

// Peek uses it.
func (e *Engine) Peek() byte {
	e.mu.Lock()
	defer e.mu.Unlock()
	return peek(&e.byte)
}
