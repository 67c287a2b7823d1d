package tideway_test

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tideway-io/tideway"
	"github.com/tideway-io/tideway/inspect"
	"github.com/tideway-io/tideway/internal/testenv"
	"github.com/tideway-io/tideway/segment"
)

// everything is the default, for tests that are about the choice itself.
func everything() tideway.Config {
	return tideway.Config{Transports: []string{"memory", "shm", "tcp"}}
}

// TestSharedMemoryIsTheDefault: two engines of one host take it without being
// told, for memory of every origin, and go by tcp where one side has no more.
func TestSharedMemoryIsTheDefault(t *testing.T) {
	owner, err := tideway.Open(t.Context(), tideway.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = owner.Close() })
	kv := alloc(t, owner, "kv", 1<<20, segment.ReadWrite)
	heap := make([]byte, 1<<20)
	if _, err := owner.Register(heap, tideway.BufferOptions{Name: "heap", Access: segment.ReadWrite}); err != nil {
		t.Fatal(err)
	}
	for want, cfg := range map[string]tideway.Config{"shm": everything(), "tcp": {Transports: []string{"memory", "tcp"}}} {
		e := open(t, cfg)
		for _, name := range []string{"kv", "heap"} {
			_, b := find(t, e, owner.Addr(), name)
			data := pattern(1<<20, testenv.KeyOf(27, uint64(len(name)+len(want)+int(want[0]))), 0)
			batch, err := e.Submit(t.Context(), tideway.Request{Op: tideway.Write, Local: tideway.Bytes(data), Remote: b.At(0)})
			if err != nil {
				t.Fatal(err)
			}
			if err := batch.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			for _, r := range batch.Results() {
				if r.Transport != want {
					t.Errorf("%s went by %q, want %s", name, r.Transport, want)
				}
			}
			at := kv.Bytes()
			if name == "heap" {
				at = heap
			}
			if !slices.Equal(at, data) {
				t.Errorf("%s over %s: the bytes did not arrive", name, want)
			}
		}
	}
}

// TestAttachDenied: where one side may not read the other's memory, what is not
// mapped goes by tcp, in both directions and with the right bytes.
func TestAttachDenied(t *testing.T) {
	const size = 300_000
	key := testenv.KeyOf(271, 0)
	tg := startTarget(t, spec{Config: targetConfig{NoAttach: true}, Buffers: []targetBuffer{
		{Name: "kv", Size: size, Access: segment.ReadWrite, Key: key}, {Name: "heap", Size: size, Access: segment.ReadWrite, Key: key, Heap: true},
	}})
	e := open(t, everything())
	own := make([]byte, size)
	testenv.Fill(own, testenv.KeyOf(272, 0), 0)
	if _, err := e.Register(own, tideway.BufferOptions{Name: "heap", Access: segment.ReadWrite}); err != nil {
		t.Fatal(err)
	}
	tg.must("pull %s heap 272 0 %d", e.Addr(), size) // it may not read this process
	for name, want := range map[string][2]string{"kv": {"shm", "shm"}, "heap": {"shm", "tcp"}} {
		_, b := find(t, e, tg.Addr, name)
		p := make([]byte, size)
		if got := carried(t, e, tideway.Request{Op: tideway.Read, Local: tideway.Bytes(p), Remote: b.At(0)}); got != want[0] {
			t.Errorf("%s is read by %s, want %s", name, got, want[0])
		}
		if err := testenv.Verify(p, key, 0); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		testenv.Fill(p, testenv.KeyOf(273, 0), 0)
		if got := carried(t, e, tideway.Request{Op: tideway.Write, Local: tideway.Bytes(p), Remote: b.At(0)}); got != want[1] {
			t.Errorf("%s is written by %s, want %s", name, got, want[1])
		}
		tg.must("verify %s 273 0 0 %d", name, size)
	}
	snap := e.Inspect()
	if i := slices.IndexFunc(snap.Peers, func(p inspect.Peer) bool {
		return slices.ContainsFunc(p.Paths, func(q inspect.Path) bool {
			return q.Transport == "shm" && len(q.Rails) == 1 && strings.Contains(q.Rails[0].Remote, "not permitted")
		})
	}); i < 0 {
		t.Errorf("no path says what is not permitted: %+v", snap.Peers)
	}
}

