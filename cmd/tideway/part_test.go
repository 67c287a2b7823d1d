package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tideway-io/tideway/errs"
	"golang.org/x/sys/unix"
)

// partCase is a file in the making whose right content is known.
type partCase struct {
	t    *testing.T
	path string
	id   identity
	want []byte
}

func newPartCase(t *testing.T, n int) *partCase {
	c := &partCase{t: t, path: filepath.Join(t.TempDir(), "file"), want: make([]byte, n)}
	newPattern(1, 1).fill(c.want, 0)
	c.id = identity{Name: "x", Length: uint64(n), Size: uint64(n), ModTime: 1}
	return c
}

// open opens the part and checks how much of it is gone on with, and the reason
// why not.
func (c *partCase) open(done uint64, reason string) *part {
	c.t.Helper()
	p, why, err := openPart(c.path, c.id)
	if err != nil {
		c.t.Fatal(err)
	}
	if p.Done() != done || !strings.Contains(why, reason) || (reason == "") != (why == "") {
		c.t.Fatalf("goes on at %d because %q; want %d because %q", p.Done(), why, done, reason)
	}
	return p
}

// write writes up to the byte at end, in pieces of at most a slot.
func (c *partCase) write(p *part, end uint64) {
	c.t.Helper()
	for p.Done() < end {
		if _, err := p.Write(c.want[p.Done():min(p.Done()+slotSize, end)]); err != nil {
			c.t.Fatal(err)
		}
	}
}

func (c *partCase) close(p *part) {
	c.t.Helper()
	if err := p.Close(); err != nil {
		c.t.Fatal(err)
	}
}

// finish writes the rest, commits and checks that the right file is all there is.
func (c *partCase) finish(p *part) {
	c.t.Helper()
	c.write(p, uint64(len(c.want)))
	if err := p.Commit(); err != nil {
		c.t.Fatal(err)
	}
	c.close(p)
	got, err := os.ReadFile(c.path)
	if err != nil || !bytes.Equal(got, c.want) {
		c.t.Fatalf("%d bytes, %v", len(got), err)
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(c.path), "*")); len(left) != 1 {
		c.t.Fatalf("left behind: %v", left)
	}
}

func TestPartSizes(t *testing.T) {
	for _, n := range []int{0, 1, blockSize - 1, blockSize, blockSize + 1, 9*blockSize + 5} {
		c := newPartCase(t, n)
		c.finish(c.open(0, ""))
	}
}

func TestPartGoesOn(t *testing.T) {
	c := newPartCase(t, 20*blockSize+99)
	p := c.open(0, "")
	c.write(p, 12*blockSize)
	c.close(p)
	p = c.open(12*blockSize, "")
	c.write(p, 20*blockSize)
	c.close(p)
	c.finish(c.open(20*blockSize, ""))
}

// All bytes are there, but the process ended before the commit.
func TestPartGoesOnWhenWhole(t *testing.T) {
	c := newPartCase(t, 3*blockSize+5)
	p := c.open(0, "")
	c.write(p, uint64(len(c.want)))
	c.close(p)
	c.finish(c.open(uint64(len(c.want)), ""))
}

