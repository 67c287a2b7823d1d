// Package mustrun is the list of tests that may not be skipped in CI, and the
// comparison of that list with what ran. A skip elsewhere is a convenience; in
// CI it would hide that a promise is no longer tested.
package mustrun

import (
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Module is the prefix that package names in the list lack.
const Module = "github.com/tideway-io/tideway"

//go:embed mustrun.txt
var list string

//go:embed blanks.txt
var blanks string

// Entry is one line of the list.
type Entry struct {
	Suite   string // suite of `make check`
	Package string // import path
	Test    string // full name, or "*"
}

// Outcome is how one test of one suite ended.
type Outcome struct {
	Suite   string
	Package string // import path
	Test    string
	Action  string // pass, fail or skip
	Why     string // a skip's reason
}

// List returns the entries of mustrun.txt.
func List() ([]Entry, error) { return Parse(list) }

// Parse reads the format that mustrun.txt describes.
func Parse(text string) ([]Entry, error) {
	var out []Entry
	for n, line := range strings.Split(text, "\n") {
		f := strings.Fields(line)
		if len(f) == 0 || strings.HasPrefix(f[0], "#") {
			continue
		}
		if len(f) != 3 {
			return nil, fmt.Errorf("line %d: %q: want SUITE PACKAGE TEST", n+1, line)
		}
		e := Entry{Suite: f[0], Package: Module + "/" + f[1], Test: f[2]}
		if f[1] == "." {
			e.Package = Module
		}
		out = append(out, e)
	}
	return out, nil
}

// Listed reports whether the test, one of its parents or its whole package is
// in entries, for any suite.
func Listed(entries []Entry, pkg, test string) bool {
	return slices.ContainsFunc(entries, func(e Entry) bool {
		return e.Package == pkg && (e.Test == "*" || e.Test == test || strings.HasPrefix(test, e.Test+"/"))
	})
}

// Verify returns one sentence for each entry whose suite is in suites and whose
// test was skipped or did not run. Failures are not its business.
func Verify(entries []Entry, suites []string, ran []Outcome) []string {
	var out []string
	for _, e := range entries {
		if !slices.Contains(suites, e.Suite) {
			continue
		}
		if why := e.missing(ran); why != "" {
			out = append(out, fmt.Sprintf("%s: %s %s must run: %s", e.Suite, e.Package, e.Test, why))
		}
	}
	return out
}

// elsewhere begins the reasons of skips that are right in every suite: what other
// commands run, and the blanks of the conformance matrix.
var elsewhere = []string{"a speed gate:", "a long run:", "promise "}

// NowhereRun returns one sentence for each test that was skipped in every suite,
// for a reason that is not among those that are right everywhere.
func NowhereRun(ran []Outcome) []string {
	skipped := map[string]string{} // test to reason; "" when it ran
	for _, o := range ran {
		name := o.Package + " " + o.Test
		if why, seen := skipped[name]; o.Action != "skip" || seen && why == "" {
			skipped[name] = ""
		} else {
			skipped[name] = o.Why
		}
	}
	var out []string
	for _, name := range slices.Sorted(maps.Keys(skipped)) {
		why := skipped[name]
		if why != "" && !slices.ContainsFunc(elsewhere, func(p string) bool { return strings.HasPrefix(why, p) }) {
			out = append(out, fmt.Sprintf("%s runs in no suite: %s", name, why))
		}
	}
	return out
}

func (e Entry) missing(ran []Outcome) string {
	found := false
	for _, o := range ran {
		if o.Suite != e.Suite || !Listed([]Entry{e}, o.Package, o.Test) {
			continue
		}
		if o.Action == "skip" {
			if strings.HasPrefix(o.Why, "promise ") {
				continue // the conformance suite checks its blanks against the list itself
			}
			return fmt.Sprintf("%s was skipped: %s", o.Test, o.Why)
		}
		found = found || e.Test == "*" || o.Test == e.Test
	}
	if !found {
		return "it did not run"
	}
	return ""
}

// Blank returns the reason why the conformance suite does not check a promise on
// a transport, and whether there is one.
func Blank(transport, promise string) (reason string, ok bool) {
	for line := range strings.Lines(blanks) {
		f := strings.Fields(line)
		if len(f) > 2 && f[0] == transport && f[1] == promise {
			return strings.Join(f[2:], " "), true
		}
	}
	return "", false
}
