package archtest

import (
	"fmt"
	"go/ast"
	"go/token"
	"path"
	"slices"
	"strconv"
	"strings"
)

// matches reports whether a package's path fits one of the patterns: a path,
// "a/*" for the packages right below a, "a/..." for a and all below it.
func matches(pkg string, patterns ...string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		if dir, ok := strings.CutSuffix(p, "/..."); ok {
			return pkg == dir || strings.HasPrefix(pkg, dir+"/")
		}
		if dir, ok := strings.CutSuffix(p, "/*"); ok {
			return path.Dir(pkg) == dir
		}
		return pkg == p
	})
}

// may lists all that the packages at the bottom import of this module.
var may = []struct {
	from string
	to   []string
}{
	{"errs", nil},
	{"inspect", nil},
	{"topology", []string{"errs"}},
	{"segment", []string{"errs", "topology"}},
	{"transport", []string{"errs", "topology", "segment"}},
	{"metadata", []string{"errs", "topology", "segment"}},
	{"internal/core/...", []string{"errs", "topology", "segment", "transport", "internal/core/..."}},
	{"internal/wire", []string{"errs", "topology", "segment", "transport"}},
	{"internal/mooncake", []string{"errs", "topology", "segment", "transport"}},
	{"internal/sys", []string{"errs"}},
	{"internal/ffi/...", []string{"errs", "internal/ffi/..."}},
	{"internal/mem", []string{"errs", "topology", "internal/sys"}},
	{"web", []string{"inspect"}},
}

// top is what stands above the engine, and what only tests use.
var (
	top      = []string{"cmd/...", "capi/...", "web/...", "examples/...", "python/..."}
	forTests = []string{"internal/testenv", "internal/e2e/...", "internal/archtest", "transport/transporttest", "metadata/metadatatest"}
	drivers  = []string{"transport/*"}
)

// mayNot lists what others do not import, with the reason.
var mayNot = []struct {
	from, to []string
	but      []string // exempt from "from"
	reason   string
}{
	{drivers, []string{"transport/*"}, []string{"transport/all", "transport/transporttest"}, "a driver never imports another driver"},
	{drivers, []string{".", "internal/engine/...", "internal/core/...", "internal/control/...", "internal/staging/...", "internal/registry/..."},
		[]string{"transport/all", "transport/transporttest"}, "a driver knows the engine only through transport.Env"},
	{drivers, []string{"metadata/..."}, []string{"transport/all"}, "a driver never asks a metadata store; it is given descriptors"},
	{[]string{"metadata/*"}, []string{"metadata/*"}, []string{"metadata/all", "metadata/metadatatest"}, "a store never imports another store"},
	{[]string{"metadata/*"}, []string{".", "transport/...", "internal/engine/...", "internal/core/...", "internal/registry/..."}, nil, "a store keeps bytes by name and knows no engine"},
	{[]string{"internal/engine/..."}, []string{"transport/*"}, nil, "the engine names no driver; it is given them"},
	{[]string{"internal/engine/..."}, []string{"metadata/*"}, nil, "the engine names no store; it is given one"},
	{[]string{"internal/control/...", "internal/registry/...", "internal/staging/...", "internal/telemetry/...", "internal/listen/..."},
		[]string{".", "internal/engine/...", "transport/*"}, nil, "a part of the engine does not know the whole"},
	{[]string{"internal/..."}, []string{"."}, []string{"internal/e2e", "internal/sim", "internal/doctor"}, "the facade stands on top of internal"},
	{[]string{"./..."}, []string{"metadata/all"}, []string{"cmd/...", "capi/..."}, "the library takes a metadata.Store; URL schemes are the command's and the C library's"},
	{[]string{"./..."}, []string{"transport/all"}, []string{".", "cmd/...", "capi/..."}, "only the facade links the default drivers"},
	{[]string{"./..."}, top, top, "nothing stands on the programs"},
	{[]string{"./..."}, forTests, []string{"internal/testenv/...", "internal/e2e/...", "internal/archtest", "transport/transporttest", "metadata/metadatatest"}, "code for tests stays out of what is shipped"},
}

