// Package errs has sentinel errors and tables.
package errs

import (
	"errors"
	"fmt"
	"regexp"
)

// The sentinels.
var (
	ErrOne       = errors.New("one")
	ErrTwo error = fmt.Errorf("two: %w", ErrOne)
)

var names = map[int]string{1: "one"}

var kinds = [4]error{1: ErrOne}

var pattern = regexp.MustCompile("^a+$")

var handlers = []struct {
	name string
	run  func() error
}{
	{"one", func() error { return fmt.Errorf("at run time: %w", ErrOne) }},
}

var _ fmt.Stringer = Code(0)

// Code is a number.
type Code int

// String names it.
func (c Code) String() string {
	names := map[int]string{} // a local of the same name may change
	names[1] = "eins"
	delete(names, 1)
	if pattern.MatchString("a") && len(handlers) > 0 {
		return names[int(c)]
	}
	return kinds[1].Error()
}
