package core

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/transport"
)

// up returns a shard with one connected path that has one rail.
func up(t *testing.T, cfg Config) (*Shard, PathID) {
	t.Helper()
	var out Actions
	s := NewShard(cfg)
	id := s.AddPath(PathSpec{Fences: true})
	s.Submit(0, []Transfer{{Op: transport.Read, Rungs: 1, Ladder: [Rungs]PathID{id}}}, make([]TransferID, 1), &out)
	s.Connected(0, id, make([]RailSpec, 1), &out)
	if len(out.Ends) != 1 || out.Ends[0].Code != errs.OK {
		t.Fatalf("the path did not come up: %+v", out)
	}
	return s, id
}

// submit submits one READ and returns what the shard asked for.
func submit(s *Shard, now Time, length uint64, path PathID) (TransferID, *Actions) {
	var out Actions
	ids := make([]TransferID, 1)
	s.Submit(now, []Transfer{{Owner: 7, Op: transport.Read, Length: length, Rungs: 1, Ladder: [Rungs]PathID{path}}}, ids, &out)
	return ids[0], &out
}

func TestFaults(t *testing.T) {
	var out Actions
	s, id := up(t, Config{Shard: 3})
	_, posted := submit(s, 0, 100, id)
	sl := posted.Posts[0].Slices[0]
	wantFault := func(what string) {
		t.Helper()
		if !strings.Contains(out.Fault, "not in flight") {
			t.Errorf("%s: fault %q", what, out.Fault)
		}
		out.Reset()
	}
	for _, tag := range []transport.Tag{0, 1, ^transport.Tag(0), sl.Tag + 1, sl.Tag ^ 1<<60, sl.Tag + 1<<slotBits} {
		s.Completed(0, []transport.Completion{{Tag: tag}}, &out)
		wantFault("unknown tag")
	}
	other := s.AddPath(PathSpec{})
	s.Refused(0, other, []transport.Tag{sl.Tag}, errs.Overloaded, nil, &out)
	wantFault("refusal on another path")
	s.Completed(0, []transport.Completion{{Tag: sl.Tag}, {Tag: sl.Tag}}, &out)
	if len(out.Ends) != 1 {
		t.Errorf("%d ends, want 1", len(out.Ends))
	}
	wantFault("completed twice")
	s.Refused(0, id, []transport.Tag{sl.Tag}, errs.Overloaded, nil, &out)
	wantFault("refused after completion")
	submit(s, 0, 100, id) // takes the same slot
	s.Completed(0, []transport.Completion{{Tag: sl.Tag}}, &out)
	wantFault("completed again, the slot in use")
}

func TestLateEventsOfAPath(t *testing.T) {
	var out Actions
	s, id := up(t, Config{})
	if s.Connected(0, id, make([]RailSpec, 1), &out); len(out.Close) != 1 {
		t.Error("a second endpoint of a path is not closed")
	}
	out.Reset()
	s.ConnectFailed(0, id, errs.Refused, nil, &out)
	s.RemovePath(0, id, errs.Closed, nil, &out)
	if len(out.Close) != 1 || out.Close[0] != id {
		t.Errorf("a removed path is closed %d times, want once", len(out.Close))
	}
	out.Reset()
	s.RemovePath(0, id, errs.Closed, nil, &out)
	s.PathDown(0, id, errs.LaneLost, nil, &out)
	s.ConnectFailed(0, id, errs.Refused, nil, &out)
	if len(out.Close)+len(out.Connect)+len(out.Ends) != 0 || s.Path(0, id, new(PathInfo)) {
		t.Errorf("events of a removed path did something: %+v", out)
	}
	if s.Connected(0, id, make([]RailSpec, 1), &out); len(out.Close) != 1 {
		t.Error("the endpoint of a removed path is not closed")
	}
	_, end := submit(s, 0, 10, id)
	if len(end.Ends) != 1 || !errors.Is(end.Ends[0].Err, errNoPath) || !end.Ends[0].Retryable {
		t.Errorf("a transfer for a removed path: %+v", end.Ends)
	}
	if again := s.AddPath(PathSpec{}); again == id {
		t.Error("a new path has the id of the removed one")
	}
}

