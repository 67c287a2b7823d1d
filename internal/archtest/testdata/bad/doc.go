// Package tideway breaks every rule of archtest.
package tideway

import (
	"example.com/third"

	"github.com/tideway-io/tideway/internal/engine"
	"github.com/tideway-io/tideway/internal/testenv"
)

// Plugin is a word from elsewhere.
type Plugin struct {
	TaskID int
	Rails  int
}

// StartJobs too.
func (p Plugin) StartJobs() { third.Do(); engine.Run(); testenv.Wait() }