func TestPartOverwritesAndKeepsMode(t *testing.T) {
	c := newPartCase(t, 100)
	if err := os.WriteFile(c.path, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := c.open(0, "")
	if old, err := os.ReadFile(c.path); err != nil || string(old) != "old" {
		t.Fatalf("changed before the commit: %q, %v", old, err)
	}
	c.finish(p)
	if info, err := os.Stat(c.path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

func TestPartFollowsSymlink(t *testing.T) {
	c := newPartCase(t, 100)
	link := filepath.Join(t.TempDir(), "link")
	if err := os.WriteFile(c.path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(c.path, link); err != nil {
		t.Fatal(err)
	}
	p, _, err := openPart(link, c.id)
	if err != nil {
		t.Fatal(err)
	}
	c.finish(p)
	if info, err := os.Lstat(link); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link is gone: %v, %v", info, err)
	}
}

// What a crash or somebody else did to the files decides how the copy goes on.
func TestPartAfterDamage(t *testing.T) {
	flip := func(name string, at int64) {
		f, err := os.OpenFile(name, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		var b [1]byte
		if _, err := f.ReadAt(b[:], at); err != nil {
			t.Fatal(err)
		}
		b[0] ^= 1
		if _, err := f.WriteAt(b[:], at); err != nil {
			t.Fatal(err)
		}
	}
	cut := func(name string, n int64) {
		if err := os.Truncate(name, n); err != nil {
			t.Fatal(err)
		}
	}
	size := func(name string) int64 {
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	for _, d := range []struct {
		name   string
		damage func(c *partCase, data, log string)
		done   uint64
		reason string
	}{
		{"nothing", func(*partCase, string, string) {}, 10 * blockSize, ""},
		{"journal torn", func(_ *partCase, _, log string) { cut(log, size(log)-5) }, 9 * blockSize, ""},
		{"journal gone", func(_ *partCase, _, log string) { os.Remove(log) }, 0, "journal cannot be read"},
		{"journal empty", func(_ *partCase, _, log string) { cut(log, 0) }, 0, "journal cannot be read"},
		{"journal header flipped", func(_ *partCase, _, log string) { flip(log, 20) }, 0, "journal cannot be read"},
		{"data shorter", func(_ *partCase, data, _ string) { cut(data, 7*blockSize+5) }, 7 * blockSize, ""},
		{"data lost its tail", func(_ *partCase, data, _ string) { flip(data, 8*blockSize) }, 8 * blockSize, ""},
		{"data longer", func(_ *partCase, data, _ string) { cut(data, 15*blockSize) }, 10 * blockSize, ""},
		{"source changed", func(c *partCase, _, _ string) { c.id.ModTime++ }, 0, "source changed"},
		{"another range", func(c *partCase, _, _ string) { c.id.Offset = 5 }, 0, "another range"},
	} {
		t.Run(d.name, func(t *testing.T) {
			c := newPartCase(t, 12*blockSize+3)
			p := c.open(0, "")
			c.write(p, 10*blockSize)
			c.close(p)
			d.damage(c, c.path+partSuffix, c.path+partSuffix+journalSuffix)
			c.finish(c.open(d.done, d.reason))
		})
	}
}

// Bytes that were on stable storage and are wrong now were changed by somebody:
// nothing of that file is believed. Bytes that were not were lost in a crash.
func TestPartSyncedBytesChanged(t *testing.T) {
	for _, at := range []int64{0, 9 * blockSize} {
		c := newPartCase(t, 12*blockSize)
		p := c.open(0, "")
		c.write(p, 10*blockSize)
		if err := p.syncNow(true); err != nil {
			t.Fatal(err)
		}
		c.close(p)
		f, err := os.OpenFile(c.path+partSuffix, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		f.WriteAt([]byte("changed"), at)
		f.Close()
		c.finish(c.open(0, "not those in its journal"))
	}
}

func TestPartSyncedBytesCut(t *testing.T) {
	c := newPartCase(t, 12*blockSize)
	p := c.open(0, "")
	c.write(p, 10*blockSize)
	if err := p.syncNow(true); err != nil {
		t.Fatal(err)
	}
	c.close(p)
	if err := os.Truncate(c.path+partSuffix, 9*blockSize); err != nil {
		t.Fatal(err)
	}
	c.finish(c.open(0, "shorter than its journal"))
}

func TestPartIsLocked(t *testing.T) {
	c := newPartCase(t, 100)
	p := c.open(0, "")
	if _, _, err := openPart(c.path, c.id); !errors.Is(err, errs.ErrBusy) {
		t.Errorf("a second writer: %v", err)
	}
	c.finish(p)
}

// A get that moved nothing leaves nothing.
func TestPartLeavesNothingForNothing(t *testing.T) {
	c := newPartCase(t, 100)
	c.close(c.open(0, ""))
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(c.path), "*")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestPartRefusesWithoutRoom(t *testing.T) {
	c := newPartCase(t, 100)
	c.id.Length = 1 << 60
	_, _, err := openPart(c.path, c.id)
	if !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "1 EiB") {
		t.Errorf("an exbibyte: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(c.path), "*")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestPartRefusesWrongPieces(t *testing.T) {
	c := newPartCase(t, 2*blockSize)
	p := c.open(0, "")
	if _, err := p.Write(make([]byte, 2*blockSize+1)); !errors.Is(err, errs.ErrInternal) {
		t.Errorf("too much: %v", err)
	}
	if err := p.Commit(); !errors.Is(err, errs.ErrInternal) {
		t.Errorf("commit of a part: %v", err)
	}
	c.write(p, 100)
	if _, err := p.Write(make([]byte, 5)); !errors.Is(err, errs.ErrInternal) {
		t.Errorf("after half a block: %v", err)
	}
	c.close(p)
}

// Two processes may work on one file after each other: the first, which has just
// renamed its part, can then remove the journal of the second.
func TestPartCommitsWithoutJournal(t *testing.T) {
	c := newPartCase(t, 2*blockSize)
	p := c.open(0, "")
	c.write(p, 2*blockSize)
	if err := os.Remove(p.logName()); err != nil {
		t.Fatal(err)
	}
	if err := p.Commit(); err != nil {
		t.Errorf("commit: %v", err)
	}
	c.close(p)
	if got, err := os.ReadFile(c.path); err != nil || !bytes.Equal(got, c.want) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}
