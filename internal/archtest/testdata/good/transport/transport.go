// Package transport is the contract.
package transport

// Driver is a driver.
type Driver interface{ Name() string }
