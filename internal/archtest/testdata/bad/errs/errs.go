// Package errs imports upwards.
package errs

import "github.com/tideway-io/tideway/internal/core/rail"

// Of uses it.
func Of() { rail.Step(nil) }
