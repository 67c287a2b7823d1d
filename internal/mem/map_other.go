//go:build !linux

package mem

import "errors"

// Map fails: it takes Linux.
func Map(int, int, bool) ([]byte, func() error, error) { return nil, nil, errors.ErrUnsupported }
