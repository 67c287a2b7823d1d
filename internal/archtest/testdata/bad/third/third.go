// Package third is somebody else's.
package third

// Do does.
func Do() {}
