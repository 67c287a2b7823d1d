package testenv

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// A pattern is a function of key and offset alone: any cut of it is a part of it.
func TestPatternIsOfOffset(t *testing.T) {
	key := KeyOf(1, 2)
	whole := make([]byte, 100)
	Fill(whole, key, 0)
	for from := range 20 {
		for to := from; to <= len(whole); to++ {
			part := make([]byte, to-from)
			Fill(part, key, uint64(from))
			if !slices.Equal(part, whole[from:to]) {
				t.Fatalf("[%d,%d) differs from the whole", from, to)
			}
			if err := Verify(part, key, uint64(from)); err != nil {
				t.Fatalf("[%d,%d): %v", from, to, err)
			}
		}
	}
}

func TestVerifyFindsEveryFlip(t *testing.T) {
	key := KeyOf(7, 7)
	for from := range uint64(9) {
		buf := make([]byte, 40)
		Fill(buf, key, from)
		for at := range buf {
			buf[at] ^= 1
			err := Verify(buf, key, from)
			if want := fmt.Sprintf("byte %d of 40, pattern offset %d:", at, from+uint64(at)); err == nil || !strings.HasPrefix(err.Error(), want) {
				t.Fatalf("flip at %d from %d: %v, want %q", at, from, err, want)
			}
			buf[at] ^= 1
		}
	}
}

// Bytes of another key or place are seen within a few bytes of the start.
func TestVerifyRefusesOtherPatterns(t *testing.T) {
	const offset = 1 << 33
	buf := make([]byte, 64)
	for name, fill := range map[string]func(){
		"other round":  func() { Fill(buf, KeyOf(1, 3), offset) },
		"other run":    func() { Fill(buf, KeyOf(2, 2), offset) },
		"other offset": func() { Fill(buf, KeyOf(1, 2), offset+8) },
		"byte off":     func() { Fill(buf, KeyOf(1, 2), offset+1) },
		"4 GiB off":    func() { Fill(buf, KeyOf(1, 2), offset-1<<32) },
		"poison":       func() { Poison(buf) },
		"zeros":        func() { clear(buf) },
	} {
		fill()
		err := Verify(buf, KeyOf(1, 2), offset)
		if err == nil || !strings.HasPrefix(err.Error(), "byte 0 ") && !strings.HasPrefix(err.Error(), "byte 1 ") {
			t.Errorf("%s: %v, want a mismatch at the start", name, err)
		}
		if (name == "poison" || name == "zeros") && !strings.Contains(fmt.Sprint(err), name) {
			t.Errorf("%s is not named: %v", name, err)
		}
	}
}

func TestAllocPattern(t *testing.T) {
	buf := make([]byte, 4096)
	MaxAllocs(t, 0, func() {
		Fill(buf, 1, 3)
		if Verify(buf, 1, 3) != nil {
			t.Error("mismatch")
		}
	})
}

func BenchmarkFill(b *testing.B) {
	buf := make([]byte, 64<<10)
	b.SetBytes(int64(len(buf)))
	for b.Loop() {
		Fill(buf, 1, 0)
	}
}

func BenchmarkVerify(b *testing.B) {
	buf := make([]byte, 64<<10)
	Fill(buf, 1, 0)
	b.SetBytes(int64(len(buf)))
	for b.Loop() {
		if err := Verify(buf, 1, 0); err != nil {
			b.Fatal(err)
		}
	}
}
