package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// checked runs suites and returns the verdict and what was printed.
func checked(t *testing.T, run ...suite) (bool, string) {
	t.Helper()
	var out bytes.Buffer
	for i := range run {
		if run[i].budget == 0 {
			run[i].budget = 10 * time.Second
		}
	}
	ok := check(t.Context(), &out, run, true)
	return ok, out.String()
}

func TestVerdict(t *testing.T) {
	pass := suite{name: "pass", cmd: words("true")}
	for _, c := range []struct {
		name  string
		run   []suite
		want  bool
		print string
	}{
		{"all pass", []suite{pass, pass}, true, "pass"},
		{"nothing to run", nil, false, "no such suite"},
		{"one fails, the next still runs", []suite{{name: "bad", cmd: words("false")}, pass}, false, "FAILED: exit status 1"},
		{"no such program", []suite{{name: "bad", cmd: words("no-such-program")}}, false, "executable file not found"},
		{"quiet that prints", []suite{{name: "bad", cmd: words("echo bad.go"), quiet: true}}, false, "bad.go"},
		{"quiet that does not", []suite{{name: "good", cmd: words("true"), quiet: true}}, true, ""},
		{"overrun is killed", []suite{{name: "slow", budget: 10 * time.Millisecond, cmd: words("sleep 60")}}, false, "killed"},
		{"environment", []suite{{name: "env", env: words("CHECKED=1"), cmd: words("printenv CHECKED")}}, true, "1"},
	} {
		ok, printed := checked(t, c.run...)
		if ok != c.want || !strings.Contains(printed, c.print) {
			t.Errorf("%s: %v, want %v and %q in\n%s", c.name, ok, c.want, c.print, printed)
		}
	}
}

func TestInterruptEndsTheRun(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out bytes.Buffer
	if check(ctx, &out, []suite{{name: "pass", cmd: words("true")}}, false) {
		t.Errorf("an interrupted check says that all is well:\n%s", &out)
	}
}

func TestBudgets(t *testing.T) {
	over := result{suite{name: "slow", budget: time.Second}, time.Minute, time.Second, nil}
	var out bytes.Buffer
	if !budgets(&out, []result{over}) || !strings.Contains(out.String(), "over budget") {
		t.Errorf("one suite over its budget is said, and is no failure:\n%s", &out)
	}
	over.took = limit + time.Second
	if budgets(&out, []result{over}) {
		t.Errorf("all suites over the limit are a failure:\n%s", &out)
	}
	sum := time.Duration(0)
	for _, s := range suites() {
		sum += s.budget
	}
	if sum > limit {
		t.Errorf("the budgets add up to %v, the limit is %v", sum, limit)
	}
}

func TestReport(t *testing.T) {
	const stream = `{"Action":"build-output","ImportPath":"m/broken","Output":"broken.go:1: syntax error\n"}
{"Action":"run","Package":"m/a","Test":"TestGood"}
{"Action":"output","Package":"m/a","Test":"TestGood","Output":"noise\n"}
{"Action":"pass","Package":"m/a","Test":"TestGood","Elapsed":1.5}
{"Action":"pass","Package":"m/a","Test":"TestSlow/sub","Elapsed":71}
{"Action":"pass","Package":"m/a","Test":"TestSlow","Elapsed":72.25}
{"Action":"pass","Package":"m/a","Test":"TestSlower","Elapsed":172}
{"Action":"output","Package":"m/a","Test":"TestBad","Output":"    a_test.go:3: it is bad\n"}
{"Action":"fail","Package":"m/a","Test":"TestBad"}
{"Action":"output","Package":"m/a","Test":"TestSkip","Output":"=== RUN   TestSkip\n"}
{"Action":"output","Package":"m/a","Test":"TestSkip","Output":"    a_test.go:9: no root: run as root\n"}
{"Action":"output","Package":"m/a","Test":"TestSkip","Output":"--- SKIP: TestSkip (0.00s)\n"}
{"Action":"skip","Package":"m/a","Test":"TestSkip"}
{"Action":"skip","Package":"m/a","Test":"TestSilent"}
{"Action":"output","Package":"m/a","Test":"TestHangs","Output":"panic: test timed out\n"}
{"Action":"output","Package":"m/a","Output":"PASS\n"}
{"Action":"output","Package":"m/b","Output":"?   \tm/b\t[no test files]\n"}
{"Action":"output","Package":"m/a","Output":"-test.shuffle 17\n"}
{"Action":"output","Package":"m/b","Output":"-test.shuffle 18\n"}
{"Action":"output","Package":"m/a","Output":"FAIL\tm/a\t1.0s\n"}
{"Action":"fail","Package":"m/a"}
not json at all
`
	var out bytes.Buffer
	r := newReport("race", &out)
	for i := range len(stream) { // in the worst possible pieces
		r.Write([]byte(stream[i : i+1]))
	}
	r.end()
	r.printFailures("")
	printed := out.String()
	for _, want := range []string{"syntax error", "it is bad", "FAIL\tm/a\t1.0s", "not json at all", "slow:  172.0 s  m/a TestSlower\nslow:   72.2 s  m/a TestSlow\n", "m/a: -test.shuffle 17", "did not end: m/a TestHangs\npanic: test timed out",
		"skipped: no root: run as root: m/a TestSkip", "skipped: no reason given: m/a TestSilent"} {
		if !strings.Contains(printed, want) {
			t.Errorf("%q is not in\n%s", want, printed)
		}
	}
	for _, hide := range []string{"noise", "PASS", "shuffle 18", "71", "no test files"} {
		if strings.Contains(printed, hide) {
			t.Errorf("%q should not be in\n%s", hide, printed)
		}
	}
	if len(r.outcomes) != 7 || r.outcomes[5].Why != "no root: run as root" {
		t.Errorf("outcomes = %+v", r.outcomes)
	}
}

