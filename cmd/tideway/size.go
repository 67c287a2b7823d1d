package main

import (
	"fmt"
	"math"
	"math/bits"
	"strconv"
	"strings"
	"time"
)

// units are the suffixes of sizes; all are powers of 1024.
func units() []string { return []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"} }

// parseSize reads a number of bytes: "4096", "64KiB", "1M", "3 GiB". Case does
// not matter; decimal units such as MB are refused, as they are read both ways.
func parseSize(s string) (uint64, error) {
	digits := strings.TrimLeft(s, "0123456789")
	number, suffix := s[:len(s)-len(digits)], strings.TrimSpace(digits)
	if number == "" {
		return 0, fmt.Errorf("size %q: want a whole number and a unit, such as 4096, 64KiB or 3GiB", s)
	}
	shift, ok := unitShift(suffix)
	if !ok {
		return 0, fmt.Errorf("size %q: unknown unit %q%s", s, suffix, sizeHint(number, suffix))
	}
	n, err := strconv.ParseUint(number, 10, 64)
	if hi, lo := bits.Mul64(n, 1<<shift); err != nil || hi != 0 {
		return 0, fmt.Errorf("size %q: more than 64 bits can count", s)
	} else {
		return lo, nil
	}
}

// unitShift returns the exponent of a suffix: "", "B", "K", "Ki", "KiB" and so on.
func unitShift(suffix string) (uint, bool) {
	if suffix == "" {
		return 0, true
	}
	for i, u := range units() {
		for n := 1; n <= len(u); n++ {
			if strings.EqualFold(suffix, u[:n]) {
				return uint(10 * i), true
			}
		}
	}
	return 0, false
}

func sizeHint(number, suffix string) string {
	for _, u := range units()[1:] {
		if len(suffix) <= len(u)+1 && strings.EqualFold(suffix[:1], u[:1]) {
			return fmt.Sprintf("; did you mean %s%s? (units are powers of 1024)", number, u)
		}
	}
	return "; units are " + strings.Join(units(), ", ")
}

// formatSize prints a number of bytes for people, with three digits or exactly.
func formatSize(n uint64) string {
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	i := (bits.Len64(n) - 1) / 10
	if n&(1<<(10*i)-1) == 0 {
		return fmt.Sprintf("%d %s", n>>(10*i), units()[i])
	}
	v := float64(n) / math.Pow(1024, float64(i))
	if v >= 999.95 && i < len(units())-1 {
		v, i = v/1024, i+1
	}
	return fmt.Sprintf("%.*f %s", decimals(v), v, units()[i])
}

func decimals(v float64) int {
	switch {
	case v < 9.995:
		return 2
	case v < 99.95:
		return 1
	}
	return 0
}

// formatRate prints bytes per second for people.
func formatRate(perSecond float64) string {
	if math.IsNaN(perSecond) || math.IsInf(perSecond, 0) || perSecond < 0 {
		return "-"
	}
	return formatSize(uint64(perSecond)) + "/s"
}

// rate returns bytes per second; 0 where no time has passed.
func rate(n uint64, d time.Duration) float64 {
	if d <= 0 {
		return 0
	}
	return float64(n) / d.Seconds()
}

// sizeFlag is a flag that holds one size.
type sizeFlag uint64

func (f *sizeFlag) String() string { return strings.ReplaceAll(formatSize(uint64(*f)), " ", "") }
func (f *sizeFlag) Type() string   { return "size" }
func (f *sizeFlag) Set(s string) error {
	n, err := parseSize(s)
	*f = sizeFlag(n)
	return err
}

// listFlag is a flag that holds a comma list of values that parse reads.
type listFlag[T any] struct {
	values []T
	text   string
	kind   string
	parse  func(string) (T, error)
	of     []string // the words that there are, if they are words
}

func newList[T any](kind, text string, parse func(string) (T, error)) *listFlag[T] {
	f := &listFlag[T]{kind: kind, parse: parse}
	if err := f.Set(text); err != nil {
		panic("default of a flag: " + err.Error())
	}
	return f
}

// newChoices is a list of a few words.
func newChoices(kind, text string, of ...string) *listFlag[string] {
	f := newList(kind, text, func(s string) (string, error) { return choose(s, of) })
	f.of = of
	return f
}

func (f *listFlag[T]) words() []string { return f.of }

func (f *listFlag[T]) String() string { return f.text }
func (f *listFlag[T]) Type() string   { return f.kind }
func (f *listFlag[T]) Set(s string) error {
	var values []T
	for part := range strings.SplitSeq(s, ",") {
		v, err := f.parse(strings.TrimSpace(part))
		if err != nil {
			return err
		}
		values = append(values, v)
	}
	f.values, f.text = values, s
	return nil
}

// choiceFlag is a flag that holds one of a few words.
type choiceFlag struct {
	value string
	of    []string
}

func (f *choiceFlag) String() string { return f.value }
func (f *choiceFlag) Type() string   { return strings.Join(f.of, "|") }
func (f *choiceFlag) Set(s string) error {
	v, err := choose(s, f.of)
	if err == nil {
		f.value = v
	}
	return err
}

// words are what may be typed.
func (f *choiceFlag) words() []string { return f.of }

// choose returns s if it is one of the words.
func choose(s string, of []string) (string, error) {
	for _, w := range of {
		if s == w {
			return w, nil
		}
	}
	return "", fmt.Errorf("%q is not one of %s%s", s, strings.Join(of, ", "), didYouMean(s, of))
}
