package core

import (
	"errors"
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
	s.Refused(0, other, []Slice{sl}, errs.Overloaded, nil, &out)
	wantFault("refusal on another path")
	s.Completed(0, []transport.Completion{{Tag: sl.Tag}, {Tag: sl.Tag}}, &out)
	if len(out.Ends) != 1 {
		t.Errorf("%d ends, want 1", len(out.Ends))
	}
	wantFault("completed twice")
	s.Refused(0, id, []Slice{sl}, errs.Overloaded, nil, &out)
	wantFault("refused after completion")
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
		var posts []Slice
		for _, p := range out.Posts {
			posts = append(posts, p.Slices...)
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
	var out Actions
	path := s.AddPath(PathSpec{})
	at := map[TransferID]Time{}
	for i := range 1000 {
		ids := make([]TransferID, 1)
		deadline := Time(i*7919%1000 + 1)
		s.Submit(0, []Transfer{{Op: transport.Read, Length: 1, Rungs: 1, Ladder: [Rungs]PathID{path}, Deadline: deadline, Owner: uint64(deadline)}}, ids, &out)
		at[ids[0]] = deadline
	}
	for id, d := range at {
		if d%3 == 0 {
			s.Cancel(0, id, errs.Canceled, &out)
			delete(at, id)
		}
	}
	out.Reset()
	for now := Time(1); now <= 1000; now++ {
		want := now
		if now%3 == 0 {
			want++
		}
		if now < 1000 && s.NextWake() != want {
			t.Fatalf("at %d the next wake is %d, want %d", now, s.NextWake(), want)
		}
		s.Tick(now, &out)
		if now%3 != 0 && (len(out.Ends) != 1 || out.Ends[0].Owner != uint64(now) || out.Ends[0].Code != errs.Deadline) {
			t.Fatalf("at %d: %+v", now, out.Ends)
		}
		out.Reset()
	}
	if s.NextWake() != Never {
		t.Errorf("next wake %d after all", s.NextWake())
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
