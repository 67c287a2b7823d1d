package archtest

import (
	"bytes"
	"debug/elf"
	"fmt"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// phrases are what no text of the project says: plans instead of work, places
// outside of the repository, and hosts that a mirror replaces. They are written
// in pieces, so that this file does not say them either.
var phrases = []struct{ pattern, reason string }{
	{`\b(TO` + `DO|FIX` + `ME|XX` + `X)\b`, "do it, or leave it"},
	{`(^|[^\w/.-])/wo` + `rk(/|\b)`, "a path of one machine"},
	{`\.\./sha` + `red\b`, "a path outside of the repository"},
	{`(?i)\bissue #?\d`, "a number that the reader cannot look up: say what it was"},
	{`DEVELOP` + `ERS\.md`, "a file that the repository does not have"},
	{`(proxy|sum)\.golang` + `\.org|pypi` + `\.org|registry\.npmjs|deb\.debian` + `\.org|crates` + `\.io`, "the host of a package registry: use the tool's setting"},
}

// textMax is the largest file that is read as text.
const textMax = 1 << 20

// CheckText looks through all text files below dir for phrases.
func CheckText(dir string) (out []Finding, err error) {
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		if rel == ".git" && !d.IsDir() { // a worktree's
			return nil
		}
		if rel == ".git" || rel == "bin" {
			return fs.SkipDir
		}
		if info, err := d.Info(); err != nil || !d.Type().IsRegular() || info.Size() > textMax {
			return err
		}
		text, err := os.ReadFile(path)
		if err == nil {
			out = append(out, textFindings(filepath.ToSlash(rel), text)...)
		}
		return err
	})
	return out, err
}

func textFindings(name string, text []byte) (out []Finding) {
	if bytes.IndexByte(text, 0) >= 0 {
		return nil // not text
	}
	for _, p := range phrases {
		for _, at := range regexp.MustCompile("(?m)"+p.pattern).FindAllIndex(text, -1) {
			pos := token.Position{Filename: name, Line: 1 + bytes.Count(text[:at[0]], []byte("\n"))}
			out = append(out, Finding{"text", pos, name, fmt.Sprintf("%q: %s", strings.TrimSpace(string(text[at[0]:at[1]])), p.reason)})
		}
	}
	return out
}

// CheckStatic says why an executable is not a static one, or nothing.
func CheckStatic(path string) (out []string, err error) {
	f, err := elf.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
			out = append(out, "it has a "+p.Type.String()+" segment: it needs a dynamic linker")
		}
	}
	return out, nil
}