func TestConnectedWithoutRails(t *testing.T) {
	for _, n := range []int{0, 257} {
		var out Actions
		s := NewShard(Config{})
		id := s.AddPath(PathSpec{})
		submit(s, 0, 10, id)
		s.Connected(0, id, make([]RailSpec, n), &out)
		if len(out.Close) != 1 || len(out.Ends) != 1 || out.Ends[0].Code != errs.Internal {
			t.Errorf("%d rails: %+v", n, out)
		}
	}
}

func TestPathsAreBounded(t *testing.T) {
	var out Actions
	s := NewShard(Config{MaxPaths: 3})
	ids := []PathID{s.AddPath(PathSpec{}), s.AddPath(PathSpec{}), s.AddPath(PathSpec{})}
	if id := s.AddPath(PathSpec{}); id != 0 {
		t.Errorf("a fourth path %#x of three", id)
	}
	for i := range 10_000 { // many times around the generations of one slot
		s.RemovePath(0, ids[1], errs.Closed, nil, &out)
		id := s.AddPath(PathSpec{})
		if id == 0 || id == ids[1] {
			t.Fatalf("round %d: path %#x after %#x", i, id, ids[1])
		}
		ids[1] = id
	}
}

func TestSlicesAreBounded(t *testing.T) {
	s, id := up(t, Config{MaxSlices: 3})
	_, out := submit(s, 0, 64<<20, id)
	if n := len(out.Posts[0].Slices); n != 3 {
		t.Fatalf("%d slices posted, want 3", n)
	}
	tags := out.Posts[0].Slices
	// The table is full for other paths too, until a slice of this one is back.
	other := s.AddPath(PathSpec{})
	submit(s, 0, 10, other)
	var next Actions
	s.Connected(0, other, make([]RailSpec, 1), &next)
	if len(next.Posts) != 0 {
		t.Fatalf("posted beyond the bound: %+v", next.Posts)
	}
	s.Completed(0, []transport.Completion{{Tag: tags[0].Tag}, {Tag: tags[1].Tag}}, &next)
	n := 0
	for _, p := range next.Posts {
		n += len(p.Slices)
	}
	if n != 2 || s.sliceCount != 3 {
		t.Errorf("%d slices posted after two came back, %d in all; want 2 and 3", n, s.sliceCount)
	}
}

func TestNeverReadyTransportIsGivenUp(t *testing.T) {
	s, id := up(t, Config{Retries: 1, RestMax: 100 * time.Millisecond})
	_, out := submit(s, 0, 10, id)
	now, refusals := Time(0), 0
	for len(out.Ends) == 0 {
		var posts []transport.Tag
		for _, p := range out.Posts {
			for _, sl := range p.Slices {
				posts = append(posts, sl.Tag)
			}
		}
		connect := len(out.Connect) > 0
		out.Reset()
		switch {
		case connect:
			s.Connected(now, id, make([]RailSpec, 1), out)
		case len(posts) > 0:
			refusals++
			s.Refused(now, id, posts, errs.Overloaded, nil, out)
		default:
			if now = s.NextWake(); now == Never {
				t.Fatal("it waits for nothing")
			}
			s.Tick(now, out)
		}
		if refusals > 100 {
			t.Fatal("it asks for ever")
		}
	}
	if e := out.Ends[0]; e.Code != errs.Overloaded || len(e.Attempts) != 2 || refusals != 2*(maxRefusals+1) {
		t.Errorf("ended with %v after %d refusals and attempts %v", e.Code, refusals, e.Attempts)
	}
}

