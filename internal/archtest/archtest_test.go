package archtest

import (
	_ "embed"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tideway-io/tideway/internal/testenv"
)

//go:embed exceptions.txt
var exceptionList string

var rewrite = flag.Bool("rewrite", false, "write what is found in testdata/bad into its findings.txt")

// maxExceptions is how many lines exceptions.txt has at the most. It only goes
// down.
const maxExceptions = 0

// root is the module that this package is a part of.
const root = "../.."

func TestProject(t *testing.T) {
	skipUnderRace(t)
	m, err := Load(abs(t, root))
	if err != nil {
		t.Fatal(err)
	}
	found := Run(m)
	text, err := CheckText(m.Dir)
	if err != nil {
		t.Fatal(err)
	}
	docs, err := CheckDocs(m.Dir)
	if err != nil {
		t.Fatal(err)
	}
	exceptions, err := ParseExceptions(exceptionList)
	if err != nil {
		t.Fatal(err)
	}
	left, unused := Except(slices.Concat(found, text, docs), exceptions)
	for _, f := range left {
		t.Errorf("%v\n\t(rule %s: %s; where %s)", f, f.Rule, reason(f.Rule), f.Where)
	}
	for _, e := range unused {
		t.Errorf("exceptions.txt: %s %s is not needed any more: remove it", e.Rule, e.Where)
	}
	if len(exceptions) > maxExceptions {
		t.Errorf("exceptions.txt has %d entries; it only gets shorter, and had %d", len(exceptions), maxExceptions)
	}
}

// skipUnderRace leaves what takes long to the suite static: it has no goroutine,
// so there is no race to find.
func skipUnderRace(t *testing.T) {
	t.Helper()
	if testenv.Race {
		t.Skip("no race to find: checked by the suite static")
	}
}

func reason(rule string) string {
	for _, r := range Rules() {
		if r.Name == rule {
			return r.Reason
		}
	}
	return "the project's text stands on its own"
}

func abs(t *testing.T, dir string) string {
	t.Helper()
	path, err := filepath.Abs(dir)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// The rules find what breaks them: testdata/bad breaks each of them, and
// findings.txt has what must be found there, no more and no less.
func TestRulesFind(t *testing.T) {
	const list = "testdata/bad/findings.txt"
	m, err := Load(abs(t, "testdata/bad"))
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	seen := map[string]bool{}
	for _, f := range Run(m) {
		fmt.Fprintln(&got, f)
		seen[f.Rule] = true
	}
	if *rewrite {
		if err := os.WriteFile(list, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(list)
	if err != nil {
		t.Fatal(err)
	}
	diff(t, string(want), got.String())
	for _, r := range Rules() {
		if !seen[r.Name] {
			t.Errorf("rule %s finds nothing in testdata/bad: a checker that was not seen to find is not one", r.Name)
		}
	}
}

func diff(t *testing.T, want, got string) {
	t.Helper()
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for _, line := range w {
		if !slices.Contains(g, line) {
			t.Errorf("not found: %s", line)
		}
	}
	for _, line := range g {
		if !slices.Contains(w, line) {
			t.Errorf("found, and should not be: %s", line)
		}
	}
}

// What is allowed is not found.
func TestRulesLetPass(t *testing.T) {
	m, err := Load(abs(t, "testdata/good"))
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Packages) < 5 {
		t.Errorf("only %d packages were looked at", len(m.Packages))
	}
	for _, f := range Run(m) {
		t.Errorf("found, and should not be: %v", f)
	}
}

func TestLoadRefusesBrokenCode(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"go.mod": "module m\ngo 1.26\n", "a.go": "package m\n\nvar x int = \"text\"\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Load(dir); err == nil {
		t.Error("code that does not compile was checked")
	}
}

func TestTextFindings(t *testing.T) {
	for _, c := range []struct {
		text string
		line int // 0: nothing to find
	}{
		{"a\nb // TO" + "DO: later", 2},
		{"# FIX" + "ME", 1},
		{"see /wo" + "rk/notes", 1},
		{"cd /wo" + "rk", 1},
		{"docs/wo" + "rk/x, and /worker, /workspace", 0},
		{"in ../sha" + "red/x", 1},
		{"see Issue" + " 12", 1},
		{"issue" + " #3", 1},
		{"an issue of 12 pages", 0},
		{"https://proxy.golang" + ".org", 1},
		{"mastodon, METHODO" + "LOGY", 0},
		{"\x00 TO" + "DO", 0},
	} {
		got := textFindings("x.md", []byte(c.text))
		if len(got) != min(c.line, 1) || c.line > 0 && got[0].Pos.Line != c.line {
			t.Errorf("%q: %v, want line %d", c.text, got, c.line)
		}
	}
}

func TestCheckTextWalks(t *testing.T) {
	dir := t.TempDir()
	for name, found := range map[string]bool{"docs/a.md": true, "Makefile": true, ".git/x": false, "bin/tool": false} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("TO"+"DO"), 0o644); err != nil {
			t.Fatal(err)
		}
		got, err := CheckText(dir)
		if err != nil || len(got) != map[bool]int{true: 1}[found] {
			t.Errorf("%s: %v, %v", name, got, err)
		}
		os.Remove(path)
	}
}

