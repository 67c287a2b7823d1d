package tcp

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
)

var seeds = flag.Int("tcp.seeds", 40, "runs of TestRandomFaults")

// TestRandomFaults posts, cancels, cuts connections at random bytes, freezes and
// closes, with short system calls, and checks for every slice: it completes
// exactly once; what is reported as done has been done, byte for byte; from its
// completion on the local range is not touched, nor is the remote range unless
// the completion says that it is in doubt.
func TestRandomFaults(t *testing.T) {
	for seed := range *seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { faultRun(t, uint64(seed)) })
		})
	}
}

// trial is one slice of a fault run.
type trial struct {
	s        transport.Slice
	remote   []byte
	want     []byte
	done     bool
	accepted bool
	doubt    bool
	code     errs.Code
}

type faults struct {
	t      *testing.T
	rnd    *rand.Rand
	nw     *memNet
	a, b   *host
	mu     sync.Mutex
	trials []*trial
	buf    *segment.Buffer
	file   *slowFile
	onFile *segment.Buffer
	next   int // offset, in memory and in the file
}

func faultRun(t *testing.T, seed uint64) {
	f := &faults{t: t, rnd: rand.New(rand.NewPCG(seed, 1))}
	f.nw = newMemNet(1 << (10 + f.rnd.IntN(9)))
	if f.rnd.IntN(2) == 0 {
		f.nw.short = rand.New(rand.NewPCG(seed, 2))
	}
	if f.rnd.IntN(4) > 0 {
		lives := rand.New(rand.NewPCG(seed, 3))
		f.nw.cut = func() int64 { return 1 + lives.Int64N(1<<(8+lives.IntN(16))) }
	}
	limits := defaultLimits()
	limits.Lanes = 1 + f.rnd.IntN(3)
	limits.Checksum = f.rnd.IntN(3) > 0
	f.a, f.b = newHost(t, f.nw, limits), newHost(t, f.nw, limits)
	f.a.sink.hook = f.completed
	memory := make([]byte, 24<<20)
	f.buf = f.b.memory.add(memory, segment.ReadWrite)
	f.file = newSlowFile(len(memory))
	f.onFile = f.b.memory.addFile(f.file, uint64(len(memory)), segment.ReadWrite)
	var ep *Endpoint
	for step := range 60 {
		ep = f.step(ep, memory, step)
	}
	f.nw.freeze(f.b.desc.Addr, false)
	f.file.hold(false)
	if ep != nil {
		_ = ep.Close()
	}
	time.Sleep(time.Minute) // virtual time: longer than all limits
	f.check()
	f.a.close()
	f.b.close()
	if n := f.a.memory.pinned() + f.b.memory.pinned(); n != 0 {
		t.Errorf("%d pins are left", n)
	}
	if n := f.nw.open(); n != 0 {
		t.Errorf("%d connections are left", n)
	}
	f.b.wantNoPlaces(t)
}

// step does one thing and returns the endpoint to go on with.
func (f *faults) step(ep *Endpoint, memory []byte, step int) *Endpoint {
	if ep == nil {
		got, err := f.a.tr.Connect(context.Background(), &f.b.desc)
		if err != nil {
			return nil
		}
		ep = got.(*Endpoint)
	}
	switch k := f.rnd.IntN(20); {
	case k < 12:
		if err := f.post(ep, memory, step); err != nil && errs.Of(err) != errs.Overloaded {
			_ = ep.Close()
			return nil
		}
	case k < 15:
		f.cancel(ep)
	case k < 17:
		time.Sleep(time.Duration(f.rnd.IntN(2000)) * time.Millisecond) // virtual time: a step of the test
	case k < 18:
		f.nw.freeze(f.b.desc.Addr, f.rnd.IntN(2) == 0)
		f.file.hold(f.rnd.IntN(3) == 0)
	case k < 19:
		if f.rnd.IntN(3) == 0 {
			f.nw.reset()
		}
	case f.rnd.IntN(4) == 0:
		_ = ep.Close()
		return nil
	}
	return ep
}