// A suite of tests is recorded and its failure is a failure.
func TestSuiteOfTests(t *testing.T) {
	file := filepath.Join(t.TempDir(), "stream")
	if err := os.WriteFile(file, []byte(`{"Action":"output","Package":"m/a","Output":"ok  \tm/a\t0.1s\n"}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ok, printed := checked(t, suite{name: "tests", tests: true, cmd: []string{"cat", file}})
	if !ok || !strings.Contains(printed, "ok  \tm/a") {
		t.Errorf("%v\n%s", ok, printed)
	}
}

// TestFailureAgain: a test that fails once and then passes alone is flaky, and
// said to be; everything else stays a failure.
func TestFailureAgain(t *testing.T) {
	const module = "module m\n\ngo 1.24\n"
	const head = "package m\nimport (\"os\"; \"testing\")\nfunc again() bool { _, err := os.Stat(\"once\"); os.WriteFile(\"once\", nil, 0o600); return err == nil }\n"
	const once = "func TestOnce(t *testing.T) { if !again() { t.Error(\"the first time\") } }\n"
	for _, c := range []struct {
		name, tests string
		want        bool
		print       string
	}{
		{"once", once, true, "flaky |     m_test.go:4: the first time"},
		{"beside a good one", once + "func TestGood(t *testing.T) {}\n", true, "flaky | --- FAIL: TestOnce"},
		{"always", "func TestBad(t *testing.T) { t.Error(\"bad\") }\n", false, "m_test.go:4: bad"},
		{"a race", "func TestOnce(t *testing.T) { if !again() { t.Error(\"WARNING: DATA RACE\") } }\n", false, "--- FAIL: TestOnce"},
		{"a panic", "func TestOnce(t *testing.T) { if !again() { panic(1) } }\n", false, "panic: 1"},
		{"the package", "func TestGood(t *testing.T) {}\nfunc TestMain(m *testing.M) { m.Run(); if !again() { os.Exit(3) } }\n", false, "FAIL"},
		{"a build", "func TestOnce(t *testing.T) { nonsense }\n", false, "nonsense"},
		{"many", "var first = !again()\nfunc TestA(t *testing.T) { if first { t.Error() } }\nfunc TestB(t *testing.T) { if first { t.Error() } }\nfunc TestC(t *testing.T) { if first { t.Error() } }\n", false, "--- FAIL: TestC"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, text := range map[string]string{"go.mod": module, "m_test.go": head + c.tests} {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			ok, printed := checked(t, suite{name: "tests", budget: time.Minute, tests: true, env: words("CGO_ENABLED=0"),
				cmd: words("go -C " + dir + " test -json -count=1 ./...")})
			if ok != c.want || !strings.Contains(printed, c.print) {
				t.Errorf("%v, want %v and %q in\n%s", ok, c.want, c.print, printed)
			}
			if ok && strings.Contains("\n"+printed, "\n--- FAIL") {
				t.Errorf("a pass that prints a failure unmarked:\n%s", printed)
			}
		})
	}
}
