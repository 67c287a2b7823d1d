package e2e

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/tideway-io/tideway/internal/testenv"
)

// TestMain gives scripts two small programs: one that sends back what it gets on
// its port, one that sends a line to a port and prints what comes back.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"echo-server": echoServer, "ask": ask})
}

func echoServer() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Println("listening on", l.Addr())
	for {
		c, err := l.Accept()
		if err != nil {
			panic(err)
		}
		go func() { io.Copy(c, c); c.Close() }()
	}
}

func ask() {
	c, err := net.Dial("tcp", os.Args[1])
	if err == nil {
		io.WriteString(c, os.Args[2])
		c.(*net.TCPConn).CloseWrite()
		_, err = io.Copy(os.Stdout, c)
	}
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
	fmt.Println()
}

func TestScripts(t *testing.T) {
	testenv.Leak(t)
	t.Run("all", func(t *testing.T) { // returns when the scripts, which run side by side, have
		testscript.Run(t, Params(testscript.Params{Dir: "testdata/script", RequireUniqueNames: true}))
	})
}

// recorder is a testscript.T that remembers how a script ended.
type recorder struct {
	testing.TB
	log    strings.Builder
	failed bool
}

func (r *recorder) Skip(args ...any)                     { r.Log(args...); runtime.Goexit() }
func (r *recorder) Fatal(args ...any)                    { r.Log(args...); r.FailNow() }
func (r *recorder) Log(args ...any)                      { fmt.Fprintln(&r.log, args...) }
func (r *recorder) FailNow()                             { r.failed = true; runtime.Goexit() }
func (r *recorder) Parallel()                            {}
func (r *recorder) Verbose() bool                        { return true }
func (r *recorder) Run(_ string, f func(t testscript.T)) { wait(func() { f(r) }) }

func wait(f func()) {
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	<-done
}

// What a script gets wrong ends it, with a word on what was wrong.
func TestScriptsThatFail(t *testing.T) {
	testenv.Leak(t)
	for script, want := range map[string]string{
		"start a sh -c 'exit 3'\nended a 4":                    "a ended with 3, want 4",
		"start a sleep 60\nstart a sleep 60":                   "process a runs already",
		"start a no-such-program":                              "no-such-program",
		"start a true\nprints a never":                         "before it printed",
		"freeze b":                                             "no process b",
		"start a sleep 60\nsignal a SEGV":                      "want INT, TERM",
		"cut p":                                                "no proxy p",
		"proxy p 127.0.0.1:1 P\nfault p up melt 1":             `fault "melt"`,
		"proxy p 127.0.0.1:1 P\nfault p side flip 1":           `direction "side"`,
		"proxy p 127.0.0.1:1 P\nfault p up flip 1\nhappened p": "1 faults did not happen",
		"proxy p 127.0.0.1:1 P\nblackhole p maybe":             "want on or off",
		"proxy p 127.0.0.1:1 P\nlink p up 1 soon":              "soon",
		"! freeze a":                                           "usage: NAME, without !",
		"appears":                                              "usage: [!] appears FILE",
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "s.txtar"), []byte(script), 0o644); err != nil {
			t.Fatal(err)
		}
		r := &recorder{}
		wait(func() { testscript.RunT(r, Params(testscript.Params{Dir: dir})) })
		if !r.failed || !strings.Contains(r.log.String(), want) {
			t.Errorf("%q: failed=%v, want %q in\n%s", script, r.failed, want, &r.log)
		}
	}
}
