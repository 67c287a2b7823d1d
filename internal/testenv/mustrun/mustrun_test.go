package mustrun

import (
	"slices"
	"strings"
	"testing"
)

func TestListParses(t *testing.T) {
	if _, err := List(); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(blanks) {
		f := strings.Fields(line)
		if len(f) > 0 && f[0] != "#" && len(f) < 3 {
			t.Errorf("blanks.txt: %q: want TRANSPORT PROMISE REASON", line)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for _, text := range []string{"race internal/x", "race internal/x TestA because"} {
		if e, err := Parse(text); err == nil {
			t.Errorf("Parse(%q) = %v, want an error", text, e)
		}
	}
}

func TestVerify(t *testing.T) {
	entries, err := Parse("# comment\n\nrace a TestOne\nrace a TestTwo/sub\nrace b *\nstatic . TestRoot\n")
	if err != nil {
		t.Fatal(err)
	}
	a, b := Module+"/a", Module+"/b"
	good := []Outcome{
		{"race", a, "TestOne", "pass", ""},
		{"race", a, "TestTwo", "skip", "parents are not listed"},
		{"race", a, "TestTwo/sub", "fail", ""},
		{"race", b, "TestAny", "pass", ""},
		{"static", Module, "TestRoot", "pass", ""},
		{"static", a, "TestOne", "skip", "short"},
		{"race", a, "TestOne/10_promise", "skip", "promise 10 is left blank: no wire"},
	}
	both := []string{"race", "static"}
	if got := Verify(entries, both, good); got != nil {
		t.Errorf("all ran, yet: %q", got)
	}
	for _, c := range []struct {
		name   string
		at     int
		change func(*Outcome)
		want   string
	}{
		{"skipped", 0, func(o *Outcome) { o.Action, o.Why = "skip", "no iperf3" }, "no iperf3"},
		{"other suite", 0, func(o *Outcome) { o.Suite = "static" }, "did not run"},
		{"sub-test skipped", 0, func(o *Outcome) { o.Test, o.Action, o.Why = "TestOne/x", "skip", "no root" }, "TestOne/x was skipped: no root"},
		{"sub-test alone", 2, func(o *Outcome) { o.Test = "TestTwo/other" }, "did not run"},
		{"star skipped", 3, func(o *Outcome) { o.Action, o.Why = "skip", "no device" }, "no device"},
		{"star empty", 3, func(o *Outcome) { o.Package = a }, "did not run"},
		{"root", 4, func(o *Outcome) { o.Package = b }, "did not run"},
	} {
		ran := append([]Outcome(nil), good...)
		c.change(&ran[c.at])
		got := Verify(entries, both, ran)
		if len(got) != 1 || !strings.Contains(got[0], c.want) {
			t.Errorf("%s: Verify = %q, want one line with %q", c.name, got, c.want)
		}
	}
	if got := Verify(entries, []string{"static"}, good[4:]); got != nil {
		t.Errorf("suites that did not run are not checked, yet: %q", got)
	}
}

func TestListed(t *testing.T) {
	entries, _ := Parse("race a TestOne\nrace b *")
	for _, c := range []struct {
		pkg, test string
		want      bool
	}{
		{"/a", "TestOne", true}, {"/a", "TestOne/sub", true}, {"/a", "TestOneMore", false}, {"/b", "TestX", true}, {"/c", "TestOne", false},
	} {
		if got := Listed(entries, Module+c.pkg, c.test); got != c.want {
			t.Errorf("Listed(%s, %s) = %v", c.pkg, c.test, got)
		}
	}
}

func TestBlankIsNotMadeUp(t *testing.T) {
	if why, ok := Blank("no-such-transport", "completed_means_applied"); ok {
		t.Errorf("a reason for nothing: %q", why)
	}
}

func TestNowhereRun(t *testing.T) {
	ran := []Outcome{
		{"static", "a", "TestBoth", "pass", ""}, {"race", "a", "TestBoth", "pass", ""},
		{"static", "a", "TestOnce", "skip", "short"}, {"race", "a", "TestOnce", "pass", ""},
		{"static", "a", "TestFirst", "fail", ""}, {"race", "a", "TestFirst", "skip", "slow"},
		{"static", "a", "TestHidden", "skip", "short"}, {"race", "a", "TestHidden", "skip", "slow under race"},
		{"static", "a", "TestSpeed", "skip", "a speed gate: run make bench-check"},
		{"static", "b", "TestHidden", "skip", "never"},
	}
	want := []string{"a TestHidden runs in no suite: slow under race", "b TestHidden runs in no suite: never"}
	if got := NowhereRun(ran); !slices.Equal(got, want) {
		t.Errorf("NowhereRun = %q, want %q", got, want)
	}
}
