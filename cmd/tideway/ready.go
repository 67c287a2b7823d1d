package main

import (
	"errors"
	"fmt"
	"os"
)

// readyFile is the path of a file that is there only while others can connect;
// empty: there is none.
type readyFile string

// write makes the file appear, whole.
func (r readyFile) write(text string) error {
	if r == "" {
		return nil
	}
	if err := writeFile(string(r), text+"\n"); err != nil {
		return fmt.Errorf("--ready-file: %w", err)
	}
	return nil
}

// remove removes it, at the start and at the end.
func (r readyFile) remove() error {
	if r == "" {
		return nil
	}
	if err := os.Remove(string(r)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("--ready-file: %w", err)
	}
	return nil
}
