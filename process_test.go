package tideway_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tideway-io/tideway"
	"github.com/tideway-io/tideway/internal/testenv"
	"github.com/tideway-io/tideway/metadata/all"
	"github.com/tideway-io/tideway/segment"
)

// targetEnv makes the test binary a target process instead of running tests.
const targetEnv = "TIDEWAY_TEST_TARGET"

// spec is what a target process offers. It is handed over as JSON.
type spec struct {
	Config  targetConfig
	Buffers []targetBuffer
}

type targetConfig struct {
	Listen, Advertise, Interface string
	StallTimeout                 time.Duration
	Lanes                        int
	Store, Name                  string // its store's URL and its name there; it speaks Mooncake then
	UID                          int    // the user that it becomes, 0: stays
	NoAttach                     bool   // it may not read other processes
	Files                        int    // descriptors that it may have, 0: as many as this process
}

// become makes this process what a target is to be.
func (c *targetConfig) become() error {
	if c.Files != 0 {
		if err := limitFiles(c.Files); err != nil {
			return err
		}
	}
	if c.UID != 0 {
		if err := syscall.Setuid(c.UID); err != nil {
			return err
		}
	}
	if c.NoAttach {
		return testenv.DenyAttach()
	}
	return nil
}

// open opens the target's engine.
func (c *targetConfig) open(ctx context.Context) (*tideway.Engine, error) {
	cfg := tideway.Config{
		Listen: c.Listen, Advertise: c.Advertise, Interface: c.Interface, StallTimeout: c.StallTimeout, Lanes: c.Lanes,
	}
	if c.Store != "" {
		store, err := all.Open(c.Store, os.Getenv)
		if err != nil {
			return nil, err
		}
		cfg.Metadata, cfg.Name, cfg.Mooncake = store, c.Name, &tideway.Mooncake{}
	}
	return tideway.Open(ctx, cfg)
}

type targetBuffer struct {
	Name   string
	Size   uint64
	Access segment.Access
	Key    testenv.Key // fill with this pattern; zero: zeros
	Heap   bool        // memory that peers cannot map
}

func TestMain(m *testing.M) {
	if s := os.Getenv(targetEnv); s != "" {
		if err := serveTarget(s, os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "target:", err)
			os.Exit(1)
		}
		return
	}
	slog.SetDefault(slog.New(slog.DiscardHandler)) // requests fail on purpose
	os.Exit(m.Run())
}

// serveTarget is the target process: it answers one line for each line it is
// sent, and ends with its standard input or SIGTERM.
func serveTarget(in string, stdin io.Reader, stdout io.Writer) error {
	var s spec
	if err := json.Unmarshal([]byte(in), &s); err != nil {
		return err
	}
	if err := s.Config.become(); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	e, err := s.Config.open(ctx)
	if err != nil {
		return err
	}
	tg := &targetProcess{e: e, buffers: map[string]*tideway.Buffer{}}
	for _, b := range s.Buffers {
		if err := tg.add(b); err != nil {
			return err
		}
	}
	fmt.Fprintln(stdout, e.Addr())
	lines := make(chan string)
	go func() {
		defer close(lines)
		for sc := bufio.NewScanner(stdin); sc.Scan(); {
			lines <- sc.Text()
		}
	}()
	for {
		select {
		case line, ok := <-lines:
			if !ok {
				return tg.close()
			}
			fmt.Fprintln(stdout, tg.answer(strings.Fields(line)))
		case <-ctx.Done():
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			return e.Shutdown(ctx)
		}
	}
}

// targetProcess is what the target process keeps.
type targetProcess struct {
	e       *tideway.Engine
	buffers map[string]*tideway.Buffer
	crowd   []*tideway.Engine // see netCommand
}

func (tg *targetProcess) add(b targetBuffer) error {
	o := tideway.BufferOptions{Name: b.Name, Access: b.Access}
	var buf *tideway.Buffer
	var err error
	if b.Heap {
		buf, err = tg.e.Register(make([]byte, b.Size), o)
	} else {
		buf, err = tg.e.Alloc(b.Size, o)
	}
	if err != nil {
		return err
	}
	if b.Key != 0 {
		testenv.Fill(buf.Bytes(), b.Key, 0)
	}
	tg.buffers[b.Name] = buf
	return nil
}