func TestAttemptsAreBounded(t *testing.T) {
	s, id := up(t, Config{Retries: 100})
	_, out := submit(s, 0, 10, id)
	for i := 0; len(out.Ends) == 0; i++ {
		tag := out.Posts[0].Slices[0].Tag
		out.Reset()
		s.Completed(Time(i), []transport.Completion{{Tag: tag, Code: errs.LaneLost}}, out)
	}
	if e := out.Ends[0]; len(e.Attempts) != maxAttempts || e.Code != errs.LaneLost {
		t.Errorf("%v with %d attempts, want %d", e.Code, len(e.Attempts), maxAttempts)
	}
}

// TestBudgetComesBack loses a lane every 17 slices of a long transfer: more often
// in all than it may be retried, and never often in a row.
func TestBudgetComesBack(t *testing.T) {
	s, id := up(t, Config{Retries: 1})
	_, out := submit(s, 0, 1<<30, id)
	served, lost := 0, 0
	for len(out.Ends) == 0 {
		var done []transport.Completion
		for _, sl := range out.Posts[0].Slices {
			c := transport.Completion{Tag: sl.Tag}
			if served++; served%(restoreSlices+8) == 0 {
				c.Code = errs.LaneLost
				lost++
			}
			done = append(done, c)
		}
		out.Reset()
		s.Completed(Time(served)*1000, done, out)
	}
	if e := out.Ends[0]; e.Code != errs.OK || e.Bytes != 1<<30 || lost < 20 {
		t.Errorf("%v with %d bytes after %d lost lanes", e.Code, e.Bytes, lost)
	}
}

// TestTimers holds the heap against a plain list.
func TestTimers(t *testing.T) {
	s := NewShard(Config{})
	const n = 50
	for range n {
		s.AddPath(PathSpec{})
	}
	r := rand.New(rand.NewPCG(1, 5))
	at := [n + 1]Time{}
	for range 20_000 {
		pi := 1 + r.Uint32N(n)
		if at[pi] = 0; r.IntN(3) > 0 {
			at[pi] = 1 + Time(r.Int64N(1000))
			s.setTimer(pathRef(pi), at[pi])
		} else {
			s.clearTimer(pathRef(pi))
		}
		want := Never
		for _, x := range at {
			if x != 0 {
				want = min(want, x)
			}
		}
		if got := s.NextWake(); got != want {
			t.Fatalf("next wake %d, want %d", got, want)
		}
	}
}

func TestDeadlinesEndEachTransferInTime(t *testing.T) {
	s := NewShard(Config{})
	var out Actions
	path := s.AddPath(PathSpec{})
	for i := range 100 {
		in := Transfer{Op: transport.Read, Length: 1, Rungs: 1, Ladder: [Rungs]PathID{path}, Deadline: Time(i*37%100 + 1), Owner: uint64(i*37%100 + 1)}
		s.Submit(0, []Transfer{in}, make([]TransferID, 1), &out)
	}
	for now := Time(1); now <= 100; now++ {
		out.Reset()
		if s.Tick(now, &out); len(out.Ends) != 1 || out.Ends[0].Owner != uint64(now) || out.Ends[0].Code != errs.Deadline {
			t.Fatalf("at %d: %+v", now, out.Ends)
		}
	}
}

// TestBudgetIsForLackOfProgress fails every try after a good start: what was
// done before the first failure does not count twice.
func TestBudgetIsForLackOfProgress(t *testing.T) {
	s, id := up(t, Config{Retries: 2})
	_, out := submit(s, 0, 1<<30, id)
	tries := 0
	for served := 0; len(out.Ends) == 0; {
		var done []transport.Completion
		posts := out.Posts
		for _, p := range posts {
			for _, sl := range p.Slices {
				c := transport.Completion{Tag: sl.Tag}
				if served++; served > 2*restoreSlices {
					c.Code = errs.LaneLost
				}
				done = append(done, c)
			}
		}
		if len(done) == 0 || served > 1000 {
			t.Fatalf("%d slices served and nothing more to do", served)
		}
		if done[len(done)-1].Code != errs.OK {
			tries++
		}
		out.Reset()
		s.Completed(Time(served)*1000, done, out)
	}
	if e := out.Ends[0]; e.Code != errs.LaneLost || tries != 3 {
		t.Errorf("%v after %d failed tries, want lane_lost after 3", e.Code, tries)
	}
}

