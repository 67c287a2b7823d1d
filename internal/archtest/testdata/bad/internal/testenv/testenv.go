// Package testenv is for tests.
package testenv

// Wait waits.
func Wait() {}
