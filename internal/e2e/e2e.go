// Package e2e is what scripts over the command need besides testscript's own
// commands: processes to freeze, signal and wait for, and a bad network between
// them. It drives programs from outside and knows nothing of what is in them.
//
// Scripts are testscript's (testdata/script/*.txtar); Params adds these commands:
//
//	start NAME program args...       run a program in the background
//	prints NAME regexp [VARIABLE]    wait until it has printed that; its first group goes into the variable
//	freeze NAME, thaw NAME           SIGSTOP, SIGCONT
//	signal NAME SIGNAL               INT, TERM, KILL, HUP, USR1
//	ended NAME CODE                  wait for its end and compare the status; 137 is kill -9
//	[!] appears FILE                 wait until a file is there, or gone
//	sha256 VARIABLE FILE             hash of a file
//	proxy NAME ADDRESS VARIABLE      a testenv.Proxy in front of an address; its own goes into the variable
//	fault NAME up|down KIND AT [LEN] something that happens to the bytes: flip delete repeat swap close reset stall
//	happened NAME                    all faults have happened
//	blackhole NAME on|off            forward nothing, say nothing
//	refuse NAME on|off               refuse new connections
//	cut NAME                         reset all connections
//	link NAME up|down MBIT DELAY     rate, 0 for none, and delay of one direction
package e2e

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/tideway-io/tideway/internal/testenv"
)

// patience is how long a script waits for anything.
const patience = 20 * time.Second

// command is a command of a script.
type command = func(ts *testscript.TestScript, neg bool, args []string)

// key is where a script's state is among its values.
type key struct{}

// state is what one script has running.
type state struct {
	processes map[string]*testenv.Process
	proxies   map[string]*testenv.Proxy
}

// Params adds the commands to p, which keeps its own.
func Params(p testscript.Params) testscript.Params {
	setup := p.Setup
	p.Setup = func(env *testscript.Env) error {
		env.Setenv("GORACE", "atexit_sleep_ms=0") // else each program under the race detector ends a second late
		env.Values[key{}] = &state{map[string]*testenv.Process{}, map[string]*testenv.Proxy{}}
		if setup == nil {
			return nil
		}
		return setup(env)
	}
	all := commands()
	for name, c := range p.Cmds {
		all[name] = c
	}
	p.Cmds = all
	return p
}

func commands() map[string]command {
	return map[string]command{
		"start":     checked("NAME program args...", 2, 1000, start),
		"prints":    checked("NAME regexp [VARIABLE]", 2, 3, prints),
		"freeze":    checked("NAME", 1, 1, func(ts *testscript.TestScript, a []string) { process(ts, a[0]).Stop() }),
		"thaw":      checked("NAME", 1, 1, func(ts *testscript.TestScript, a []string) { process(ts, a[0]).Cont() }),
		"signal":    checked("NAME INT|TERM|KILL|HUP|USR1", 2, 2, signal),
		"ended":     checked("NAME CODE", 2, 2, ended),
		"appears":   appears,
		"sha256":    checked("VARIABLE FILE", 2, 2, hash),
		"proxy":     checked("NAME ADDRESS VARIABLE", 3, 3, startProxy),
		"fault":     checked("NAME up|down KIND AT [LEN]", 4, 5, fault),
		"happened":  checked("NAME", 1, 1, happened),
		"blackhole": checked("NAME on|off", 2, 2, func(ts *testscript.TestScript, a []string) { proxy(ts, a[0]).BlackHole(on(ts, a[1])) }),
		"refuse":    checked("NAME on|off", 2, 2, func(ts *testscript.TestScript, a []string) { ts.Check(proxy(ts, a[0]).Refuse(on(ts, a[1]))) }),
		"cut":       checked("NAME", 1, 1, func(ts *testscript.TestScript, a []string) { proxy(ts, a[0]).Cut() }),
		"link":      checked("NAME up|down MBIT DELAY", 4, 4, link),
	}
}

// checked refuses the wrong number of arguments, and negation.
func checked(usage string, least, most int, f func(*testscript.TestScript, []string)) command {
	return func(ts *testscript.TestScript, neg bool, args []string) {
		if neg || len(args) < least || len(args) > most {
			ts.Fatalf("usage: %s, without !", usage)
		}
		f(ts, args)
	}
}

// tb lets testenv report to a script.
type tb struct {
	testing.TB
	ts *testscript.TestScript
}

func (t tb) Helper()                      {}
func (t tb) Name() string                 { return t.ts.Name() }
func (t tb) Cleanup(f func())             { t.ts.Defer(f) }
func (t tb) Failed() bool                 { return true } // what a process printed is part of a script's log, which shows when it fails
func (t tb) Log(args ...any)              { t.ts.Logf("%s", fmt.Sprint(args...)) }
func (t tb) Logf(f string, args ...any)   { t.ts.Logf(f, args...) }
func (t tb) Fatal(args ...any)            { t.ts.Fatalf("%s", fmt.Sprint(args...)) }
func (t tb) Fatalf(f string, args ...any) { t.ts.Fatalf(f, args...) }
func (t tb) Errorf(f string, args ...any) { t.ts.Fatalf(f, args...) }

