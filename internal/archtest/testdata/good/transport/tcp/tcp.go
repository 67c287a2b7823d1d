// Package tcp is a driver.
package tcp

import "github.com/tideway-io/tideway/transport"

// Driver is the driver.
type Driver struct{}

// Name returns "tcp".
func (Driver) Name() string { return "tcp" }

var _ transport.Driver = Driver{}
