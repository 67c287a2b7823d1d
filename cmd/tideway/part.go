package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/tideway-io/tideway/errs"
	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"
)

// The names beside the file being made.
const (
	partSuffix    = ".tideway-part"
	journalSuffix = ".journal"
)

// How often a partial file is made safe, and how much of one can be gone on with.
const (
	syncEvery    = 256       // blocks between two calls of fdatasync
	maxJournal   = 256 << 20 // bytes of journal that are read: 10 TiB of data
	lockAttempts = 3
)

// part is a file in the making: FILE.tideway-part, written in order, and its
// journal. It is used by one goroutine.
type part struct {
	final   string // the file it becomes
	data    *os.File
	log     *os.File
	total   uint64 // bytes when whole
	done    uint64 // bytes written and journalled, in order
	seed    uint64
	scratch []byte
	syncing chan syncResult // nil when no sync is under way
	asked   uint64          // block count at the last sync

	committed bool
}

type syncResult struct {
	blocks uint64
	err    error
}

// openPart opens, or goes on with, the partial file for final. The reason says
// why an earlier one was not gone on with, if there was one.
func openPart(final string, id identity) (p *part, reason string, err error) {
	if real, err := filepath.EvalSymlinks(final); err == nil {
		final = real
	}
	data, err := lockPart(final + partSuffix)
	if err != nil {
		return nil, "", err
	}
	p = &part{final: final, data: data, total: id.Length}
	p.log, err = os.OpenFile(p.logName(), os.O_RDWR|os.O_CREATE, 0o666)
	if err == nil {
		reason, err = p.resume(id)
	}
	if err == nil {
		err = p.room()
	}
	if err != nil {
		p.Close()
		return nil, "", err
	}
	return p, reason, nil
}

func (p *part) logName() string { return p.final + partSuffix + journalSuffix }

// lockPart opens the partial file so that no other process works on it. The
// name is looked at again after locking: its last owner may have renamed it.
func lockPart(name string) (*os.File, error) {
	for range lockAttempts {
		f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o666)
		if err != nil {
			return nil, err
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			f.Close()
			if errors.Is(err, unix.EWOULDBLOCK) {
				return nil, errs.New(errs.Busy, "get", "another process is writing %s; wait for it or choose another file", name)
			}
			return nil, &fs.PathError{Op: "lock", Path: name, Err: err}
		}
		if sameFile(f, name) {
			return f, nil
		}
		f.Close()
	}
	return nil, errs.New(errs.Busy, "get", "%s keeps being replaced by other processes", name)
}

func sameFile(f *os.File, name string) bool {
	a, errA := f.Stat()
	b, errB := os.Stat(name)
	return errA == nil && errB == nil && os.SameFile(a, b)
}

// resume decides how much of an earlier attempt is kept and leaves data and
// journal at exactly that.
func (p *part) resume(id identity) (reason string, err error) {
	info, err := p.data.Stat()
	if err != nil {
		return "", err
	}
	j, keep, reason := p.usable(id, uint64(info.Size()))
	if j == nil {
		return reason, p.begin(id)
	}
	p.seed, p.asked = j.seed, uint64(min(j.synced, keep))
	p.done = min(uint64(keep)*blockSize, p.total)
	return "", p.cutTo(int64(p.done), int64(j.cut(keep)))
}

// usable returns the journal of an earlier attempt and the number of blocks
// that it vouches for, or no journal and the reason.
func (p *part) usable(id identity, size uint64) (*journal, int, string) {
	text, err := io.ReadAll(io.LimitReader(p.log, maxJournal+1))
	if err == nil && len(text) == 0 && size == 0 {
		return nil, 0, ""
	}
	j, jerr := parseJournal(text)
	if err != nil || jerr != nil || len(text) > maxJournal {
		return nil, 0, "its journal cannot be read"
	}
	if d := id.difference(j.id); d != "" {
		return nil, 0, d
	}
	n := min(len(j.hashes), blocksIn(size, p.total))
	if n < j.synced {
		return nil, 0, "it is shorter than its journal says"
	}
	good := p.verify(j, n) // all of it: no sum of the whole is compared at the end
	if good < j.synced {
		return nil, 0, "its bytes are not those in its journal"
	}
	return j, good, ""
}

// blocksIn returns how many blocks of a file of total bytes lie whole in its
// first size bytes.
func blocksIn(size, total uint64) int {
	if size >= total {
		return int((total + blockSize - 1) / blockSize)
	}
	return int(size / blockSize)
}

// verify hashes the first n blocks again and returns the first that differs from
// its record, or n.
func (p *part) verify(j *journal, n int) int {
	buf := make([]byte, blockSize)
	for i := range n {
		off := uint64(i) * blockSize
		b := buf[:min(blockSize, p.total-off)]
		if _, err := p.data.ReadAt(b, int64(off)); err != nil || xxh3.Hash(b) != j.hashes[i] {
			return i
		}
	}
	return n
}