// checkArrows compares the imports of all files but tests with the tables above.
func checkArrows(m *Module, found func(token.Pos, string, string)) {
	m.imports(func(p *Package, f *File, at token.Pos, path string) {
		if f.Test || !m.own(path) {
			return
		}
		to := m.relative(path)
		for _, r := range may {
			if matches(p.Path, r.from) && !matches(to, r.to...) {
				found(at, p.Path, fmt.Sprintf("%s imports %s; of this module it may import only %q", p.Path, to, r.to))
			}
		}
		for _, r := range mayNot {
			from := slices.Equal(r.from, []string{"./..."}) || matches(p.Path, r.from...)
			if from && !matches(p.Path, r.but...) && matches(to, r.to...) {
				found(at, p.Path, fmt.Sprintf("%s imports %s: %s", p.Path, to, r.reason))
			}
		}
	})
}

// imports calls f for each import of the module.
func (m *Module) imports(f func(p *Package, file *File, at token.Pos, path string)) {
	for _, p := range m.Packages {
		for _, file := range p.Files {
			for _, s := range file.Imports {
				if path, err := strconv.Unquote(s.Path.Value); err == nil {
					f(p, file, s.Pos(), path)
				}
			}
		}
	}
}

// linked lists the modules that the library may bring along.
var linked = []string{"golang.org/x/sys", "github.com/zeebo/xxh3", "github.com/klauspost/cpuid/v2"} // cpuid is xxh3's

// checkLibrary looks at all that the facade and what lies below it depend on.
func checkLibrary(m *Module, found func(token.Pos, string, string)) {
	root := m.listed[m.Path]
	if root == nil {
		return
	}
	for _, path := range append(slices.Clone(root.Deps), m.Path) {
		d := m.listed[path]
		if d == nil || d.Standard || m.own(path) || d.Module != nil && slices.Contains(linked, d.Module.Path) {
			continue
		}
		for _, by := range m.importers(root, path) {
			found(by.Package, m.relative(path), fmt.Sprintf("the library depends on %s, through here", path))
		}
	}
}

// importers returns the files below root that import path.
func (m *Module) importers(root *listed, path string) (files []*ast.File) {
	m.imports(func(p *Package, f *File, _ token.Pos, imported string) {
		full := m.Path + "/" + p.Path
		if imported == path && f.Built && (p.Path == "." || slices.Contains(root.Deps, full)) {
			files = append(files, f.File)
		}
	})
	return files
}

// unsafePlaces are where unsafe and cgo may be used, besides *_unsafe.go.
var unsafePlaces = []string{"internal/mem", "internal/sys", "internal/ffi/...", "capi/..."}

// checkUnsafe looks for unsafe, cgo and linkname outside of their places, and
// for uses without a comment nearby.
func checkUnsafe(m *Module, found func(token.Pos, string, string)) {
	m.imports(func(p *Package, f *File, at token.Pos, path string) {
		if path != "unsafe" && path != "C" {
			return
		}
		name := strings.TrimSuffix(f.Name, "_test.go")
		if !matches(p.Path, unsafePlaces...) && !strings.HasSuffix(strings.TrimSuffix(name, ".go"), "_unsafe") {
			found(at, f.Name, fmt.Sprintf("%s is used outside of %q and *_unsafe.go", path, unsafePlaces))
		}
		commented := m.commentedLines(f)
		ast.Inspect(f.File, func(n ast.Node) bool {
			s, ok := n.(*ast.SelectorExpr)
			if x, isIdent := identOf(s, ok); isIdent && x.Name == "unsafe" && s.Sel.Name != "Sizeof" {
				if line := m.Fset.Position(s.Pos()).Line; !commented[line] {
					found(s.Pos(), f.Name, "unsafe."+s.Sel.Name+" without a comment within 8 lines above that shows it sound")
				}
			}
			return true
		})
	})
	m.eachFile(func(p *Package, f *File) {
		for _, g := range f.Comments {
			for _, c := range g.List {
				if strings.HasPrefix(c.Text, "//go:linkname") {
					found(c.Pos(), f.Name, "go:linkname reaches into another package")
				}
			}
		}
	})
}

func identOf(s *ast.SelectorExpr, ok bool) (*ast.Ident, bool) {
	if !ok {
		return nil, false
	}
	x, isIdent := s.X.(*ast.Ident)
	return x, isIdent
}

// commentedLines returns the lines of f that have a comment on them or within
// eight lines above.
func (m *Module) commentedLines(f *File) map[int]bool {
	lines := map[int]bool{}
	for _, g := range f.Comments {
		for line := m.Fset.Position(g.Pos()).Line; line <= m.Fset.Position(g.End()).Line+8; line++ {
			lines[line] = true
		}
	}
	return lines
}

func (m *Module) eachFile(f func(p *Package, file *File)) {
	for _, p := range m.Packages {
		for _, file := range p.Files {
			f(p, file)
		}
	}
}