// post makes slices over ranges that no other slice uses.
func (f *faults) post(ep *Endpoint, memory []byte, step int) error {
	var s []transport.Slice
	var trials []*trial
	for range 1 + f.rnd.IntN(40) {
		n := f.rnd.IntN(1 << f.rnd.IntN(18))
		if f.next+n > len(memory) {
			break
		}
		x, buf := &trial{remote: memory[f.next : f.next+n : f.next+n], want: make([]byte, n)}, f.buf
		if f.rnd.IntN(4) == 0 {
			x.remote, buf = f.file.data[f.next:f.next+n:f.next+n], f.onFile
		}
		pattern(x.want, uint64(f.next+step))
		x.s = transport.Slice{Op: transport.Write, Class: transport.Class(f.rnd.IntN(3)), Local: bytes.Clone(x.want), Buffer: buf, Offset: uint64(f.next), Tag: transport.Tag(len(f.trials) + len(trials))}
		if f.rnd.IntN(2) == 0 {
			x.s.Op = transport.Read
			copy(x.remote, x.want)
			clear(x.s.Local)
		}
		f.next += n
		trials, s = append(trials, x), append(s, x.s)
	}
	f.mu.Lock()
	f.trials = append(f.trials, trials...)
	f.mu.Unlock()
	n, err := ep.Post(s)
	for _, x := range trials[:n] {
		x.accepted = true
	}
	if n < len(s) && err == nil {
		f.t.Errorf("accepted %d of %d without an error", n, len(s))
	}
	return err
}

func (f *faults) cancel(ep *Endpoint) {
	f.mu.Lock()
	var tags []transport.Tag
	for _, x := range f.trials {
		if !x.done && f.rnd.IntN(3) == 0 {
			tags = append(tags, x.s.Tag)
		}
	}
	f.mu.Unlock()
	ep.Cancel(tags)
}

const (
	localMark  = 0xD1
	remoteMark = 0xD2
)

// completed checks a slice at its end and marks the ranges that nobody may touch
// any more.
func (f *faults) completed(c transport.Completion) {
	f.mu.Lock()
	x := f.trials[c.Tag]
	x.done, x.code, x.doubt = true, c.Code, c.InDoubt
	f.mu.Unlock()
	moved := x.remote
	if x.s.Op == transport.Read {
		moved = x.s.Local
	}
	if c.Code == errs.OK && !bytes.Equal(moved, x.want) {
		f.t.Errorf("%v %d is reported as done, and is not", x.s.Op, c.Tag)
	}
	if c.InDoubt && (c.Code == errs.OK || x.s.Op == transport.Read) {
		f.t.Errorf("%v %d with code %v is in doubt", x.s.Op, c.Tag, c.Code)
	}
	fill(x.s.Local, localMark)
	if x.s.Op == transport.Write && !c.InDoubt {
		fill(x.remote, remoteMark)
	}
}

func fill(b []byte, mark byte) {
	for k := range b {
		b[k] = mark
	}
}

// check looks at every slice when all is over.
func (f *faults) check() {
	done := 0
	codes := map[errs.Code]int{}
	for _, x := range f.trials {
		if x.done != x.accepted {
			f.t.Errorf("%v %d: accepted %t, completed %t", x.s.Op, x.s.Tag, x.accepted, x.done)
		}
		if !x.done {
			continue
		}
		done++
		codes[x.code]++
		if bytes.Count(x.s.Local, []byte{localMark}) != len(x.s.Local) {
			f.t.Errorf("%v %d (%v): local range touched after completion", x.s.Op, x.s.Tag, x.code)
		}
		if x.s.Op == transport.Write && !x.doubt && bytes.Count(x.remote, []byte{remoteMark}) != len(x.remote) {
			f.t.Errorf("write %d (%v): remote range touched after completion", x.s.Tag, x.code)
		}
		if x.code == errs.Checksum || x.code == errs.Internal {
			f.t.Errorf("%v %d ended with %v", x.s.Op, x.s.Tag, x.code)
		}
	}
	if d := f.a.sink.doubles(); len(d) > 0 {
		f.t.Errorf("slices %v completed twice", d)
	}
	f.t.Logf("%d slices: %v", done, codes)
}
