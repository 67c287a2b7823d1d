package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tideway-io/tideway"
	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/mooncake"
	"github.com/tideway-io/tideway/internal/testenv"
	"github.com/tideway-io/tideway/metadata"
	"github.com/tideway-io/tideway/metadata/all"
)

// storeKind is one kind of metadata store with its real server.
type storeKind struct {
	name  string
	start func(t *testing.T) *testenv.StoreServer
	url   string // with %s for the server's address
}

func storeKinds() []storeKind {
	return []storeKind{
		{"http", func(t *testing.T) *testenv.StoreServer {
			addr := testenv.FreeAddr(t)
			return testenv.StartStore(t, addr, "", "tideway", "metadata", "serve", "--listen", addr)
		}, "http://%s/metadata"},
		{"database", func(t *testing.T) *testenv.StoreServer {
			addr, db := testenv.FreeAddr(t), filepath.Join(t.TempDir(), "db")
			return testenv.StartStore(t, addr, db, "tideway", "metadata", "serve", "--listen", addr, "--database", db)
		}, "http://%s/metadata"},
		{"etcd", func(t *testing.T) *testenv.StoreServer { return testenv.Etcd(t) }, "etcd://%s"},
		{"redis", func(t *testing.T) *testenv.StoreServer { return testenv.Redis(t) }, "redis://%s"},
	}
}

// forStores runs a case against the kinds of store that are named.
func forStores(t *testing.T, names []string, f func(t *testing.T, k storeKind, s *testenv.StoreServer)) {
	testenv.NeedFull(t)
	for _, k := range storeKinds() {
		if slices.Contains(names, k.name) {
			t.Run(k.name, func(t *testing.T) { f(t, k, k.start(t)) })
		}
	}
}

func (k storeKind) at(addr string) string { return fmt.Sprintf(k.url, addr) }

// casePatience bounds the waits of cases with many processes.
const casePatience = time.Minute

// ttl is the shortest that all stores keep.
const ttl = time.Second

