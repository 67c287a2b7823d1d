package archtest

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"slices"
	"strings"
)

// corePackages hold the pure state machines.
var corePackages = []string{"internal/core/..."}

// impure are what the core does not import: inputs that are not events, and what
// waits or shares.
var impure = []string{"net", "os", "io", "bufio", "context", "crypto", "log", "maps", "math/rand", "runtime", "sync", "syscall", "unsafe", "C", "plugin", "testing",
	"golang.org/x/sys"}

// pureAnyway lists parts of impure packages that only name things.
var pureAnyway = []string{"io/fs"}

// clocks are the functions of package time that read a clock or start a timer.
var clocks = []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTicker", "NewTimer"}

// checkPureCore looks for clocks, chance, locks, goroutines, channels and map
// order in the core.
func checkPureCore(m *Module, found func(token.Pos, string, string)) {
	m.imports(func(p *Package, f *File, at token.Pos, path string) {
		if f.Test || !matches(p.Path, corePackages...) || slices.Contains(pureAnyway, path) {
			return
		}
		for _, bad := range impure {
			if path == bad || strings.HasPrefix(path, bad+"/") {
				found(at, p.Path, fmt.Sprintf("%s imports %s", p.Path, path))
			}
		}
	})
	m.eachFile(func(p *Package, f *File) {
		if f.Test || !matches(p.Path, corePackages...) {
			return
		}
		ast.Inspect(f.File, func(n ast.Node) bool {
			if what := impurity(p, n); what != "" {
				found(n.Pos(), p.Path, what)
			}
			return true
		})
	})
}

// impurity says what is wrong with one node, or "".
func impurity(p *Package, n ast.Node) string {
	switch n := n.(type) {
	case *ast.GoStmt:
		return "a goroutine"
	case *ast.SelectStmt, *ast.SendStmt, *ast.ChanType:
		return "a channel"
	case *ast.RangeStmt:
		if t := p.Info.Types[n.X].Type; t != nil {
			if _, ok := t.Underlying().(*types.Map); ok {
				return "the order of a map"
			}
		}
	case *ast.SelectorExpr:
		if f, ok := p.Info.Uses[n.Sel].(*types.Func); ok && f.Pkg() != nil && f.Pkg().Path() == "time" && f.Signature().Recv() == nil && slices.Contains(clocks, f.Name()) {
			return "time." + f.Name() + ": now goes in, the core does not ask for it"
		}
	}
	return ""
}
