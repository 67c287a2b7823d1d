package archtest

import (
	"fmt"
	"go/ast"
	"go/token"
	"slices"
	"strings"
	"unicode"
)

// The limits of what a reader takes in at once, in lines.
const (
	maxFunction = 70
	maxFile     = 600
)

func checkFunctionSize(m *Module, found func(token.Pos, string, string)) {
	m.eachFile(func(p *Package, f *File) {
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			lines := m.Fset.Position(fn.End()).Line - m.Fset.Position(fn.Pos()).Line + 1
			if lines > maxFunction {
				found(fn.Pos(), p.Path+"."+fn.Name.Name, fmt.Sprintf("func %s has %d lines, at most %d", fn.Name.Name, lines, maxFunction))
			}
		}
	})
}

func checkFileSize(m *Module, found func(token.Pos, string, string)) {
	m.eachFile(func(_ *Package, f *File) {
		if ast.IsGenerated(f.File) {
			return
		}
		if lines := m.Fset.File(f.FileStart).LineCount(); lines > maxFile+1 { // the last one is empty
			found(f.FileStart, f.Name, fmt.Sprintf("%d lines, at most %d", lines-1, maxFile))
		}
	})
}

func checkPackageComment(m *Module, found func(token.Pos, string, string)) {
	for _, p := range m.Packages {
		var docs []*File
		first := (*File)(nil)
		for _, f := range p.Files {
			if f.Test {
				continue
			}
			if first == nil {
				first = f
			}
			if f.Doc != nil {
				docs = append(docs, f)
			}
		}
		want := "Package " + p.Name + " "
		if p.Name == "main" {
			want = "Command "
		}
		switch {
		case first == nil: // only tests
		case len(docs) == 0:
			found(first.Package, p.Path, "no package comment")
		case len(docs) > 1:
			found(docs[1].Package, p.Path, fmt.Sprintf("a second package comment; the first is in %s", docs[0].Name))
		case !strings.HasPrefix(docs[0].Doc.Text(), want):
			found(docs[0].Package, p.Path, fmt.Sprintf("the package comment does not begin with %q", want))
		}
	}
}

// emptyNames are package names that do not say what is inside.
var emptyNames = []string{"util", "utils", "common", "base", "types", "manager", "helper", "helpers", "misc", "shared", "lib"}

func checkPackageName(m *Module, found func(token.Pos, string, string)) {
	for _, p := range m.Packages {
		if slices.Contains(emptyNames, p.Name) {
			found(p.Files[0].Package, p.Path, fmt.Sprintf("package %s: say what it does", p.Name))
		}
	}
}

// otherWords maps words that exported names avoid to the project's own.
var otherWords = map[string]string{
	"Chunk": "Slice", "Packet": "Slice", "Provider": "Driver", "Backend": "Driver or Transport", "Plugin": "Driver",
	"Backlog": "Admission", "Quota": "Credit", "Token": "Credit", "Alert": "Condition", "Region": "Buffer", "Permission": "Access",
	"Job": "Request", "Task": "Transfer", "Manager": "what it does", "Helper": "what it does",
}

// foreign packages speak the words of another system, or of the machine.
var foreign = []string{"internal/mooncake/...", "transport/mooncake", "internal/ffi/...", "internal/sys", "capi/...", "internal/testenv/...", "internal/e2e", "internal/archtest"}

// checkWords looks at exported names of code that is not a test.
func checkWords(m *Module, found func(token.Pos, string, string)) {
	m.eachFile(func(p *Package, f *File) {
		if f.Test || matches(p.Path, foreign...) {
			return
		}
		for _, id := range declared(f.File) {
			for _, w := range camelWords(id.Name) {
				if better, bad := otherWords[strings.TrimSuffix(w, "s")]; bad && id.IsExported() {
					found(id.Pos(), p.Path+"."+id.Name, fmt.Sprintf("%s: the word here is %s", id.Name, better))
				}
			}
		}
	})
}

// declared returns the names of a file's package-level declarations, fields and
// methods.
func declared(f *ast.File) (ids []*ast.Ident) {
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			ids = append(ids, d.Name)
		case *ast.GenDecl:
			ast.Inspect(d, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.TypeSpec:
					ids = append(ids, n.Name)
				case *ast.ValueSpec:
					ids = append(ids, n.Names...)
				case *ast.Field:
					ids = append(ids, n.Names...)
				}
				return true
			})
		}
	}
	return ids
}

// camelWords splits a name at its capitals.
func camelWords(name string) []string {
	return strings.FieldsFunc(strings.Map(func(r rune) rune { return r }, spaced(name)), func(r rune) bool { return r == ' ' })
}

func spaced(name string) string {
	var b strings.Builder
	for _, r := range name {
		if unicode.IsUpper(r) {
			b.WriteByte(' ')
		}
		b.WriteRune(r)
	}
	return b.String()
}

// checkSleep looks for time.Sleep in tests. It may stand in a synctest bubble,
// where time is not real, or on or below a line whose comment says why.
func checkSleep(m *Module, found func(token.Pos, string, string)) {
	for _, p := range m.Packages {
		bubbles := bubblesOf(p)
		for _, f := range p.Files {
			if !f.Test {
				continue
			}
			excused := m.excusedLines(f)
			ast.Inspect(f.File, func(n ast.Node) bool {
				c, ok := n.(*ast.CallExpr)
				if !ok {
					return true
				}
				if id, ok := c.Fun.(*ast.Ident); ok && bubbles[id.Name] || isCall(c, "synctest", "Test") {
					return false
				}
				if isCall(c, "time", "Sleep") && !excused[m.Fset.Position(c.Pos()).Line] {
					found(c.Pos(), f.Name, "time.Sleep in a test: wait for a condition (testenv.Eventually), use synctest, or say why in a comment: // real time: …")
				}
				return true
			})
		}
	}
}

// bubblesOf returns the package's own functions that run their argument in a
// synctest bubble.
func bubblesOf(p *Package) map[string]bool {
	bubbles := map[string]bool{}
	for _, f := range p.Files {
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || !f.Test || strings.HasPrefix(fn.Name.Name, "Test") {
				continue
			}
			ast.Inspect(fn, func(n ast.Node) bool {
				c, ok := n.(*ast.CallExpr)
				bubbles[fn.Name.Name] = bubbles[fn.Name.Name] || ok && isCall(c, "synctest", "Test")
				return true
			})
		}
	}
	return bubbles
}

// excusedLines returns the lines on or below a comment that says which time.
func (m *Module) excusedLines(f *File) map[int]bool {
	lines := map[int]bool{}
	for _, g := range f.Comments {
		if t := g.Text(); strings.HasPrefix(t, "real time: ") || strings.HasPrefix(t, "virtual time: ") {
			line := m.Fset.Position(g.End()).Line
			lines[line], lines[line+1] = true, true
		}
	}
	return lines
}

func isCall(c *ast.CallExpr, pkg, name string) bool {
	s, ok := c.Fun.(*ast.SelectorExpr)
	x, isIdent := identOf(s, ok)
	return isIdent && x.Name == pkg && s.Sel.Name == name
}