func TestDocFindings(t *testing.T) {
	files := []string{"/docs/a.md", "/README.md", "/internal/core/queue.go", "/docs/adr"}
	for text, want := range map[string]int{
		"[a](a.md) [r](../README.md#part) [adr](adr/) [web](https://x.test/y) [here](#part)": 0,
		"[gone](gone.md)":                   1,
		"`queue.go`, `core/queue.go`":       0,
		"`xqueue.go` and `a/queue.go`":      2,
		"`*.go`, `testdata`, plain core.go": 0,
		"\n\n`gone.txt`":                    1,
	} {
		got := docFindings("docs/a.md", []byte(text), files)
		if len(got) != want || strings.HasPrefix(text, "\n") && got[0].Pos.Line != 3 {
			t.Errorf("%q: %v, want %d findings", text, got, want)
		}
	}
}

func TestExcept(t *testing.T) {
	exceptions, err := ParseExceptions("# why\n\nfile-size a.go it is a table\ninit internal/x it was needed\n")
	if err != nil {
		t.Fatal(err)
	}
	found := []Finding{{Rule: "file-size", Where: "a.go"}, {Rule: "file-size", Where: "b.go"}, {Rule: "init", Where: "a.go"}}
	left, unused := Except(found, exceptions)
	if len(left) != 2 || left[0].Where != "b.go" || len(unused) != 1 || unused[0].Rule != "init" {
		t.Errorf("left %v, unused %v", left, unused)
	}
	if _, err := ParseExceptions("init internal/x"); err == nil {
		t.Error("an exception without a reason is accepted")
	}
}

// The command without cgo is one static file, without what would make it dynamic.
func TestStaticCommand(t *testing.T) {
	skipUnderRace(t)
	const maxSize = 50 << 20
	path := filepath.Join(t.TempDir(), "tideway")
	cmd := exec.Command("go", "build", "-buildvcs=false", "-o", path, "./cmd/tideway")
	cmd.Dir = abs(t, root)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	why, err := CheckStatic(path)
	if err != nil || why != nil {
		t.Errorf("the command is not static: %q, %v", why, err)
	}
	if info, err := os.Stat(path); err != nil || info.Size() > maxSize {
		t.Errorf("the command has %d bytes, at most %d: %v", info.Size(), maxSize, err)
	}
	cmd = exec.Command("go", "list", "-deps", "./cmd/tideway")
	cmd.Dir, cmd.Env = abs(t, root), append(os.Environ(), "CGO_ENABLED=0")
	deps, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	for dep := range strings.Lines(string(deps)) {
		if strings.Contains(dep, "purego") || strings.Contains(dep, "/internal/ffi") || strings.TrimSpace(dep) == "runtime/cgo" {
			t.Errorf("without cgo the command imports %s", dep)
		}
	}
}

func TestCheckStaticFindsDynamic(t *testing.T) {
	why, err := CheckStatic("/bin/sh")
	if err != nil {
		t.Skipf("no ELF shell here: %v", err)
	}
	if len(why) == 0 {
		t.Error("the shell is said to be static")
	}
	if _, err := CheckStatic("archtest.go"); err == nil {
		t.Error("a text file is said to be static")
	}
}

// Every module that is used directly has its line in docs/adr/dependencies.md.
func TestDependenciesAreDocumented(t *testing.T) {
	cmd := exec.Command("go", "mod", "edit", "-json")
	cmd.Dir = abs(t, root)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var mod struct {
		Require []struct {
			Path     string
			Indirect bool
		}
	}
	if err := json.Unmarshal(out, &mod); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(root, "docs/adr/dependencies.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range mod.Require {
		if !r.Indirect && !strings.Contains(string(page), "| `"+r.Path+"` |") {
			t.Errorf("docs/adr/dependencies.md has no row for %s: what for, why this one, licence", r.Path)
		}
	}
}
