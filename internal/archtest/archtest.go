// Package archtest keeps the rules of the project's design as a test: which
// package may import which, what the core may not touch, what may not be changed
// at run time, how long things may be. Each finding names the rule and its
// reason.
//
// The rules are functions over a Module, so that they are tested on small modules
// that break them (testdata). What breaks a rule for good is in exceptions.txt
// with a reason; an exception that is not needed any more is a failure.
package archtest

import (
	"cmp"
	"fmt"
	"go/token"
	"slices"
	"strings"
)

// Rule is one rule of the design.
type Rule struct {
	Name   string
	Reason string
	Check  func(m *Module, found func(at token.Pos, where, what string))
}

// Rules returns all rules that are checked on Go source.
func Rules() []Rule {
	return []Rule{
		{"arrows", "imports point down only, so that three packages understood are enough to change one", checkArrows},
		{"library", "who links the library gets no other modules with it", checkLibrary},
		{"pure-core", "the core is replayed by the simulator: the same events give the same actions", checkPureCore},
		{"package-state", "two engines in one process are independent", checkPackageState},
		{"init", "nothing happens before main: no registration, no work at start", checkInit},
		{"unsafe", "memory safety is argued in few places, each with its comment", checkUnsafe},
		{"function-size", fmt.Sprintf("a function fits a screen: at most %d lines", maxFunction), checkFunctionSize},
		{"file-size", fmt.Sprintf("a file has one subject: at most %d lines", maxFile), checkFileSize},
		{"package-comment", "a package has one purpose, which one comment states", checkPackageComment},
		{"package-name", "a name that says nothing gathers what belongs nowhere", checkPackageName},
		{"words", "one word for each thing, in code and in documents", checkWords},
		{"sleep", "a test that sleeps to synchronise is slow when it passes and wrong when the machine is busy", checkSleep},
	}
}

// Finding is one place that breaks a rule.
type Finding struct {
	Rule  string
	Pos   token.Position // relative to the module
	Where string         // the same after the file changed: package.Name, or a file
	What  string
}

func (f Finding) String() string {
	return fmt.Sprintf("%s:%d: %s: %s", f.Pos.Filename, f.Pos.Line, f.Rule, f.What)
}

// Run checks all rules and returns the findings by file and line.
func Run(m *Module) []Finding {
	var out []Finding
	for _, r := range Rules() {
		r.Check(m, func(at token.Pos, where, what string) {
			out = append(out, Finding{r.Name, m.position(at), where, what})
		})
	}
	slices.SortFunc(out, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Pos.Filename, b.Pos.Filename), a.Pos.Line-b.Pos.Line, cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.What, b.What))
	})
	return slices.Compact(out)
}

// Exception lets one place break one rule.
type Exception struct{ Rule, Where, Reason string }

// ParseExceptions reads "RULE WHERE reason" lines.
func ParseExceptions(text string) ([]Exception, error) {
	var out []Exception
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) == 0 || f[0] == "#" {
			continue
		}
		if len(f) < 3 {
			return nil, fmt.Errorf("exception %q: want RULE WHERE and a reason", strings.TrimSpace(line))
		}
		out = append(out, Exception{f[0], f[1], strings.Join(f[2:], " ")})
	}
	return out, nil
}

// Except removes the findings that have an exception, and returns the exceptions
// that removed nothing.
func Except(found []Finding, exceptions []Exception) (left []Finding, unused []Exception) {
	used := map[Exception]bool{}
	for _, f := range found {
		i := slices.IndexFunc(exceptions, func(e Exception) bool { return e.Rule == f.Rule && e.Where == f.Where })
		if i < 0 {
			left = append(left, f)
			continue
		}
		used[exceptions[i]] = true
	}
	for _, e := range exceptions {
		if !used[e] {
			unused = append(unused, e)
		}
	}
	return left, unused
}