// begin starts from nothing.
func (p *part) begin(id identity) error {
	h, err := id.header()
	if err != nil {
		return err
	}
	p.seed = xxh3.Hash(h[:len(h)-8])
	if err := p.cutTo(0, 0); err != nil {
		return err
	}
	_, err = p.log.Write(h)
	return err
}

func (p *part) cutTo(data, log int64) error {
	if err := p.data.Truncate(data); err != nil {
		return err
	}
	if err := p.log.Truncate(log); err != nil {
		return err
	}
	_, err := p.log.Seek(log, io.SeekStart)
	return err
}

// room refuses a copy that the file system has no space for.
func (p *part) room() error {
	need := p.total - p.done
	free, err := freeSpace(p.data)
	if err != nil || free >= need {
		return nil // not knowing is no reason to refuse
	}
	return &hinted{
		fmt.Errorf("no room for %s: %s are needed and %s are free: %w", p.final, formatSize(need), formatSize(free), unix.ENOSPC),
		"make room, or choose a file on another file system",
	}
}

// freeSpace returns what an unprivileged user may still write beside f.
func freeSpace(f *os.File) (uint64, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return 0, err
	}
	return st.Bavail * uint64(st.Bsize), nil
}

// Write appends b. Every call but the last holds whole blocks.
func (p *part) Write(b []byte) (int, error) {
	if p.done%blockSize != 0 || uint64(len(b)) > p.total-p.done {
		return 0, errs.New(errs.Internal, "write "+p.final, "%d bytes at %d of %d", len(b), p.done, p.total)
	}
	if _, err := p.data.WriteAt(b, int64(p.done)); err != nil {
		return 0, err
	}
	p.scratch = p.scratch[:0]
	for at := 0; at < len(b); at += blockSize {
		h := xxh3.Hash(b[at:min(at+blockSize, len(b))])
		p.scratch = appendRecord(p.scratch, p.seed, (p.done+uint64(at))/blockSize, h)
	}
	p.done += uint64(len(b))
	if _, err := p.log.Write(p.scratch); err != nil {
		return 0, err
	}
	return len(b), p.syncNow(p.done/blockSize >= p.asked+syncEvery)
}

// syncNow notes a sync that has ended, and starts one if due and none is under
// way: the disk works while the network does.
func (p *part) syncNow(due bool) error {
	if p.syncing != nil {
		select {
		case r := <-p.syncing:
			p.syncing = nil
			if err := p.synced(r); err != nil {
				return err
			}
		default:
		}
	}
	if !due || p.syncing != nil {
		return nil
	}
	p.asked = p.done / blockSize
	ended := make(chan syncResult, 1)
	p.syncing = ended
	go func(blocks uint64) {
		ended <- syncResult{blocks, unix.Fdatasync(int(p.data.Fd()))}
	}(p.asked)
	return nil
}

func (p *part) synced(r syncResult) error {
	if r.err != nil {
		return &fs.PathError{Op: "sync", Path: p.data.Name(), Err: r.err}
	}
	_, err := p.log.Write(appendRecord(p.scratch[:0], p.seed, r.blocks|syncedFlag, 0))
	return err
}

// Commit makes the whole partial file the final one, durably, and removes the
// journal.
func (p *part) Commit() error {
	if p.done != p.total {
		return errs.New(errs.Internal, "commit "+p.final, "%d of %d bytes", p.done, p.total)
	}
	if info, err := os.Stat(p.final); err == nil {
		if err := p.data.Chmod(info.Mode().Perm()); err != nil {
			return err
		}
	}
	if err := p.data.Sync(); err != nil {
		return err
	}
	if err := os.Rename(p.final+partSuffix, p.final); err != nil {
		return err
	}
	p.committed = true
	// Since the rename another process may have begun, and ended, a part of its own.
	if err := os.Remove(p.logName()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return syncDir(filepath.Dir(p.final))
}

// Close lets go of the files and leaves what is there for a later attempt,
// unless nothing is. It may be called after Commit.
func (p *part) Close() error {
	var err error
	if p.done == 0 && !p.committed {
		// The journal first: who finds no part begins one, with a journal of its own.
		err = errors.Join(os.Remove(p.logName()), os.Remove(p.data.Name()))
	}
	if p.syncing != nil {
		err = p.synced(<-p.syncing)
		p.syncing = nil
	}
	if p.log != nil {
		err = errors.Join(err, p.log.Close())
	}
	return errors.Join(err, p.data.Close())
}

// syncDir makes a rename in dir durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.Sync(); err != nil && !errors.Is(err, unix.EINVAL) {
		return err
	}
	return nil
}
