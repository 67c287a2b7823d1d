package shm

import (
	"errors"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/testenv"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
)

// kinds are the ways to have memory: mapped by peers, reached by attach.
var kinds = []string{"alloc", "heap"}

// each runs f for both kinds of memory, looking for what it leaves behind.
func each(t *testing.T, f func(t *testing.T, kind string)) {
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			testenv.Leak(t)
			f(t, kind)
		})
	}
}

// TestTwoProcesses moves patterns between two real processes, both ways. The
// owner looks for itself.
func TestTwoProcesses(t *testing.T) {
	each(t, func(t *testing.T, kind string) {
		e, p := start(t, options{}), spawn(t, nature{})
		ep := e.connect(p.card)
		size := 9 << 20
		if kind == "alloc" {
			size += wideSlice // so long that several copy it
		}
		b := p.buffer(kind, "b", uint64(size), segment.ReadWrite)
		for key, n := range []int{1, 4095, 64<<10 + 1, 300_000, 1 << 20, 5<<20 + 3, size} {
			data, key := pattern(n, uint64(key)), uint64(key)
			e.ok(e.do(ep, transport.Write, data, b, 0))
			p.ask(nil, command{Do: "verify", Name: "b", Size: uint64(n), Key: key})
			p.ask(nil, command{Do: "fill", Name: "b", Key: key + 100})
			e.ok(e.do(ep, transport.Read, data, b, 0))
			if err := verify(data, key+100); err != nil {
				t.Fatal(err)
			}
		}
		if in, out := ep.Observe()[0].BytesIn, ep.Observe()[0].BytesOut; in < uint64(size) || out < uint64(size) || ep.inFlight.Load() != 0 {
			t.Errorf("%d bytes in, %d out, %d in flight", in, out, ep.inFlight.Load())
		}
		for _, c := range []struct {
			name   string
			op     transport.Op
			access segment.Access
			want   errs.Code
		}{{"ro", transport.Write, segment.RemoteRead, errs.Denied}, {"wo", transport.Read, segment.RemoteWrite, errs.Denied}, {"lo", transport.Read, segment.LocalOnly, errs.Denied}} {
			forged := *p.buffer(kind, c.name, 8192, c.access)
			forged.Access = segment.ReadWrite
			if got := e.do(ep, c.op, make([]byte, 100), &forged, 0); got.Code != c.want {
				t.Errorf("%v of a buffer that is %s: %v", c.op, c.name, got.Code)
			}
		}
		p.ask(nil, command{Do: "close", Name: "b"})
		for _, op := range []transport.Op{transport.Read, transport.Write} {
			if got := e.do(ep, op, make([]byte, 100), b, 0); got.Code != errs.Revoked {
				t.Errorf("%v of a closed buffer: %v", op, got.Code)
			}
		}
	})
}

// names lists a directory, as a string to compare.
func names(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return strings.Join(out, " ")
}

// TestB27KilledOwner kills the owner of memory while it is read and written.
func TestB27KilledOwner(t *testing.T) {
	before := names(t, "/dev/shm")
	each(t, func(t *testing.T, kind string) {
		for _, op := range []transport.Op{transport.Read, transport.Write} {
			e, p := start(t, options{}), spawn(t, nature{})
			const n = 2 << 20
			ep, b := e.connect(p.card), p.buffer(kind, "b", 4*n, segment.ReadWrite)
			local := make([]byte, n)
			e.ok(e.do(ep, op, local, b, 0))
			var tags []transport.Tag
			for i := range 64 {
				tags = append(tags, e.post(ep, transport.Slice{Op: op, Local: local, Buffer: b, Offset: uint64(i % 4 * n)})...)
			}
			p.Kill()
			for _, c := range e.await(tags...) {
				if c.Code != errs.OK && c.Code != errs.LaneLost || c.InDoubt {
					t.Errorf("%v: a slice ended with %v, in doubt: %v", op, c.Code, c.InDoubt)
				}
			}
			testenv.Eventually(t, 5*time.Second, func() bool {
				return e.do(ep, op, local, b, 0).Code == errs.LaneLost
			}, "the endpoint notices the death")
			if _, err := e.tr.Connect(t.Context(), p.card.desc()); !errors.Is(err, errs.ErrUnsupported) {
				t.Errorf("connect to a dead process: %v", err)
			}
		}
	})
	if after := names(t, "/dev/shm"); after != before {
		t.Errorf("/dev/shm had %q, now %q", before, after)
	}
}

