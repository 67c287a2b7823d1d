package tideway_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tideway-io/tideway"
	"github.com/tideway-io/tideway/internal/testenv"
	"github.com/tideway-io/tideway/segment"
)

// insideEnv says that this process runs one test inside a host of a lab.
const insideEnv = "TIDEWAY_TEST_INSIDE"

// inside runs the test that calls it once more, as a process in the host, and
// takes over how that ended. The test asks isInside which of the two it is.
func inside(t *testing.T, h *testenv.Host) {
	t.Helper()
	args := h.Args(os.Args[0], "-test.v", "-test.count=1", "-test.run=^"+t.Name()+"$", "-test.short="+strconv.FormatBool(testing.Short()))
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	cmd.Env = append(os.Environ(), insideEnv+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	t.Logf("inside %s:\n%s", h.Netns, out)
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("inside the host it did not pass: %v", err)
	}
}

func isInside() bool { return os.Getenv(insideEnv) != "" }

// startIn starts a target process in a host.
func startIn(t testing.TB, h *testenv.Host, s spec) *target {
	t.Helper()
	return startTargetBy(t, s, h.Args()...)
}

// netCommand carries out one of these commands of a target process:
//
//	reason                             why its address is advertised
//	open ADDR                          open a segment
//	pull ADDR NAME RUN ROUND LENGTH    read from a peer, and verify
//	limit N                            let it open N more descriptors
//	crowd N SIZE                       open N more engines with a buffer "kv" each, and name them
//	reopen I SIZE                      close the crowd's engine I and open another at its address
func (tg *targetProcess) netCommand(f []string) (string, error) {
	num := func(i int) uint64 { n, _ := strconv.ParseUint(f[i], 0, 64); return n }
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	switch f[0] {
	case "reason":
		return tg.e.Inspect().AddrReason, nil
	case "open":
		_, err := tg.e.OpenSegment(ctx, f[1])
		return "ok", err
	case "pull":
		return "ok", pull(ctx, tg.e, f[1], f[2], testenv.KeyOf(num(3), num(4)), num(5))
	case "limit":
		return "ok", limitFiles(mostFiles() + int(num(1)))
	case "crowd":
		var addrs []string
		for range num(1) {
			addr, err := tg.join(ctx, "", num(2))
			if err != nil {
				return "", err
			}
			addrs = append(addrs, addr)
		}
		return strings.Join(addrs, " "), nil
	case "reopen":
		old := tg.crowd[num(1)]
		if err := old.Close(); err != nil {
			return "", err
		}
		if _, err := tg.join(ctx, old.Addr(), num(2)); err != nil {
			return "", err
		}
		last := len(tg.crowd) - 1
		tg.crowd[num(1)], tg.crowd = tg.crowd[last], tg.crowd[:last]
		return "ok", nil
	}
	return "", fmt.Errorf("unknown command %q", f[0])
}

// join adds an engine to the crowd.
func (tg *targetProcess) join(ctx context.Context, listen string, size uint64) (string, error) {
	e, err := tideway.Open(ctx, tideway.Config{Listen: listen})
	if err != nil {
		return "", err
	}
	tg.crowd = append(tg.crowd, e)
	_, err = e.Alloc(size, tideway.BufferOptions{Name: "kv", Access: segment.ReadWrite})
	return e.Addr(), err
}

func (tg *targetProcess) close() error {
	failed := []error{tg.e.Close()}
	for _, e := range tg.crowd {
		failed = append(failed, e.Close())
	}
	return errors.Join(failed...)
}

// pull reads n bytes of a peer's buffer and verifies them.
func pull(ctx context.Context, e *tideway.Engine, addr, name string, key testenv.Key, n uint64) error {
	s, err := e.OpenSegment(ctx, addr)
	if err != nil {
		return err
	}
	defer s.Close()
	b, err := s.Buffer(ctx, name)
	if err != nil {
		return err
	}
	p := make([]byte, n)
	if _, err := b.ReadAt(ctx, p, 0); err != nil {
		return err
	}
	return testenv.Verify(p, key, 0)
}
