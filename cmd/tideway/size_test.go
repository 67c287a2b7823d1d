package main

import (
	"strings"
	"testing"
	"testing/quick"
)

func TestParseSize(t *testing.T) {
	for text, want := range map[string]uint64{
		"0": 0, "1": 1, "4096": 4096, "4096B": 4096, "64KiB": 64 << 10, "64K": 64 << 10, "64Ki": 64 << 10, "1MiB": 1 << 20,
		"1m": 1 << 20, "3GiB": 3 << 30, "1G": 1 << 30, "2TiB": 2 << 40, "1P": 1 << 50, "15EiB": 15 << 60, "3 gib": 3 << 30,
		"18446744073709551615": 1<<64 - 1,
	} {
		if got, err := parseSize(text); err != nil || got != want {
			t.Errorf("parseSize(%q) = %d, %v; want %d", text, got, err, want)
		}
	}
}

func TestParseSizeRefuses(t *testing.T) {
	for text, say := range map[string]string{
		"":                     "whole number",
		"MiB":                  "whole number",
		"-1":                   "whole number",
		"1.5GiB":               `unknown unit ".5GiB"`,
		"64MB":                 "did you mean 64MiB?",
		"64kB":                 "did you mean 64KiB?",
		"1GiBB":                "did you mean 1GiB?",
		"1parsec":              "units are B, KiB",
		"16EiB":                "64 bits",
		"18446744073709551616": "64 bits",
	} {
		if _, err := parseSize(text); err == nil || !strings.Contains(err.Error(), say) {
			t.Errorf("parseSize(%q): %v; want it to say %q", text, err, say)
		}
	}
}

func TestFormatSize(t *testing.T) {
	for n, want := range map[uint64]string{
		0: "0 B", 1: "1 B", 1023: "1023 B", 1024: "1 KiB", 1536: "1.50 KiB", 64 << 20: "64 MiB", 1<<30 + 1: "1.00 GiB",
		12345678: "11.8 MiB", 123456789: "118 MiB", 1<<20 - 1: "1.00 MiB", 1<<64 - 1: "16.0 EiB",
	} {
		if got := formatSize(n); got != want {
			t.Errorf("formatSize(%d) = %q; want %q", n, got, want)
		}
	}
}

// A size that is a whole number of units is printed so that it parses back.
func TestSizesRoundTrip(t *testing.T) {
	check := func(n uint16, unit uint8) bool {
		size := uint64(n%1024) << (10 * (unit % 6))
		back, err := parseSize(formatSize(size))
		return err == nil && back == size
	}
	if err := quick.Check(check, nil); err != nil {
		t.Error(err)
	}
}

func TestListFlag(t *testing.T) {
	f := newList("sizes", "1MiB", parseSize)
	if err := f.Set("4KiB, 64KiB,1MiB"); err != nil || len(f.values) != 3 || f.values[1] != 64<<10 {
		t.Fatalf("values %v, %v", f.values, err)
	}
	if err := f.Set("4KiB,,1MiB"); err == nil {
		t.Error("an empty element passed")
	}
	if len(f.values) != 3 {
		t.Error("a refused list changed the value")
	}
}

func TestChoiceFlag(t *testing.T) {
	f := choiceFlag{"table", []string{"table", "json", "jsonl"}}
	if err := f.Set("jsno"); err == nil || !strings.Contains(err.Error(), "did you mean json?") {
		t.Errorf("Set(jsno): %v", err)
	}
	if err := f.Set("json"); err != nil || f.value != "json" {
		t.Errorf("Set(json): %v, %q", err, f.value)
	}
}
