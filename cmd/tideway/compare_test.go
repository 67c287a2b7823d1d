package main

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// rowsFile writes rows as bench does.
func rowsFile(t *testing.T, rows ...*benchRow) string {
	t.Helper()
	var b bytes.Buffer
	for _, r := range rows {
		if err := json.NewEncoder(&b).Encode(r); err != nil {
			t.Fatal(err)
		}
	}
	name := filepath.Join(t.TempDir(), "rows")
	if err := os.WriteFile(name, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// repeats are rows of one point with these rates; their latency is the inverse.
func repeats(op string, rates ...float64) (rows []*benchRow) {
	for i, v := range rates {
		rows = append(rows, &benchRow{Op: op, Size: 4096, Batch: 1, Threads: 1, Transport: "tcp", Repeat: i + 1, Bytes: v, Latency: latency{P50: 1e6 / v}})
	}
	return rows
}

// compared runs compare.
func compared(a, b string, flags ...string) error {
	cmd := newCompare(&console{out: io.Discard})
	cmd.SetArgs(append([]string{a, b, "--metric", "rate,p50"}, flags...))
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	return cmd.Execute()
}

func TestCompareGate(t *testing.T) {
	base := append(repeats("read", 100, 101, 102, 103, 104), repeats("write", 50, 51, 52, 53, 54)...)
	slow := append(repeats("read", 100, 101, 102, 103, 104), repeats("write", 40, 41, 42, 43, 44)...)
	few := append(repeats("read", 100, 101), repeats("write", 50, 51)...)
	noisy := append(repeats("read", 60, 80, 102, 120, 140), repeats("write", 20, 80, 45, 46, 90)...)
	for name, c := range map[string]struct {
		b     []*benchRow
		worse string
		want  string // in the error, none if empty
	}{
		"the same":            {base, "0", ""},
		"slower":              {slow, "5", "op=write: rate is worse by 19.2 %"},
		"slower, but allowed": {slow, "30", ""},
		"faster":              {append(repeats("read", 200, 201, 202, 203, 204), repeats("write", 80, 81, 82, 83, 84)...), "0", ""},
		"noise":               {noisy, "5", ""},
		"too few to tell":     {few, "5", "more repetitions than 5 and 2"},
		"a row is missing":    {repeats("read", 1, 2, 3, 4, 5), "5", "only one of the files has a row op=write"},
	} {
		err := compared(rowsFile(t, base...), rowsFile(t, c.b...), "--worse", c.worse)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if name == "slower" && exitCode(t.Context(), err) != exitSlower {
			t.Errorf("exit code %d", exitCode(t.Context(), err))
		}
	}
}

// Files that differ as a whole in something are compared in spite of it.
func TestCompareTransports(t *testing.T) {
	shm := repeats("read", 200, 201, 202, 203)
	for _, r := range shm {
		r.Transport = "shm"
	}
	a, b := readBack(t, repeats("read", 1, 2, 3, 4)), readBack(t, shm)
	if got := facts(a, b); got != "transport: A tcp, B shm" {
		t.Errorf("facts: %q", got)
	}
	if by := keyTraits(a, b); len(by) != 0 {
		t.Errorf("told apart by %d traits", len(by))
	}
	both := append(repeats("read", 1, 2), shm[0])
	if by := keyTraits(both, a); len(by) != 1 || by[0].name != "transport" {
		t.Errorf("told apart by %v", by)
	}
}

func readBack(t *testing.T, rows []*benchRow) []*benchRow {
	t.Helper()
	got, err := readRows(rowsFile(t, rows...))
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestCompareRefuses(t *testing.T) {
	good := rowsFile(t, repeats("read", 1)...)
	var many []*benchRow
	for range maxSamples + 1 {
		many = append(many, repeats("read", 1)...)
	}
	for name, file := range map[string]string{
		"empty": rowsFile(t), "too many": rowsFile(t, many...), "no op": rowsFile(t, &benchRow{Size: 1}), "missing": good + "x",
	} {
		if err := compared(good, file); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("OP SIZE\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := compared(good, text); err == nil || !strings.Contains(err.Error(), "object 1") {
		t.Errorf("text: %v", err)
	}
}