// TestStoppedOwner stops the owner: what needs only memory goes on, what needs
// an answer ends in time, and nothing comes late.
func TestStoppedOwner(t *testing.T) {
	each(t, func(t *testing.T, kind string) {
		e, p := start(t, options{stall: time.Second}), spawn(t, nature{})
		const n = 100_000
		ep, b := e.connect(p.card), p.buffer(kind, "b", n, segment.ReadWrite)
		e.ok(e.do(ep, transport.Write, pattern(n, 1), b, 0))
		p.Stop()
		local := make([]byte, n)
		e.ok(e.do(ep, transport.Read, local, b, 0))
		if err := verify(local, 1); err != nil {
			t.Error(err)
		}
		began := time.Now()
		c := e.do(ep, transport.Write, pattern(n, 2), b, 0)
		switch {
		case kind == "alloc":
			e.ok(c)
		case c.Code != errs.Unresponsive || c.InDoubt:
			t.Errorf("a WRITE that nobody pulls ended with %v, in doubt: %v", c.Code, c.InDoubt)
		case time.Since(began) > 3*time.Second:
			t.Errorf("it ended after %v", time.Since(began))
		}
		if err := ep.Close(); err != nil {
			t.Error(err)
		}
		p.Cont()
		key := uint64(1)
		if kind == "alloc" {
			key = 2
		}
		p.ask(nil, command{Do: "verify", Name: "b", Size: n, Key: key})
	})
}

// TestCancelWithStoppedOwner: what the target has not claimed is quiet at once.
func TestCancelWithStoppedOwner(t *testing.T) {
	e, p := start(t, options{}), spawn(t, nature{})
	const n = 100_000
	ep, b := e.connect(p.card), p.buffer("heap", "b", n, segment.ReadWrite)
	late := p.buffer("alloc", "late", n, segment.ReadWrite) // its memory must be asked for
	p.Stop()
	data := pattern(n, 7)
	tags := e.post(ep, transport.Slice{Op: transport.Write, Local: data, Buffer: b}, transport.Slice{Op: transport.Write, Local: data, Buffer: late},
		transport.Slice{Op: transport.Read, Local: make([]byte, 10), Buffer: &segment.Buffer{Key: 12345}})
	began := time.Now()
	ep.Cancel(tags)
	for _, c := range e.await(tags...) {
		if c.Code != errs.Canceled || c.InDoubt {
			t.Errorf("a cancelled slice ended with %v, in doubt: %v", c.Code, c.InDoubt)
		}
	}
	if took := time.Since(began); took > time.Second {
		t.Errorf("Cancel took %v", took)
	}
	clear(data)
	p.Cont()
	e.ok(e.do(ep, transport.Write, pattern(10, 8), b, 0)) // behind what was cancelled
	local := make([]byte, n)
	e.ok(e.do(ep, transport.Read, local, b, 0))
	e.ok(e.do(ep, transport.Read, local[:1], late, 0))
	if slices.ContainsFunc(local[10:], func(b byte) bool { return b != 0 }) {
		t.Error("a cancelled WRITE arrived")
	}
}

