package archtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Module is a module's source, parsed and type-checked.
type Module struct {
	Path     string
	Dir      string
	Fset     *token.FileSet
	Packages []*Package // those of the module, by path

	listed map[string]*listed // all packages, dependencies included
}

// Package is one package of the module.
type Package struct {
	Path  string // relative to the module: "internal/core"; "." for the root
	Name  string
	Files []*File
	Types *types.Package
	Info  *types.Info // of the files that this build compiles, tests excluded
}

// File is one Go file, whatever its build constraints.
type File struct {
	*ast.File
	Name  string // relative to the module
	Test  bool
	Built bool // part of this build and not a test: Info knows it
}

// listed is what go list says about a package.
type listed struct {
	ImportPath, Dir, Name, Export                  string
	Standard                                       bool
	Module                                         *struct{ Path string }
	GoFiles, CgoFiles, IgnoredGoFiles, TestGoFiles []string
	XTestGoFiles                                   []string
	Deps                                           []string
	Error                                          *struct{ Err string }
}

// Load lists, parses and type-checks the module in dir.
func Load(dir string) (*Module, error) {
	m := &Module{Dir: dir, Fset: token.NewFileSet(), listed: map[string]*listed{}}
	path, err := goCommand(dir, "list", "-m")
	if err != nil {
		return nil, err
	}
	m.Path = string(bytes.TrimSpace(path))
	out, err := goCommand(dir, "list", "-deps", "-export", "-json", "./...")
	if err != nil {
		return nil, err
	}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var l listed
		if err := dec.Decode(&l); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		m.listed[l.ImportPath] = &l
	}
	for _, l := range m.listed {
		if l.Module == nil || l.Module.Path != m.Path {
			continue
		}
		p, err := m.load(l)
		if err != nil {
			return nil, err
		}
		m.Packages = append(m.Packages, p)
	}
	slices.SortFunc(m.Packages, func(a, b *Package) int { return strings.Compare(a.Path, b.Path) })
	return m, nil
}

// goCommand runs the go command in dir and returns what it prints.
func goCommand(dir string, args ...string) ([]byte, error) {
	cmd := exec.Command("go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOFLAGS=-buildvcs=false", "GOWORK=off")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go %s in %s: %w\n%s", strings.Join(args, " "), dir, err, &stderr)
	}
	return out, nil
}

// load parses all files of a package and type-checks those of this build.
func (m *Module) load(l *listed) (*Package, error) {
	p := &Package{Path: m.relative(l.ImportPath), Name: l.Name}
	var built []*ast.File
	add := func(names []string, test, inBuild bool) error {
		for _, name := range names {
			path := filepath.Join(l.Dir, name)
			f, err := parser.ParseFile(m.Fset, path, nil, parser.ParseComments|parser.SkipObjectResolution)
			if err != nil {
				return fmt.Errorf("parse: %w", err)
			}
			rel, err := filepath.Rel(m.Dir, path)
			if err != nil {
				return err
			}
			p.Files = append(p.Files, &File{f, filepath.ToSlash(rel), test, inBuild})
			if inBuild {
				built = append(built, f)
			}
		}
		return nil
	}
	ignored, ignoredTests := splitTests(l.IgnoredGoFiles)
	if err := errors.Join(add(l.GoFiles, false, true), add(l.CgoFiles, false, true), add(ignored, false, false),
		add(ignoredTests, true, false), add(l.TestGoFiles, true, false), add(l.XTestGoFiles, true, false)); err != nil {
		return nil, err
	}
	p.Info = &types.Info{Uses: map[*ast.Ident]types.Object{}, Defs: map[*ast.Ident]types.Object{},
		Types: map[ast.Expr]types.TypeAndValue{}, Selections: map[*ast.SelectorExpr]*types.Selection{}}
	conf := types.Config{Importer: importer.ForCompiler(m.Fset, "gc", m.export), FakeImportC: true}
	if len(l.CgoFiles) > 0 {
		// What is of type C.x has no type here; go list has compiled it already.
		conf.Error = func(error) {}
	}
	var err error
	if p.Types, err = conf.Check(l.ImportPath, m.Fset, built, p.Info); err != nil && conf.Error == nil {
		return nil, fmt.Errorf("type-check %s: %w", l.ImportPath, err)
	}
	return p, nil
}

func splitTests(names []string) (code, tests []string) {
	for _, n := range names {
		if strings.HasSuffix(n, "_test.go") {
			tests = append(tests, n)
		} else {
			code = append(code, n)
		}
	}
	return code, tests
}

// export opens the compiler's export data of an imported package.
func (m *Module) export(path string) (io.ReadCloser, error) {
	l := m.listed[path]
	if l == nil || l.Export == "" {
		return nil, fmt.Errorf("no export data of %s", path)
	}
	return os.Open(l.Export)
}

// relative turns an import path into a path in the module; others stay.
func (m *Module) relative(path string) string {
	if path == m.Path {
		return "."
	}
	return strings.TrimPrefix(path, m.Path+"/")
}

// own reports whether the import path belongs to the module.
func (m *Module) own(path string) bool {
	return path == m.Path || strings.HasPrefix(path, m.Path+"/")
}

func (m *Module) position(at token.Pos) token.Position {
	p := m.Fset.Position(at)
	if rel, err := filepath.Rel(m.Dir, p.Filename); err == nil {
		p.Filename = filepath.ToSlash(rel)
	}
	return p
}