func stateOf(ts *testscript.TestScript) *state { return ts.Value(key{}).(*state) }

func process(ts *testscript.TestScript, name string) *testenv.Process {
	p := stateOf(ts).processes[name]
	if p == nil {
		ts.Fatalf("no process %s: start it first", name)
	}
	return p
}

func proxy(ts *testscript.TestScript, name string) *testenv.Proxy {
	p := stateOf(ts).proxies[name]
	if p == nil {
		ts.Fatalf("no proxy %s", name)
	}
	return p
}

func start(ts *testscript.TestScript, args []string) {
	path := args[1]
	for _, dir := range filepath.SplitList(ts.Getenv("PATH")) { // the script's, not this process's
		if p, err := exec.LookPath(filepath.Join(dir, args[1])); err == nil && !strings.Contains(args[1], "/") {
			path = p
			break
		}
	}
	cmd := exec.Command(path, args[2:]...)
	cmd.Dir = ts.MkAbs(".")
	cmd.Env = os.Environ()
	for _, name := range []string{"PATH", "HOME", "TMPDIR", "WORK", "GORACE"} {
		cmd.Env = append(cmd.Env, name+"="+ts.Getenv(name))
	}
	if old := stateOf(ts).processes[args[0]]; old != nil && !old.Ended() {
		ts.Fatalf("process %s runs already", args[0])
	}
	stateOf(ts).processes[args[0]] = testenv.StartCmd(tb{ts: ts}, cmd)
}

func prints(ts *testscript.TestScript, args []string) {
	match := process(ts, args[0]).Expect(patience, "(?m)"+args[1])
	if len(args) == 3 {
		ts.Setenv(args[2], match[min(1, len(match)-1)])
	}
}

func signal(ts *testscript.TestScript, args []string) {
	signals := map[string]syscall.Signal{"INT": syscall.SIGINT, "TERM": syscall.SIGTERM, "KILL": syscall.SIGKILL, "HUP": syscall.SIGHUP, "USR1": syscall.SIGUSR1}
	sig, ok := signals[args[1]]
	if !ok {
		ts.Fatalf("signal %s: want INT, TERM, KILL, HUP or USR1", args[1])
	}
	process(ts, args[0]).Signal(sig)
}

func ended(ts *testscript.TestScript, args []string) {
	want, err := strconv.Atoi(args[1])
	ts.Check(err)
	if got := process(ts, args[0]).Wait(patience); got != want {
		ts.Fatalf("%s ended with %d, want %d", args[0], got, want)
	}
}

func appears(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 1 {
		ts.Fatalf("usage: [!] appears FILE")
	}
	path := ts.MkAbs(args[0])
	testenv.Eventually(tb{ts: ts}, patience, func() bool {
		_, err := os.Stat(path)
		return neg == errors.Is(err, fs.ErrNotExist)
	}, "appears ", args[0], ", wanted ", !neg)
}

func hash(ts *testscript.TestScript, args []string) {
	ts.Setenv(args[0], fmt.Sprintf("%x", sha256.Sum256([]byte(ts.ReadFile(args[1])))))
}

func startProxy(ts *testscript.TestScript, args []string) {
	p := testenv.NewProxy(tb{ts: ts}, args[1])
	stateOf(ts).proxies[args[0]] = p
	ts.Setenv(args[2], p.Addr)
}

func direction(ts *testscript.TestScript, s string) testenv.Dir {
	if s != "up" && s != "down" {
		ts.Fatalf("direction %q: want up or down", s)
	}
	return map[string]testenv.Dir{"up": testenv.Up, "down": testenv.Down}[s]
}

func on(ts *testscript.TestScript, s string) bool {
	if s != "on" && s != "off" {
		ts.Fatalf("%q: want on or off", s)
	}
	return s == "on"
}

func fault(ts *testscript.TestScript, args []string) {
	kinds := map[string]testenv.Kind{"flip": testenv.Flip, "delete": testenv.Delete, "repeat": testenv.Repeat, "swap": testenv.Swap,
		"close": testenv.Close, "reset": testenv.Reset, "stall": testenv.Stall}
	f := testenv.Fault{Dir: direction(ts, args[1]), Kind: kinds[args[2]]}
	at, err := strconv.ParseUint(args[3], 10, 64)
	ts.Check(err)
	f.At = at
	if len(args) == 5 {
		f.Len, err = strconv.Atoi(args[4])
		ts.Check(err)
	}
	if f.Kind == 0 {
		ts.Fatalf("fault %q: want flip, delete, repeat, swap, close, reset or stall", args[2])
	}
	proxy(ts, args[0]).Inject(f)
}

func happened(ts *testscript.TestScript, args []string) {
	if n := proxy(ts, args[0]).Pending(); n != 0 {
		ts.Fatalf("%d faults did not happen", n)
	}
}

func link(ts *testscript.TestScript, args []string) {
	mbit, err := strconv.ParseFloat(args[2], 64)
	delay, err2 := time.ParseDuration(args[3])
	ts.Check(cmp.Or(err, err2))
	proxy(ts, args[0]).Link(direction(ts, args[1]), mbit*1e6, delay)
}
