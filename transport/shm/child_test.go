package shm

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/registry"
	"github.com/tideway-io/tideway/internal/testenv"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
)

// childEnv makes the test binary an engine that obeys its standard input. It
// holds a nature.
const childEnv = "TIDEWAY_SHM_CHILD"

// nature is how a child differs from its parent.
type nature struct {
	Stall time.Duration // its stall limit, default a minute
	UID   int           // 0: the parent's
	Root  string        // its root directory
	NetNS bool          // a network namespace of its own
	PidNS bool          // a process namespace of its own
	Open  bool          // others of its user may look into it, which a new UID forbids
}

// become makes the process what n says.
func (n *nature) become() error {
	if n.NetNS {
		runtime.LockOSThread() // for good: this thread makes the socket
		if err := syscall.Unshare(syscall.CLONE_NEWNET); err != nil {
			return err
		}
	}
	if n.Root != "" {
		if err := syscall.Chroot(n.Root); err != nil {
			return err
		}
		if err := os.Chdir("/"); err != nil {
			return err
		}
	}
	if n.UID != 0 {
		if err := syscall.Setuid(n.UID); err != nil {
			return err
		}
	}
	if n.Open {
		return unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0)
	}
	return nil
}

// command is one line that a child obeys, and answers with a line.
type command struct {
	Do     string
	Name   string // of a buffer of the child
	Size   uint64
	Access segment.Access
	Key    uint64 // of a pattern
	Card   card   // of a peer
	Op     transport.Op
	Buffer *segment.Buffer // of that peer
	Offset uint64
}

// servant is the child's side.
type servant struct {
	*engine
	buffers map[string]*registry.Buffer
	peers   map[segment.Incarnation]transport.Endpoint
	tags    atomic.Uint64
	looping sync.WaitGroup
	halt    atomic.Bool
	counts  struct {
		sync.Mutex
		m map[string]int
	}
}

func child() {
	var n nature
	err := json.Unmarshal([]byte(os.Getenv(childEnv)), &n)
	if err == nil {
		err = n.become()
	}
	var e *engine
	if err == nil {
		err = New().Probe(context.Background())
	}
	if err == nil {
		e, err = newEngine(options{stall: n.Stall})
	}
	if err != nil {
		fmt.Println("no engine:", err)
		os.Exit(1)
	}
	s := &servant{engine: e, buffers: map[string]*registry.Buffer{}, peers: map[segment.Incarnation]transport.Endpoint{}}
	s.counts.m = map[string]int{}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for n := 1; lines.Scan(); n++ {
		var c command
		var reply any
		err := json.Unmarshal(lines.Bytes(), &c)
		if err == nil {
			reply, err = s.obey(&c)
		}
		if err != nil {
			reply = map[string]string{"Err": err.Error()}
		}
		text, _ := json.Marshal(reply)
		fmt.Printf("#%d %s\n", n, text)
	}
	if err := s.close(); err != nil {
		fmt.Println("close:", err)
		os.Exit(1)
	}
}

func (s *servant) obey(c *command) (reply any, err error) {
	b := s.buffers[c.Name]
	switch c.Do {
	case "card":
		return s.card(), nil
	case "alloc":
		b, err = s.alloc(c.Name, c.Size, c.Access)
	case "heap":
		b, err = s.heap(c.Name, c.Size, c.Access)
	case "fill":
		testenv.Fill(b.Bytes(), testenv.KeyOf(c.Key, 0), 0)
		return nil, nil
	case "verify":
		return nil, verify(b.Bytes()[:c.Size], c.Key)
	case "close":
		return nil, b.Close(context.Background())
	case "connect":
		s.peers[c.Card.Incarnation], err = s.tr.Connect(context.Background(), s.meet(c.Card))
		return nil, err
	case "move":
		p := pattern(int(c.Size), c.Key)
		if c.Op == transport.Read {
			clear(p)
		}
		done := s.one(c, p)
		if done.Code == errs.OK {
			err = verify(p, c.Key)
		}
		return done.Code.String(), err
	case "loop":
		s.halt.Store(false)
		s.looping.Go(func() { s.loop(c) })
		return nil, nil
	case "counts":
		s.counts.Lock()
		defer s.counts.Unlock()
		return maps.Clone(s.counts.m), nil
	case "halt":
		s.halt.Store(true)
		s.looping.Wait()
		return s.counts.m, nil
	default:
		return nil, fmt.Errorf("what is %q", c.Do)
	}
	if err != nil {
		return nil, err
	}
	s.buffers[c.Name] = b
	return b.Desc(), nil
}