// carried does one request and returns the transport that carried it.
func carried(t *testing.T, e *tideway.Engine, r tideway.Request) (by string) {
	t.Helper()
	b, err := e.Submit(t.Context(), r)
	if err == nil {
		err = b.Wait(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range b.Results() {
		by = r.Transport
	}
	return by
}

// TestManySmallAllocs: small buffers beyond what descriptors allow are made all
// the same, of memory that is not mapped, and leave descriptors for connections.
func TestManySmallAllocs(t *testing.T) {
	const files, buffers = 240, 230
	s := spec{Config: targetConfig{Files: files}}
	for i := range uint64(buffers) {
		s.Buffers = append(s.Buffers, targetBuffer{Name: fmt.Sprint("kv", i), Size: 4096, Access: segment.ReadWrite, Key: testenv.KeyOf(275, i)})
	}
	tg := startTarget(t, s)
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", tg.cmd.Process.Pid))
	if err != nil || len(fds) < files/2 || len(fds) > files/2+30 {
		t.Errorf("the target has %d descriptors open for %d buffers (%v), want %d and a few", len(fds), buffers, err, files/2)
	}
	for _, cfg := range []tideway.Config{everything(), {Transports: []string{"memory", "tcp"}}} {
		e := open(t, cfg)
		for _, i := range []uint64{0, buffers / 2, buffers - 1} {
			if err := pull(t.Context(), e, tg.Addr, fmt.Sprint("kv", i), testenv.KeyOf(275, i), 4096); err != nil {
				t.Errorf("buffer %d of %d: %v", i, buffers, err)
			}
		}
	}
}

// TestExplainOutOfReach: a peer of another user goes by tcp, and Explain says why.
func TestExplainOutOfReach(t *testing.T) {
	testenv.NeedRoot(t)
	tg := startTarget(t, spec{Config: targetConfig{UID: 65534}, Buffers: []targetBuffer{{Name: "kv", Size: 4096, Access: segment.ReadWrite}}})
	e := open(t, everything())
	_, kv := find(t, e, tg.Addr, "kv")
	req := tideway.Request{Op: tideway.Write, Local: tideway.Bytes(pattern(4096, testenv.KeyOf(274, 0), 0)), Remote: kv.At(0)}
	reason := func() string {
		x, err := e.Explain(t.Context(), req)
		if err != nil || x.Err != nil {
			t.Fatal(err, x.Err)
		}
		i := slices.IndexFunc(x.Candidates, func(c tideway.Candidate) bool { return c.Transport == "shm" })
		return x.Candidates[i].Reason
	}
	if got := reason(); got != "first choice" {
		t.Errorf("before it was tried, shm is explained by %q", got)
	}
	if by := carried(t, e, req); by != "tcp" {
		t.Errorf("carried by %s, want tcp", by)
	}
	tg.must("verify kv 274 0 0 4096")
	if got := reason(); !strings.Contains(got, "user 65534") {
		t.Errorf("shm is explained by %q, want that the peer runs as user 65534", got)
	}
}

// TestB27SharedMemory kills the owner of memory that is mapped here, again and
// again, and starts another one in its place.
func TestB27SharedMemory(t *testing.T) {
	before := listing(t, "/dev/shm")
	addr := freeAddr(t)
	cfg := everything()
	cfg.StallTimeout = time.Second
	e := open(t, cfg)
	const size = 8 << 20
	for round := range uint64(3) {
		tg := startTarget(t, spec{Config: targetConfig{Listen: addr}, Buffers: []targetBuffer{{Name: "kv", Size: size, Access: segment.ReadWrite}}})
		_, kv := find(t, e, addr, "kv")
		key := testenv.KeyOf(270, round)
		if _, err := kv.WriteAt(t.Context(), pattern(size, key, 0), 0); err != nil {
			t.Fatal(err)
		}
		tg.must("verify kv 270 %d 0 %d", round, size)
		reqs := make([]tideway.Request, 64)
		for i := range reqs {
			reqs[i] = tideway.Request{Op: tideway.Write, Local: tideway.Bytes(make([]byte, size)), Remote: kv.At(0)}
		}
		b, err := e.Submit(t.Context(), reqs...)
		if err != nil {
			t.Fatal(err)
		}
		tg.kill()
		if err := b.Wait(t.Context()); err != nil && !errors.Is(err, tideway.ErrUnreachable) && !errors.Is(err, tideway.ErrStale) {
			t.Errorf("round %d: %v", round, err)
		}
		testenv.Eventually(t, 5*time.Second, func() bool {
			_, err := kv.WriteAt(t.Context(), []byte("x"), 0)
			return errors.Is(err, tideway.ErrUnreachable) || errors.Is(err, tideway.ErrStale)
		}, "the old handle fails")
	}
	if after := listing(t, "/dev/shm"); after != before {
		t.Errorf("/dev/shm had %q, now %q", before, after)
	}
}

// listing is a directory as one string.
func listing(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return strings.Join(names, " ")
}