// TestLateFailureOnAPathLeftBehind moves a transfer on while a slice of it is
// still out on the first path; that slice's failure must not push it further.
func TestLateFailureOnAPathLeftBehind(t *testing.T) {
	var out Actions
	s := NewShard(Config{Retries: 0})
	a, b := s.AddPath(PathSpec{Fences: true}), s.AddPath(PathSpec{Fences: true})
	submit(s, 0, 0, a)
	s.Connected(0, a, make([]RailSpec, 1), &out)
	s.PathDown(0, a, errs.LaneLost, nil, &out) // free
	submit(s, 0, 0, a)
	s.Connected(0, a, make([]RailSpec, 1), &out)
	out.Reset()
	s.Submit(0, []Transfer{{Op: transport.Read, Length: 2 << 20, Rungs: 2, Ladder: [Rungs]PathID{a, b}}}, make([]TransferID, 1), &out)
	sl := out.Posts[0].Slices
	out.Reset()
	s.PathDown(0, a, errs.LaneLost, nil, &out) // rests
	s.Refused(0, a, []transport.Tag{sl[1].Tag}, errs.Closed, nil, &out)
	s.Completed(0, []transport.Completion{{Tag: sl[0].Tag, Code: errs.LaneLost}}, &out)
	if len(out.Ends) != 0 || len(out.Connect) != 1 || out.Connect[0] != b {
		t.Fatalf("want the transfer on its second path: %+v", out)
	}
	out.Reset()
	s.Connected(0, b, make([]RailSpec, 1), &out)
	if len(out.Posts) != 1 || len(out.Posts[0].Slices) != 2 {
		t.Errorf("want both slices on the second path: %+v", out.Posts)
	}
}

// TestBulkIsNotStarvedBySmall keeps the window full of small slices. Bulk needs
// more room than one of them leaves.
func TestBulkIsNotStarvedBySmall(t *testing.T) {
	s, id := up(t, Config{Window: 2 << 20})
	var out Actions
	small := make([]Transfer, 1000)
	for i := range small {
		small[i] = Transfer{Owner: 1, Op: transport.Read, Length: 4096, Rungs: 1, Ladder: [Rungs]PathID{id}}
	}
	ids := make([]TransferID, len(small))
	s.Submit(0, small, ids, &out)
	_, o := submit(s, 0, 8<<20, id)
	posts := append(out.Posts, o.Posts...)
	var queue []Slice
	bulk, total := uint64(0), uint64(0)
	for now := Time(1); now < 5000; now++ {
		for _, p := range posts {
			queue = append(queue, p.Slices...)
		}
		sl := queue[0]
		queue = queue[1:]
		if total += sl.Length; sl.Owner == 7 {
			bulk += sl.Length
		}
		out = Actions{}
		s.Completed(now, []transport.Completion{{Tag: sl.Tag}}, &out)
		s.Submit(now, small[:1], ids, &out) // one comes for each that goes
		posts = out.Posts
	}
	if bulk < 2<<20 {
		t.Errorf("bulk got %d of %d bytes beside small ones that always fill the window", bulk, total)
	}
}

func TestSlicesKeepToAlignmentAndLimit(t *testing.T) {
	var out Actions
	s := NewShard(Config{})
	id := s.AddPath(PathSpec{MaxSlice: 100_000, Align: 4096})
	s.Submit(0, []Transfer{{Op: transport.Read, Length: 1 << 20, Offset: 100, Rungs: 1, Ladder: [Rungs]PathID{id}}}, make([]TransferID, 1), &out)
	s.Connected(0, id, make([]RailSpec, 1), &out)
	for i, sl := range out.Posts[0].Slices {
		if last := i == len(out.Posts[0].Slices)-1; sl.Length > 100_000 || !last && (100+sl.Offset+sl.Length)%4096 != 0 {
			t.Errorf("slice %+v", sl)
		}
	}
}