// TestKilledInitiator kills a process that reads and writes here.
func TestKilledInitiator(t *testing.T) {
	each(t, func(t *testing.T, kind string) {
		e := start(t, options{})
		const n = 4 << 20
		b, err := e.engine.heap("b", n, segment.ReadWrite)
		if kind == "alloc" {
			b, err = e.engine.alloc("a", n, segment.ReadWrite)
		}
		e.must(b, err)
		for _, op := range []transport.Op{transport.Read, transport.Write} {
			p := spawn(t, nature{})
			p.ask(nil, command{Do: "connect", Card: e.card()})
			p.ask(nil, command{Do: "loop", Op: op, Card: e.card(), Buffer: b.Desc(), Size: n, Key: 3})
			testenv.Eventually(t, 10*time.Second, func() bool { return op == transport.Read || b.Bytes()[n-1] != 0 }, "bytes arrive")
			p.Kill()
		}
		testenv.Eventually(t, 5*time.Second, func() bool {
			e.tr.in.Lock()
			defer e.tr.in.Unlock()
			return len(e.tr.in.links) == 0
		}, "the links of dead peers end")
		if err := b.TryClose(); err != nil {
			t.Errorf("nobody is there, but %v", err)
		}
	})
}

// TestStoppedInitiator stops a process in the middle of copies into memory here,
// closes the buffer, and uses new memory. When the process wakes, it writes
// nowhere that is used.
func TestStoppedInitiator(t *testing.T) {
	each(t, func(t *testing.T, kind string) {
		e, p := start(t, options{}), spawn(t, nature{})
		p.ask(nil, command{Do: "connect", Card: e.card()})
		const n = 8 << 20
		rounds := 10
		if testing.Short() {
			rounds = 3
		}
		for round := range rounds {
			b, err := e.engine.heap("b", n, segment.ReadWrite)
			if kind == "alloc" {
				b, err = e.engine.alloc("a", n, segment.ReadWrite)
			}
			e.must(b, err)
			p.ask(nil, command{Do: "loop", Op: transport.Write, Card: e.card(), Buffer: b.Desc(), Size: n, Key: 3})
			at := (round*850_021 + n/2) % n // somewhere else each time
			testenv.Eventually(t, 10*time.Second, func() bool { return b.Bytes()[at] != 0 || b.Bytes()[at/2] != 0 }, "bytes arrive")
			p.Stop()
			memory := b.Bytes()
			if err := b.Close(t.Context()); err != nil {
				t.Fatalf("close while the peer is stopped: %v", err)
			}
			var used [][]byte
			if kind == "heap" { // here it stays ours
				used = append(used, memory)
			}
			for range 2 {
				next, free, err := e.tr.Alloc(n, "")
				if err != nil {
					t.Fatal(err)
				}
				defer free()
				used = append(used, next)
			}
			for i := range used {
				testenv.Fill(used[i], testenv.KeyOf(50, 0), 0)
			}
			p.Cont()
			testenv.Eventually(t, 10*time.Second, func() bool { return e.quiet(b.Desc(), p) }, "the peer finds out")
			counts := map[string]int{}
			p.ask(&counts, command{Do: "halt"})
			if delete(counts, "ok"); len(counts) > 1 || len(counts) == 1 && counts["revoked"] == 0 {
				t.Errorf("the peer's slices ended with %v, want ok or revoked", counts)
			}
			for i := range used {
				if err := verify(used[i], 50); err != nil {
					t.Fatalf("round %d: memory that is used again was written: %v", round, err)
				}
			}
		}
	})
}

// quiet reports whether the child's next slice to b finds it closed.
func (e *testEngine) quiet(b *segment.Buffer, p *process) bool {
	return p.code(command{Op: transport.Write, Card: e.card(), Buffer: b, Size: 1}) == "revoked"
}

