package archtest

import (
	"bytes"
	"fmt"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

var (
	// docLink is a link to a place in this repository.
	docLink = regexp.MustCompile(`\]\(([^):#]+)(#[^)]*)?\)`)
	// docFile is a file named in a code span; it may be the end of its path.
	docFile = regexp.MustCompile("`([\\w./-]+\\.(go|md|txt|txtar))`")
)

// CheckDocs looks in every Markdown file for links and names of files that are
// not there.
func CheckDocs(dir string) (out []Finding, err error) {
	var files, docs []string
	err = filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && (d.Name() == ".git" || d.Name() == "bin") {
			return fs.SkipDir
		}
		rel, relErr := filepath.Rel(dir, name)
		files = append(files, "/"+filepath.ToSlash(rel))
		if strings.HasSuffix(name, ".md") {
			docs = append(docs, filepath.ToSlash(rel))
		}
		return cmpErr(err, relErr)
	})
	for _, doc := range docs {
		text, readErr := os.ReadFile(filepath.Join(dir, doc))
		err = cmpErr(err, readErr)
		out = append(out, docFindings(doc, text, files)...)
	}
	return out, err
}

func cmpErr(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

// docFindings checks one file; files are all paths, each with a leading slash.
func docFindings(doc string, text []byte, files []string) (out []Finding) {
	report := func(at int, what string) {
		pos := token.Position{Filename: doc, Line: 1 + bytes.Count(text[:at], []byte("\n"))}
		out = append(out, Finding{"docs", pos, doc, what})
	}
	for _, m := range docLink.FindAllSubmatchIndex(text, -1) {
		link := string(text[m[2]:m[3]])
		if to := path.Join("/", path.Dir(doc), link); to != "/" && !slices.Contains(files, to) {
			report(m[0], fmt.Sprintf("links to %s, which is not there", link))
		}
	}
	for _, m := range docFile.FindAllSubmatchIndex(text, -1) {
		name := string(text[m[2]:m[3]])
		if !slices.ContainsFunc(files, func(f string) bool { return strings.HasSuffix(f, "/"+strings.TrimPrefix(name, "/")) }) {
			report(m[0], fmt.Sprintf("names %s, which is not there", name))
		}
	}
	return out
}