func TestEveryCodeHasARule(t *testing.T) {
	for _, c := range errs.Codes() {
		r := ruleOf(c)
		if c.Kind() == errs.ErrUnreachable && (r.slice == final || !r.retryable) {
			t.Errorf("%v: a peer that cannot be reached one way may be another way", c)
		}
		if r.slice == wait {
			t.Errorf("%v: a slice does not wait, a path does", c)
		}
	}
	for _, c := range []errs.Code{errs.Denied, errs.OutOfRange, errs.NotRegistered, errs.Revoked, errs.Stale, errs.Restarted, errs.Invalid, errs.Canceled, errs.Deadline, errs.Internal, 0x999} {
		if r := ruleOf(c); r.slice != final || r.connect != final || r.retryable {
			t.Errorf("%v must be final", c)
		}
	}
}

// TestRunsBeyondTags: runs that a tag cannot name are transfers from the start.
func TestRunsBeyondTags(t *testing.T) {
	s, id := up(t, Config{})
	s.runs = make([]run, maxRuns)
	in := Transfer{Owner: 7, Op: transport.Read, Rungs: 1, Ladder: [Rungs]PathID{id}, Lengths: []uint32{1, 2, 3}}
	var ids [2]TransferID
	var out Actions
	s.Submit(0, []Transfer{in}, ids[:1], &out)
	if len(out.Posts) != 1 || len(out.Posts[0].Slices) != 3 || out.Posts[0].Slices[2].Run != 0 {
		t.Fatalf("%+v, want three slices", out.Posts)
	}
	var done []transport.Completion
	for _, sl := range out.Posts[0].Slices {
		done = append(done, transport.Completion{Tag: sl.Tag})
	}
	out.Reset()
	s.Cancel(0, ids[0]+1, errs.Canceled, &out)
	if len(out.Cancels) != 1 || out.Cancels[0].Tags[0] != done[1].Tag {
		t.Errorf("cancelled %+v, want the second", out.Cancels)
	}
	s.Completed(0, done, &out)
	if len(out.Ends) != 3 || out.Ends[0].Owner != 7 || out.Ends[1].Code != errs.Canceled || out.Fault != "" {
		t.Errorf("ended %+v, fault %q", out.Ends, out.Fault)
	}
	if s.freeRun != maxRuns || s.sliceCount != 0 {
		t.Errorf("run %d is free, %d slices are left", s.freeRun, s.sliceCount)
	}
}

// TestRunFaults: the tag of one that has completed, or never was, is a fault.
func TestRunFaults(t *testing.T) {
	s, id := up(t, Config{})
	var ids [1]TransferID
	var out Actions
	s.Submit(0, []Transfer{{Op: transport.Read, Rungs: 1, Ladder: [Rungs]PathID{id}, Lengths: []uint32{1, 2}}}, ids[:], &out)
	tag := out.Posts[0].Slices[0].Tag
	s.Completed(0, []transport.Completion{{Tag: tag}}, &out)
	for _, bad := range []transport.Tag{tag, tag + 2, tag + RunLen, tag ^ 1<<slotBits, tag | 1<<(slotBits-2)} {
		out.Reset()
		s.Completed(0, []transport.Completion{{Tag: bad}}, &out)
		if out.Fault == "" || len(out.Ends) != 0 {
			t.Errorf("tag %#x of a run at %#x: fault %q, ends %+v", bad, tag, out.Fault, out.Ends)
		}
	}
	out.Reset()
	s.Completed(0, []transport.Completion{{Tag: tag + 1}}, &out)
	s.Cancel(0, ids[0]+1, errs.Canceled, &out)
	if len(out.Ends) != 1 || out.Fault != "" {
		t.Errorf("ends %+v, fault %q, want the end of the second", out.Ends, out.Fault)
	}
}
