package archtest

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"slices"
	"strings"
)

// checkInit looks for init functions.
func checkInit(m *Module, found func(token.Pos, string, string)) {
	m.eachFile(func(p *Package, f *File) {
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" && !f.Test {
				found(fn.Pos(), p.Path, "func init")
			}
		}
	})
}

// tableMakers are the calls that may build a package-level table.
var tableMakers = []string{"errors.New", "fmt.Errorf", "regexp.MustCompile", "strings.NewReplacer", "hash/crc32.MakeTable",
	"hash/crc64.MakeTable", "net/netip.MustParseAddr", "net/netip.MustParsePrefix", "net/netip.AddrFrom4", "reflect.TypeFor"}

// checkPackageState looks for package-level variables that are more than tables
// of constants: that are assigned, have their address taken, are computed at
// start, or are pointers and channels to something that changes. The C library
// may have one, since C gives it no place but the process for its engines.
func checkPackageState(m *Module, found func(token.Pos, string, string)) {
	changed := map[string]string{} // variable to how
	for _, p := range m.Packages {
		p.eachBuilt(func(f *File) {
			ast.Inspect(f.File, func(n ast.Node) bool {
				p.changes(n, func(v *types.Var, how string) { changed[key(v)] = fmt.Sprintf("%s at %s", how, m.position(n.Pos())) })
				return true
			})
		})
	}
	for _, p := range m.Packages {
		p.eachBuilt(func(f *File) {
			for _, spec := range varSpecs(f.File) {
				for i, name := range spec.Names {
					v, ok := p.Info.Defs[name].(*types.Var)
					if !ok || name.Name == "_" || p.Path == "capi" && name.Name == "lib" {
						continue
					}
					if how := cmpOr(changed[key(v)], p.unfit(v, spec, i)); how != "" {
						found(name.Pos(), p.Path+"."+name.Name, fmt.Sprintf("var %s: %s", name.Name, how))
					}
				}
			}
		})
	}
}

func cmpOr(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

func (p *Package) eachBuilt(f func(*File)) {
	for _, file := range p.Files {
		if file.Built {
			f(file)
		}
	}
}

// key names a package-level variable across packages.
func key(v *types.Var) string { return v.Pkg().Path() + "." + v.Name() }

// varSpecs returns the package-level var declarations.
func varSpecs(f *ast.File) (out []*ast.ValueSpec) {
	for _, d := range f.Decls {
		if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.VAR {
			for _, s := range g.Specs {
				out = append(out, s.(*ast.ValueSpec))
			}
		}
	}
	return out
}

// unfit says why a variable is not a table, looking at its type and first value.
func (p *Package) unfit(v *types.Var, spec *ast.ValueSpec, i int) string {
	if isError(v.Type()) {
		if !strings.HasPrefix(strings.ToLower(v.Name()), "err") {
			return "a sentinel error is called Err or err"
		}
		return ""
	}
	if what := mutableType(v.Type()); what != "" {
		return what
	}
	if len(spec.Values) == 0 {
		return "" // zero and never assigned, or embedded
	}
	value := spec.Values[min(i, len(spec.Values)-1)]
	what := ""
	made := false
	ast.Inspect(value, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			return false // runs when it is called
		case *ast.CallExpr:
			if name, ok := p.callee(n); !ok && what == "" {
				what = "its value is computed at start, by " + name
			}
			made = true
		}
		return true
	})
	if _, pointer := v.Type().Underlying().(*types.Pointer); pointer && !made && what == "" {
		return "it points to something that can change"
	}
	return what
}

// callee names what is called, and says whether that may build a table.
func (p *Package) callee(c *ast.CallExpr) (string, bool) {
	if p.Info.Types[c.Fun].IsType() {
		return "", true // a conversion
	}
	var id *ast.Ident
	switch f := ast.Unparen(c.Fun).(type) {
	case *ast.Ident:
		id = f
	case *ast.SelectorExpr:
		id = f.Sel
	default:
		return "a function value", false
	}
	switch o := p.Info.Uses[id].(type) {
	case *types.Func:
		return o.FullName(), slices.Contains(tableMakers, o.FullName())
	case *types.Builtin:
		return o.Name(), o.Name() == "len" || o.Name() == "min" || o.Name() == "max"
	}
	return id.Name, false
}

// mutableType names types that are there to be changed.
func mutableType(t types.Type) string {
	switch t := t.(type) {
	case *types.Named:
		if o := t.Obj(); o.Pkg() != nil && (o.Pkg().Path() == "sync" || o.Pkg().Path() == "sync/atomic") {
			return "a " + o.Pkg().Name() + "." + o.Name() + " is shared by all engines"
		}
		return mutableType(t.Underlying())
	case *types.Pointer:
		if n, ok := t.Elem().(*types.Named); ok {
			return mutableType(n)
		}
	case *types.Struct:
		for i := range t.NumFields() {
			if what := mutableType(t.Field(i).Type()); what != "" {
				return what
			}
		}
	case *types.Chan:
		return "a channel is shared by all engines"
	}
	return ""
}

func isError(t types.Type) bool {
	return types.Implements(t, types.Universe.Lookup("error").Type().Underlying().(*types.Interface))
}

// changes reports the package-level variables that a node changes, or hands out
// so that they can be.
func (p *Package) changes(n ast.Node, report func(*types.Var, string)) {
	mark := func(e ast.Expr, how string) {
		if v := p.global(e); v != nil {
			report(v, how)
		}
	}
	switch n := n.(type) {
	case *ast.AssignStmt:
		if n.Tok != token.DEFINE {
			for _, e := range n.Lhs {
				mark(e, "assigned")
			}
		}
	case *ast.IncDecStmt:
		mark(n.X, "changed")
	case *ast.RangeStmt:
		if n.Tok == token.ASSIGN {
			mark(n.Key, "assigned")
			mark(n.Value, "assigned")
		}
	case *ast.UnaryExpr:
		if n.Op == token.AND {
			mark(n.X, "address taken")
		}
	case *ast.CallExpr:
		if b, ok := n.Fun.(*ast.Ident); ok && len(n.Args) > 0 {
			if o, ok := p.Info.Uses[b].(*types.Builtin); ok && slices.Contains([]string{"delete", "clear", "copy"}, o.Name()) {
				mark(n.Args[0], o.Name())
			}
		}
	case *ast.SelectorExpr:
		if s := p.Info.Selections[n]; s != nil && s.Kind() == types.MethodVal && takesAddress(s) {
			mark(n.X, "method "+n.Sel.Name+" with a pointer receiver")
		}
	}
}

// takesAddress reports whether calling the method takes its operand's address.
func takesAddress(s *types.Selection) bool {
	f := s.Obj().(*types.Func)
	_, wantsPointer := f.Signature().Recv().Type().(*types.Pointer)
	_, isPointer := s.Recv().Underlying().(*types.Pointer)
	return wantsPointer && !isPointer && !s.Indirect()
}

// global returns the package-level variable that an operand is, or is part of.
func (p *Package) global(e ast.Expr) *types.Var {
	for {
		switch x := e.(type) {
		case *ast.ParenExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.SliceExpr:
			e = x.X
		case *ast.StarExpr:
			e = x.X
		case *ast.SelectorExpr:
			if v, ok := p.Info.Uses[x.Sel].(*types.Var); ok && !v.IsField() {
				return v // of another package
			}
			e = x.X
		case *ast.Ident:
			v, ok := p.Info.Uses[x].(*types.Var)
			if ok && v.Pkg() != nil && v.Parent() == v.Pkg().Scope() {
				return v
			}
			return nil
		default:
			return nil
		}
	}
}