func openStore(t *testing.T, url string) all.Store {
	t.Helper()
	s, err := all.Open(url, func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// member opens an engine that finds others in the store at url, and is found
// there if it has a name.
func member(t *testing.T, url, name string) *tideway.Engine {
	t.Helper()
	e, err := tideway.Open(t.Context(), tideway.Config{
		Metadata: openStore(t, url), Name: name, MetadataTTL: ttl, ConnectTimeout: 2 * time.Second, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

// owner starts a process that serves memory under a name.
func owner(t *testing.T, url, name string) *testenv.Process {
	t.Helper()
	p := testenv.Start(t, "tideway", "serve", "--memory", "kv=1MiB", "--metadata", url, "--name", name, "--metadata-ttl", ttl.String())
	p.Expect(casePatience, "serving at ")
	return p
}

// opens reports whether e finds the buffer of the segment.
func opens(t *testing.T, e *tideway.Engine, name string) (*tideway.RemoteBuffer, error) {
	seg, err := e.OpenSegment(t.Context(), name)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { seg.Close() })
	return seg.Buffer(t.Context(), "kv")
}

// mover writes and reads back a fresh pattern, again and again.
type mover struct {
	t      *testing.T
	rounds atomic.Uint64
	quit   chan struct{}
	done   chan error
}

func move(t *testing.T, kv *tideway.RemoteBuffer) *mover {
	m := &mover{t: t, quit: make(chan struct{}), done: make(chan error, 1)}
	go func() { m.done <- m.run(kv) }()
	return m
}

func (m *mover) run(kv *tideway.RemoteBuffer) error {
	p := make([]byte, kv.Len())
	for {
		select {
		case <-m.quit:
			return nil
		default:
		}
		key := testenv.KeyOf(8, m.rounds.Load()+1)
		testenv.Fill(p, key, 0)
		if _, err := kv.WriteAt(context.Background(), p, 0); err != nil {
			return err
		}
		testenv.Poison(p)
		if _, err := kv.ReadAt(context.Background(), p, 0); err != nil {
			return err
		}
		if err := testenv.Verify(p, key, 0); err != nil {
			return err
		}
		m.rounds.Add(1)
	}
}

// goesOn waits until so many more rounds are over.
func (m *mover) goesOn(rounds uint64) {
	m.t.Helper()
	want := m.rounds.Load() + rounds
	testenv.Eventually(m.t, casePatience, func() bool { return len(m.done) > 0 || m.rounds.Load() >= want }, "transfers go on")
	if len(m.done) > 0 {
		m.t.Fatal("transfers ended: ", <-m.done)
	}
}

func (m *mover) stop() {
	m.t.Helper()
	close(m.quit)
	if err := <-m.done; err != nil {
		m.t.Error(err)
	}
}

func has(e *tideway.Engine, condition string) bool {
	for _, c := range e.Inspect().Conditions {
		if c.Name == condition {
			return true
		}
	}
	return false
}

// TestB08StoreLosesEverything: the store is killed while bytes move, forgets
// everything, and comes back. Transfers go on, every engine is in the store again
// within a lease, and a new one finds them.
func TestB08StoreLosesEverything(t *testing.T) {
	forStores(t, []string{"http", "database", "etcd", "redis"}, func(t *testing.T, k storeKind, server *testenv.StoreServer) {
		url := k.at(server.Addr)
		owner(t, url, "team/b")
		a := member(t, url, "a")
		kv, err := opens(t, a, "team/b")
		if err != nil {
			t.Fatal(err)
		}
		m := move(t, kv)
		m.goesOn(1)
		for round := range 2 {
			server.Kill()
			testenv.Eventually(t, casePatience, func() bool { return has(a, "metadata_degraded") }, "metadata_degraded")
			m.goesOn(3)
			if _, err := opens(t, a, "nobody"); !errors.Is(err, tideway.ErrUnreachable) {
				t.Errorf("open without a store: %v, want unreachable", err)
			}
			server.Wipe()
			server.Restart()
			c := member(t, url, "c"+strconv.Itoa(round))
			testenv.Eventually(t, casePatience, func() bool { _, err := opens(t, c, "team/b"); return err == nil }, "the owner is published again")
			testenv.Eventually(t, casePatience, func() bool {
				_, err := opens(t, c, "a")
				return !errors.Is(err, tideway.ErrNotFound) || a.Inspect().Counts.Republished > 0
			}, "the other one, too")
			testenv.Eventually(t, casePatience, func() bool { return !has(a, "metadata_degraded") }, "metadata_degraded ends")
			m.goesOn(3)
		}
		if n := a.Inspect().Counts.Republished; n < 2 {
			t.Errorf("republished_total is %d, want 2", n)
		}
		m.stop()
	})
}

// TestStoreKilledAndBack: a store that keeps what it has is killed while bytes
// move. When it is back, names are found that nobody published again.
func TestStoreKilledAndBack(t *testing.T) {
	forStores(t, []string{"database", "etcd"}, func(t *testing.T, k storeKind, server *testenv.StoreServer) {
		url := k.at(server.Addr)
		if err := openStore(t, url).Put(t.Context(), "mooncake/ram/plain", []byte("{}")); err != nil {
			t.Fatal(err)
		}
		owner(t, url, "b")
		kv, err := opens(t, member(t, url, ""), "b")
		if err != nil {
			t.Fatal(err)
		}
		m := move(t, kv)
		for range 3 {
			m.goesOn(1)
			server.Kill()
			m.goesOn(1)
			server.Restart()
			s := openStore(t, url)
			testenv.Eventually(t, casePatience, func() bool {
				v, err := s.Get(t.Context(), "mooncake/ram/plain")
				return err == nil && string(v) == "{}"
			}, "what was put for good")
			e := member(t, url, "")
			testenv.Eventually(t, casePatience, func() bool { _, err := opens(t, e, "b"); return err == nil }, "the name")
		}
		m.stop()
	})
}

// engines is a program for TestB09DeadKeys: COUNT engines of the names PREFIXn,
// published at URL until the process is killed.
func engines() {
	count, _ := strconv.Atoi(os.Args[3])
	s, err := all.Open(os.Args[1], os.Getenv)
	for i, tries := 0, 0; i < count && err == nil; {
		_, err = tideway.Open(context.Background(), tideway.Config{
			Metadata: s, Name: os.Args[2] + strconv.Itoa(i), MetadataTTL: 3 * ttl, Logger: slog.New(slog.DiscardHandler),
		})
		switch {
		case err == nil:
			i++
		case tries < 20 && errors.Is(err, tideway.ErrUnreachable): // the machine is busy
			tries, err = tries+1, nil
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println("published")
	select {}
}

// left counts the keys of engines that are in the store, -1 if it did not say.
func left(t *testing.T, s metadata.Store, names []string) (n int) {
	t.Helper()
	for _, name := range names {
		for _, key := range []string{mooncake.AddrKey("", name), mooncake.DescKey("", name)} {
			_, err := s.Get(t.Context(), key)
			if err == nil {
				n++
			} else if !errors.Is(err, tideway.ErrNotFound) {
				return -1 // not known: the machine is busy
			}
		}
	}
	return n
}

// TestB09DeadKeys: 200 engines are killed; after two leases no key of them is
// left. Who watches one of the names sees it go, and come back.
func TestB09DeadKeys(t *testing.T) {
	const processes, each = 5, 40
	forStores(t, []string{"database", "etcd", "redis"}, func(t *testing.T, k storeKind, server *testenv.StoreServer) {
		url := k.at(server.Addr)
		s := openStore(t, url)
		var names []string
		var crowd []*testenv.Process
		for p := range processes {
			prefix := fmt.Sprintf("p%d-", p)
			crowd = append(crowd, testenv.Start(t, "engines", url, prefix, strconv.Itoa(each)))
			for i := range each {
				names = append(names, prefix+strconv.Itoa(i))
			}
		}
		for _, p := range crowd {
			p.Expect(casePatience, "published")
		}
		testenv.Eventually(t, casePatience, func() bool { return left(t, s, names) == 2*len(names) }, "every engine is there")
		seen := watchKey(t, s, mooncake.DescKey("", names[0]))
		seen.until(true)
		for _, p := range crowd {
			p.Kill()
		}
		testenv.Eventually(t, casePatience, func() bool { return left(t, s, names) == 0 }, "no dead key is left")
		seen.until(false)
		again := owner(t, url, names[0])
		seen.until(true)
		again.Signal(syscall.SIGTERM)
		within(t, again, casePatience, 0)
		if n := left(t, s, names[:1]); n != 0 {
			t.Errorf("%d keys are left after an orderly end", n)
		}
	})
}

// TestFrozenOwner: an owner is frozen for longer than its lease. Its name goes
// away meanwhile, and is back soon after it goes on.
func TestFrozenOwner(t *testing.T) {
	forStores(t, []string{"http", "etcd", "redis"}, func(t *testing.T, k storeKind, server *testenv.StoreServer) {
		url := k.at(server.Addr)
		s, names := openStore(t, url), []string{"b"}
		p := owner(t, url, "b")
		p.Stop()
		testenv.Eventually(t, casePatience, func() bool { return left(t, s, names) == 0 }, "the name of a frozen owner goes away")
		p.Cont()
		e := member(t, url, "")
		testenv.Eventually(t, casePatience, func() bool { _, err := opens(t, e, "b"); return err == nil }, "it is back")
	})
}

// watched is what a watch of a key saw last: 1 a value, 0 none.
type watched struct {
	t    *testing.T
	last atomic.Int32
}

func watchKey(t *testing.T, s metadata.Store, key string) *watched {
	w := &watched{t: t}
	w.last.Store(-1)
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	work.Go(func() {
		_ = s.(metadata.Watcher).Watch(ctx, key, func(v []byte) {
			if v == nil {
				w.last.Store(0)
			} else {
				w.last.Store(1)
			}
		})
	})
	t.Cleanup(func() { cancel(); work.Wait() })
	return w
}

func (w *watched) until(there bool) {
	w.t.Helper()
	want := int32(0)
	if there {
		want = 1
	}
	testenv.Eventually(w.t, casePatience, func() bool { return w.last.Load() == want }, "the watch sees that the key is there: ", there)
}

// TestB10StoreStopped: the store is frozen, or is there and never answers, while
// 20 engines ask it from 16 goroutines each. Every call ends, with an error that
// says why; open segments go on; when the store is back, so is everything.
func TestB10StoreStopped(t *testing.T) {
	forStores(t, []string{"http", "etcd", "redis"}, func(t *testing.T, k storeKind, server *testenv.StoreServer) {
		px := testenv.NewProxy(t, server.Addr)
		url := k.at(px.Addr)
		owner(t, k.at(server.Addr), "b")
		var all []*tideway.Engine
		for i := range 20 {
			all = append(all, member(t, url, fmt.Sprintf("e%d", i)))
		}
		kv, err := opens(t, all[0], "b")
		if err != nil {
			t.Fatal(err)
		}
		m := move(t, kv)
		for _, f := range []struct {
			name      string
			stop, run func()
		}{
			{"frozen", server.Stop, server.Cont},
			{"half open", func() { px.BlackHole(true) }, func() { px.BlackHole(false); px.Cut() }},
		} {
			f.stop()
			hammer(t, f.name, all)
			m.goesOn(3)
			testenv.Eventually(t, casePatience, func() bool { return has(all[0], "metadata_degraded") }, "metadata_degraded while ", f.name)
			f.run()
			for _, e := range all {
				testenv.Eventually(t, casePatience, func() bool { return !has(e, "metadata_degraded") }, "metadata_degraded ends after ", f.name)
			}
			testenv.Eventually(t, casePatience, func() bool { _, err := opens(t, all[1], "e2"); return errs.Of(err) == errs.NotRegistered }, "names are found after ", f.name)
		}
		px.Delay(50 * time.Millisecond) // slow is not away
		kv, err = opens(t, member(t, url, "late"), "b")
		if err != nil {
			t.Fatal("a slow store: ", err)
		}
		if _, err := kv.ReadAt(t.Context(), make([]byte, 100), 0); err != nil {
			t.Error(err)
		}
		px.Delay(0)
		m.stop()
	})
}

// hammer has every engine ask for names from 16 goroutines.
func hammer(t *testing.T, how string, list []*tideway.Engine) {
	t.Helper()
	var work sync.WaitGroup
	var wrong atomic.Int32
	for i, e := range list {
		for j := range 16 {
			work.Go(func() {
				if _, err := e.OpenSegment(t.Context(), fmt.Sprintf("x%d-%d", i, j)); errs.Of(err) != errs.Unresponsive && wrong.Add(1) == 1 {
					t.Errorf("%s: %v, want unresponsive", how, err)
				}
			})
		}
	}
	work.Wait()
}

// TestAnsweredSurvivesKill: the metadata server is killed while values are put.
// All that it said yes to is there afterwards, whole.
func TestAnsweredSurvivesKill(t *testing.T) {
	addr, db := testenv.FreeAddr(t), filepath.Join(t.TempDir(), "db")
	server := testenv.StartStore(t, addr, db, "tideway", "metadata", "serve", "--listen", addr, "--database", db)
	url := "http://" + addr + "/metadata"
	value := func(writer, n int) []byte {
		p := make([]byte, 1000+n%5000)
		testenv.Fill(p, testenv.KeyOf(uint64(writer), uint64(n)), 0)
		return p
	}
	const writers = 4
	var answered [writers]atomic.Int64
	for round := range 3 {
		var work sync.WaitGroup
		for w := range writers {
			s := openStore(t, url)
			work.Go(func() {
				for n := int(answered[w].Load()); s.Put(t.Context(), fmt.Sprintf("w%d/%d", w, n), value(w, n)) == nil; n++ {
					answered[w].Add(1)
				}
			})
		}
		enough := func() bool { return answered[0].Load() >= int64(20*(round+1)) }
		testenv.Eventually(t, casePatience, enough, "values are put")
		server.Kill()
		work.Wait()
		server.Restart()
		s := openStore(t, url)
		for w := range writers {
			for n := range int(answered[w].Load()) {
				got, err := s.Get(t.Context(), fmt.Sprintf("w%d/%d", w, n))
				if err != nil || !slices.Equal(got, value(w, n)) {
					t.Fatalf("round %d, w%d/%d: %d bytes, %v", round, w, n, len(got), err)
				}
			}
		}
	}
}
