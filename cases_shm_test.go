package tideway_test

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tideway-io/tideway"
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