// TestRestartedOwner: the handles of one life say nothing about the next.
func TestRestartedOwner(t *testing.T) {
	e := start(t, options{})
	for _, kind := range kinds {
		p := spawn(t, nature{})
		ep, b := e.connect(p.card), p.buffer(kind, "b", 4096, segment.ReadWrite)
		e.ok(e.do(ep, transport.Write, pattern(4096, 1), b, 0))
		p.Kill()
		q := spawn(t, nature{})
		q.buffer(kind, "b", 4096, segment.ReadWrite)
		again := e.connect(q.card)
		for _, at := range []*endpoint{ep, again} {
			for _, op := range []transport.Op{transport.Read, transport.Write} {
				if c := e.do(at, op, make([]byte, 10), b, 0); c.Code == errs.OK {
					t.Errorf("%s: %v with a handle of a former life succeeded", kind, op)
				}
			}
		}
		q.ask(nil, command{Do: "verify", Name: "b", Size: 0})
		old := q.card
		old.Incarnation ^= 1
		if _, err := e.tr.Connect(t.Context(), e.meet(old)); errs.Of(err) != errs.Restarted {
			t.Errorf("another incarnation: %v", err)
		}
	}
}

// TestDrainAndCloseAcross: a target that shuts down says so to a process that has
// its memory mapped.
func TestDrainAndCloseAcross(t *testing.T) {
	e := start(t, options{})
	b := e.must(e.alloc("b", 1<<20, segment.ReadWrite))
	p := spawn(t, nature{})
	p.ask(nil, command{Do: "connect", Card: e.card()})
	p.ask(nil, command{Do: "loop", Op: transport.Write, Card: e.card(), Buffer: b.Desc(), Size: 1 << 20, Key: 3})
	testenv.Eventually(t, 10*time.Second, func() bool { return b.Bytes()[1<<20-1] != 0 }, "bytes arrive")
	if err := e.tr.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	testenv.Poison(b.Bytes())
	want := slices.Clone(b.Bytes())
	counts := map[string]int{}
	testenv.Eventually(t, 10*time.Second, func() bool {
		p.ask(&counts, command{Do: "counts"})
		return counts["draining"] != 0
	}, "the peer is told")
	p.ask(&counts, command{Do: "halt"})
	if !slices.Equal(b.Bytes(), want) {
		t.Error("bytes arrived after Drain returned")
	}
	if counts["ok"] == 0 || len(counts) != 2 {
		t.Errorf("the peer's slices ended with %v", slices.Collect(maps.Keys(counts)))
	}
	if err := p.try(command{Do: "connect", Card: e.card()}); err == nil || !strings.Contains(err.Error(), "shutting down") {
		t.Errorf("connect to a draining engine: %v", err)
	}
}

// TestElsewhere: peers that cannot be reached, or not wholly, and what is said
// about it.
func TestElsewhere(t *testing.T) {
	testenv.NeedRoot(t)
	for _, c := range []struct {
		name string
		n    nature
		want string
	}{
		{"another user", nature{UID: 65534}, "user 65534"},
		{"another network namespace", nature{NetNS: true}, "network namespace"},
	} {
		t.Run(c.name, func(t *testing.T) {
			e, p := start(t, options{}), spawn(t, c.n)
			for range 2 { // the second time from memory
				_, err := e.tr.Connect(t.Context(), e.meet(p.card))
				if !errors.Is(err, errs.ErrUnsupported) || !strings.Contains(err.Error(), c.want) {
					t.Errorf("connect: %v; want unsupported, and %q", err, c.want)
				}
			}
			e.skew.Store(int64(2 * refusalTime))
			if err := e.tr.remembered(p.card.Incarnation); err != nil {
				t.Errorf("still remembered after its time: %v", err)
			}
			if err := p.try(command{Do: "connect", Card: e.card()}); err == nil || !strings.Contains(err.Error(), "unsupported") {
				t.Errorf("connect from there: %v", err)
			}
		})
	}
	t.Run("another process namespace", func(t *testing.T) {
		e, p := start(t, options{}), spawn(t, nature{PidNS: true})
		ep := e.connect(p.card)
		data := pattern(10_000, 1)
		e.ok(e.do(ep, transport.Write, data, p.buffer("alloc", "a", 10_000, segment.ReadWrite), 0))
		p.ask(nil, command{Do: "verify", Name: "a", Size: 10_000, Key: 1})
		b := p.buffer("heap", "b", 10_000, segment.ReadWrite)
		e.ok(e.do(ep, transport.Read, data, b, 0)) // it can be seen from here
		c := e.do(ep, transport.Write, data, b, 0) // but not this process from there
		if c.Code != errs.Unsupported || c.Err == nil || !strings.Contains(c.Err.Error(), "process namespace") {
			t.Errorf("a WRITE that the peer cannot pull: %v (%v)", c.Code, c.Err)
		}
	})
}

