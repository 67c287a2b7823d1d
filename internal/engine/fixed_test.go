package engine

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
)

// TestFixedFile: what a fixed file reads is what it was when it was registered,
// with what was written through it; otherwise nothing.
func TestFixedFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, []byte("0123456789"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	x, s, err := fixFile(f)
	if err != nil || s.Size != 10 {
		t.Fatalf("%+v, %v", s, err)
	}
	p := make([]byte, 3)
	if _, err := x.WriteAt([]byte("abc"), 2); err != nil {
		t.Fatal(err)
	}
	if n, err := x.ReadAt(p, 2); n != 3 || err != nil || string(p) != "abc" {
		t.Errorf("after a write of its own: %d %q %v", n, p, err)
	}
	if err := os.Truncate(path, 20); err != nil {
		t.Fatal(err)
	}
	if n, err := x.ReadAt(p, 2); n != 0 || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("after a change: %d %v", n, err)
	}
	if _, err := x.WriteAt([]byte("abc"), 2); err != nil {
		t.Fatal(err)
	}
	if _, err := x.ReadAt(p, 2); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a write of its own makes up for a change: %v", err)
	}
}