// one posts one slice and waits for its end.
func (s *servant) one(c *command, p []byte) transport.Completion {
	tag := transport.Tag(s.tags.Add(1))
	ep := s.peers[c.Card.Incarnation]
	if _, err := ep.Post([]transport.Slice{{Op: c.Op, Local: p, Buffer: c.Buffer, Offset: c.Offset, Tag: tag}}); err != nil {
		return transport.Completion{Code: errs.Of(err), Err: err}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		if done, ok := s.mu.done[tag]; ok {
			delete(s.mu.done, tag)
			return done
		}
		s.mu.changed.Wait()
	}
}

// loop does the same again and again, and counts how it ends.
func (s *servant) loop(c *command) {
	p := pattern(int(c.Size), c.Key)
	for !s.halt.Load() {
		code := s.one(c, p).Code.String()
		s.counts.Lock()
		s.counts.m[code]++
		s.counts.Unlock()
	}
}

// process is a child as the test sees it.
type process struct {
	*testenv.Process
	t     testing.TB
	in    io.WriteCloser
	asked int
	card  card
}

// spawn starts a child.
func spawn(t testing.TB, n nature) *process {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	args := []string{exe, "-test.run=^$"}
	if n.PidNS {
		args = append([]string{testenv.NeedTool(t, "unshare"), "--pid", "--fork", "--kill-child"}, args...)
	}
	text, err := json.Marshal(n)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), childEnv+"="+string(text))
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{Process: testenv.StartCmd(t, cmd), t: t, in: in}
	t.Cleanup(func() { _ = in.Close() })
	p.ask(&p.card, command{Do: "card"})
	return p
}

// tell sends a command without waiting for the reply, which await reads.
func (p *process) tell(c command) {
	p.t.Helper()
	line, err := json.Marshal(c)
	if err == nil {
		_, err = p.in.Write(append(line, '\n'))
	}
	if err != nil {
		p.t.Fatalf("tell the child to %s: %v", c.Do, err)
	}
	p.asked++
}

// reply waits for the reply to the last command and decodes it into out, if not
// nil. What went wrong in the child is the error.
func (p *process) reply(out any) error {
	p.t.Helper()
	text := []byte(p.Expect(60*time.Second, fmt.Sprintf(`(?m)^#%d (.*)$`, p.asked))[1])
	var failed struct{ Err string }
	if json.Unmarshal(text, &failed) == nil && failed.Err != "" {
		return fmt.Errorf("in the child: %s", failed.Err)
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(text, out)
}

// ask gives a command and fails the test if it goes wrong.
func (p *process) ask(out any, c command) {
	p.t.Helper()
	p.tell(c)
	if err := p.reply(out); err != nil {
		p.t.Fatalf("%s: %v", c.Do, err)
	}
}

// try gives a command and returns what went wrong.
func (p *process) try(c command) error {
	p.t.Helper()
	p.tell(c)
	return p.reply(nil)
}

// buffer makes a buffer in the child: kind is alloc or heap.
func (p *process) buffer(kind, name string, size uint64, access segment.Access) *segment.Buffer {
	p.t.Helper()
	b := new(segment.Buffer)
	p.ask(b, command{Do: kind, Name: name, Size: size, Access: access})
	return b
}

// code does one slice in the child and returns how it ended.
func (p *process) code(c command) string {
	p.t.Helper()
	c.Do = "move"
	var code string
	p.ask(&code, c)
	return code
}
