// Package tideway is the facade of a small module that keeps all rules.
package tideway

import (
	"github.com/tideway-io/tideway/internal/engine"
	"github.com/tideway-io/tideway/transport/all"
)

// Engine is the engine.
type Engine = engine.Engine

// Drivers returns the default drivers.
func Drivers() []string { return all.Drivers() }