// answer carries out one command: alloc NAME SIZE, close NAME, poison NAME,
// verify NAME RUN ROUND OFFSET LENGTH, byte NAME OFFSET, receive; and those of
// netCommand.
func (tg *targetProcess) answer(f []string) string {
	num := func(i int) uint64 { n, _ := strconv.ParseUint(f[i], 0, 64); return n }
	fail := func(err error) string {
		if err != nil {
			return "error " + strings.ReplaceAll(err.Error(), "\n", "; ")
		}
		return "ok"
	}
	switch f[0] {
	case "alloc":
		return fail(tg.add(targetBuffer{Name: f[1], Size: num(2), Access: segment.ReadWrite}))
	case "close":
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		return fail(tg.buffers[f[1]].CloseContext(ctx))
	case "poison":
		testenv.Poison(tg.buffers[f[1]].Bytes())
		return "ok"
	case "verify":
		off, n := num(4), num(5)
		return fail(testenv.Verify(tg.buffers[f[1]].Bytes()[off:off+n], testenv.KeyOf(num(2), num(3)), off))
	case "byte":
		return strconv.Itoa(int(tg.buffers[f[1]].Bytes()[num(2)]))
	case "receive":
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		n, err := tg.e.Receive(ctx)
		if err != nil {
			return fail(err)
		}
		return "ok " + n.Name + " " + string(n.Body)
	}
	out, err := tg.netCommand(f)
	if err != nil {
		return fail(err)
	}
	return out
}

// target is a target process as the test sees it.
type target struct {
	t      testing.TB
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Reader
	Addr   string // as advertised
	listen string // as bound
	done   chan error
}

// startTarget starts a target process; it is ended with the test.
func startTarget(t testing.TB, s spec) *target {
	t.Helper()
	return startTargetBy(t, s)
}

// startTargetBy is startTarget behind the words of a command that runs another.
func startTargetBy(t testing.TB, s spec, by ...string) *target {
	t.Helper()
	in, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	by = append(by, os.Args[0])
	cmd := exec.Command(by[0], by[1:]...)
	cmd.Env = append(os.Environ(), targetEnv+"="+string(in))
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	tg := &target{t: t, cmd: cmd, in: stdin, out: bufio.NewReader(stdout), done: make(chan error, 1)}
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // Pdeathsig is sent when the starting thread ends
		err := cmd.Start()
		started <- err
		if err == nil {
			tg.done <- cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	tg.Addr, tg.listen = tg.line(), s.Config.Listen
	t.Cleanup(func() {
		tg.signal(syscall.SIGCONT)
		tg.kill()
	})
	return tg
}

func (tg *target) line() string {
	tg.t.Helper()
	s, err := tg.out.ReadString('\n')
	if err != nil {
		tg.t.Fatalf("target process: %v", err)
	}
	return strings.TrimSpace(s)
}

// ask sends a command and returns the answer.
func (tg *target) ask(format string, args ...any) string {
	tg.t.Helper()
	if _, err := fmt.Fprintf(tg.in, format+"\n", args...); err != nil {
		tg.t.Fatalf("target process: %v", err)
	}
	return tg.line()
}

// must is ask that wants "ok".
func (tg *target) must(format string, args ...any) {
	tg.t.Helper()
	if got := tg.ask(format, args...); got != "ok" {
		tg.t.Fatalf("target: %s: %s", fmt.Sprintf(format, args...), got)
	}
}

// signal sends the process a signal; one that has ended takes none.
func (tg *target) signal(sig syscall.Signal) { _ = tg.cmd.Process.Signal(sig) }

// kill ends the process with SIGKILL and waits for it. It may be called again.
func (tg *target) kill() {
	tg.signal(syscall.SIGKILL)
	tg.done <- <-tg.done
}

// freeAddr returns a loopback address whose port was free just now.
func freeAddr(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