// TestNotDumpable: two unprivileged processes of one user, of which only one lets
// others look into it. Mapped memory does not mind; attach works the one way only.
func TestNotDumpable(t *testing.T) {
	testenv.NeedRoot(t)
	const size = 100_000
	open, shut := spawn(t, nature{UID: 65534, Open: true}), spawn(t, nature{UID: 65534})
	for _, c := range []struct {
		name        string
		owner, peer *process
		op          transport.Op
		heap        errs.Code
	}{
		{"read what is open", open, shut, transport.Read, errs.OK},
		{"write from what is shut", open, shut, transport.Write, errs.Unsupported},
		{"read what is shut", shut, open, transport.Read, errs.Unsupported},
		{"write from what is open", shut, open, transport.Write, errs.OK},
	} {
		c.peer.ask(nil, command{Do: "connect", Card: c.owner.card})
		for kind, want := range map[string]errs.Code{"alloc": errs.OK, "heap": c.heap} {
			b := c.owner.buffer(kind, kind, size, segment.ReadWrite)
			c.owner.ask(nil, command{Do: "fill", Name: kind, Key: 1})
			key := uint64(1)
			if c.op == transport.Write {
				key = 2
			}
			if got := c.peer.code(command{Op: c.op, Card: c.owner.card, Buffer: b, Size: size, Key: key}); got != want.String() {
				t.Errorf("%s, %s: %s, want %v", c.name, kind, got, want)
			}
			if want != errs.OK {
				key = 1 // nothing has changed
			}
			c.owner.ask(nil, command{Do: "verify", Name: kind, Size: size, Key: key})
			c.owner.ask(nil, command{Do: "close", Name: kind})
		}
	}
}

// TestEmptyRoot runs a child that has no /proc, no /dev/shm, nothing.
func TestEmptyRoot(t *testing.T) {
	testenv.NeedRoot(t)
	e, p := start(t, options{}), spawn(t, nature{Root: t.TempDir()})
	ep := e.connect(p.card)
	for _, kind := range kinds {
		b := p.buffer(kind, kind, 1<<20, segment.ReadWrite)
		e.ok(e.do(ep, transport.Write, pattern(1<<20, 1), b, 0))
		p.ask(nil, command{Do: "verify", Name: kind, Size: 1 << 20, Key: 1})
	}
	local := e.must(e.alloc("b", 1<<20, segment.ReadWrite))
	p.ask(nil, command{Do: "connect", Card: e.card()})
	if code := p.code(command{Op: transport.Write, Card: e.card(), Buffer: local.Desc(), Size: 1 << 20, Key: 4}); code != "ok" {
		t.Errorf("a WRITE from there ended with %s", code)
	}
	if err := verify(local.Bytes(), 4); err != nil {
		t.Error(err)
	}
}

// TestFileSizeLimit: a limit that would kill the process is an error instead.
func TestFileSizeLimit(t *testing.T) {
	e := start(t, options{})
	var before syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &before); err != nil {
		t.Fatal(err)
	}
	low := before
	low.Cur = 1 << 20
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &low); err != nil {
		t.Fatal(err)
	}
	defer syscall.Setrlimit(syscall.RLIMIT_FSIZE, &before)
	if _, _, err := e.tr.Alloc(2<<20, ""); !errors.Is(err, errs.ErrOverloaded) || !strings.Contains(err.Error(), "ulimit -f") {
		t.Errorf("2 MiB with a limit of 1 MiB: %v", err)
	}
}
