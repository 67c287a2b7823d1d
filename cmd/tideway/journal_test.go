package main

import (
	"bytes"
	"testing"

	"github.com/zeebo/xxh3"
)

func someIdentity() identity {
	return identity{Name: "model", Length: 5<<20 + 17, Size: 5<<20 + 17, ModTime: 123456789, Inode: 42, Device: 7}
}

// someJournal has blocks of the given hashes, with a mark after the second.
func someJournal(t testing.TB, hashes ...uint64) []byte {
	t.Helper()
	b, err := someIdentity().header()
	if err != nil {
		t.Fatal(err)
	}
	seed := xxh3.Hash(b[:len(b)-8])
	for i, h := range hashes {
		b = appendRecord(b, seed, uint64(i), h)
		if i == 1 {
			b = appendRecord(b, seed, 2|syncedFlag, 0)
		}
	}
	return b
}

func TestJournalRoundTrip(t *testing.T) {
	b := someJournal(t, 10, 20, 30)
	j, err := parseJournal(b)
	if err != nil {
		t.Fatal(err)
	}
	if j.id != someIdentity() || len(j.hashes) != 3 || j.hashes[2] != 30 || j.synced != 2 {
		t.Errorf("read back %+v", j)
	}
	if j.cut(3) != len(b) || j.cut(0) != j.start || j.cut(2) != j.start+2*recordSize {
		t.Errorf("cuts %d %d %d of %d", j.cut(0), j.cut(2), j.cut(3), len(b))
	}
}

// However a journal is torn, what is read is what was written up to there.
func TestJournalTorn(t *testing.T) {
	whole := someJournal(t, 10, 20, 30, 40)
	header := len(whole) - 5*recordSize
	for n := range whole {
		j, err := parseJournal(whole[:n])
		if n < header {
			if err == nil {
				t.Fatalf("%d bytes of a header of %d pass", n, header)
			}
			continue
		}
		records := (n - header) / recordSize
		blocks := records
		if records >= 3 {
			blocks-- // the mark
		}
		if err != nil || len(j.hashes) != blocks {
			t.Fatalf("cut at %d: %d blocks, %v; want %d", n, len(j.hashes), err, blocks)
		}
	}
}

// A flip anywhere ends the journal before the record it is in.
func TestJournalFlipped(t *testing.T) {
	whole := someJournal(t, 10, 20, 30, 40)
	header := len(whole) - 5*recordSize
	for i := range whole {
		b := bytes.Clone(whole)
		b[i] ^= 0x40
		j, err := parseJournal(b)
		if i < header {
			if err == nil {
				t.Fatalf("a flip at %d of the header passes", i)
			}
			continue
		}
		if record := (i - header) / recordSize; err != nil || len(j.hashes) > record {
			t.Fatalf("a flip at %d: %d blocks, %v", i, len(j.hashes), err)
		}
	}
}

// Records of another journal, zeros and records out of order are not believed.
func TestJournalForeignRecords(t *testing.T) {
	whole := someJournal(t)
	other, err := identity{Name: "other"}.header()
	if err != nil {
		t.Fatal(err)
	}
	foreign := appendRecord(bytes.Clone(whole), xxh3.Hash(other[:len(other)-8]), 0, 1)
	zeros := append(bytes.Clone(whole), make([]byte, 10*recordSize)...)
	skipped := appendRecord(bytes.Clone(whole), xxh3.Hash(whole[:len(whole)-8]), 1, 1)
	ahead := appendRecord(bytes.Clone(whole), xxh3.Hash(whole[:len(whole)-8]), 1|syncedFlag, 0)
	for name, b := range map[string][]byte{"foreign": foreign, "zeros": zeros, "skipped": skipped, "ahead": ahead} {
		if j, err := parseJournal(b); err != nil || len(j.hashes) != 0 || j.synced != 0 {
			t.Errorf("%s: %+v, %v", name, j, err)
		}
	}
}

func TestIdentityDifference(t *testing.T) {
	a := someIdentity()
	if d := a.difference(a); d != "" {
		t.Errorf("the same differs: %s", d)
	}
	for _, change := range []func(*identity){
		func(i *identity) { i.Name = "x" }, func(i *identity) { i.Offset++ }, func(i *identity) { i.Length++ },
		func(i *identity) { i.Size++ }, func(i *identity) { i.ModTime++ }, func(i *identity) { i.Inode++ },
		func(i *identity) { i.Device++ }, func(i *identity) { i.Incarnation = "1" }, func(i *identity) { i.Key++ },
	} {
		b := a
		change(&b)
		if a.difference(b) == "" {
			t.Errorf("%+v passes for %+v", b, a)
		}
	}
}

func FuzzJournal(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte(journalMagic))
	f.Add(someJournal(f, 1, 2, 3))
	f.Add(someJournal(f, 1, 2, 3)[:150])
	f.Fuzz(func(t *testing.T, b []byte) {
		j, err := parseJournal(b)
		if err != nil {
			return
		}
		if j.synced > len(j.hashes) || len(j.ends) != len(j.hashes) {
			t.Fatalf("%d synced, %d hashes, %d ends", j.synced, len(j.hashes), len(j.ends))
		}
		for n := range len(j.hashes) + 1 {
			again, err := parseJournal(b[:j.cut(n)])
			if err != nil || len(again.hashes) != n || again.synced > n {
				t.Fatalf("cut to %d blocks: %+v, %v", n, again, err)
			}
		}
	})
}

func FuzzPutMessage(f *testing.F) {
	f.Add(putMessage{ID: "0123456789abcdef", Name: "x", Size: 5}.encode())
	f.Add([]byte(`{"id":"../../../etc/pass"}`))
	f.Add([]byte(`{`))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decodePut(b)
		if err != nil {
			return
		}
		if len(m.ID) != 16 || bytes.ContainsAny([]byte(m.ID), "/.+-_xX") {
			t.Fatalf("id %q passes", m.ID)
		}
		if again, err := decodePut(m.encode()); err != nil || again != m {
			t.Fatalf("%+v reads back as %+v, %v", m, again, err)
		}
	})
}
