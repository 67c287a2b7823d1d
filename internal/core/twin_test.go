package core

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/quick"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/testenv"
	"github.com/tideway-io/tideway/transport"
)

// The twin is a world around a shard that does everything a transport may do,
// at random, and keeps its own simple books of what was promised. It knows
// nothing of queues, rails or timers; it holds the shard to its promises.

type twinTransfer struct {
	id      TransferID
	in      Transfer
	state   []byte // one per byte: ' ' untouched, 'L' in flight, 'D' done, 'X' never again
	live    int
	ended   bool
	ending  bool // cancelled, or a slice failed for good: nothing more may be posted
	inDoubt bool
}

type twinSlice struct {
	Slice
	path     PathID
	accepted bool
	canceled bool
}

type twinPath struct {
	id         PathID
	spec       PathSpec
	rails      []RailSpec
	up         bool
	connecting bool
	closing    bool
	posts      []Slice // handed over, not yet tried
}

type twin struct {
	t          *testing.T
	r          *rand.Rand
	cfg        Config
	s          *Shard
	now        Time
	out        Actions
	paths      []*twinPath
	gone       []*twinPath
	transfers  map[uint64]*twinTransfer
	slices     map[transport.Tag]*twinSlice
	order      []transport.Tag // keys of slices, so that a seed replays
	completing map[transport.Tag]bool
	owner      uint64
	ended      int
	err        error
	calm       bool // no more faults
	runs       bool // calls have runs
}

func (w *twin) bad(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf(format, args...)
	}
}

func newTwin(t *testing.T, seed uint64, runs bool) *twin {
	w := &twin{t: t, runs: runs, r: rand.New(rand.NewPCG(seed, 3)), transfers: map[uint64]*twinTransfer{}, slices: map[transport.Tag]*twinSlice{}}
	w.cfg = Config{
		Shard: 5, Retries: w.r.IntN(4), RestMin: time.Millisecond, RestMax: 8 * time.Millisecond, SliceBytes: 64, SmallBytes: 16,
		Window: 200, RailSlices: 8, MaxSlices: 4 + w.r.IntN(60),
	}
	w.s = NewShard(w.cfg)
	for range 1 + w.r.IntN(3) {
		w.addPath()
	}
	return w
}

func (w *twin) addPath() {
	p := &twinPath{spec: PathSpec{MaxSlice: []uint64{0, 10, 48, 1000}[w.r.IntN(4)], Align: []uint64{0, 8}[w.r.IntN(2)], Fences: w.r.IntN(2) == 0}}
	p.id = w.s.AddPath(p.spec)
	for _, q := range append(w.paths, w.gone...) {
		if q.id == p.id {
			w.bad("path id %#x used twice", p.id)
		}
	}
	w.paths = append(w.paths, p)
}

func (w *twin) path(id PathID) *twinPath {
	for _, p := range append(w.paths, w.gone...) {
		if p.id == id {
			return p
		}
	}
	w.bad("an action names the unknown path %#x", id)
	return &twinPath{}
}

// settle carries out and checks the actions of one event.
func (w *twin) settle() {
	out := &w.out
	if out.Fault != "" {
		w.bad("fault: %s", out.Fault)
	}
	for _, c := range out.Cancels {
		for _, tag := range c.Tags {
			sl := w.slices[tag]
			if w.completing[tag] {
				continue // it came back in the same event
			}
			if sl == nil || sl.canceled || sl.path != c.Path {
				w.bad("cancel of tag %#x, which is %+v", tag, sl)
				continue
			}
			sl.canceled = true
			w.transfers[sl.Owner].ending = true
		}
	}
	for _, post := range out.Posts {
		w.post(Post{post.Path, w.apart(post.Slices)})
	}
	for _, id := range out.Close {
		p := w.path(id)
		p.closing, p.up = true, false
	}
	for _, id := range out.Connect {
		p := w.path(id)
		if p.connecting || p.up {
			w.bad("path %#x asked to connect twice", id)
		}
		p.connecting, p.closing = true, false
	}
	for _, e := range out.Ends {
		w.ends(e)
	}
	out.Reset()
	for o := uint64(1); o <= w.owner; o++ {
		if t := w.transfers[o]; t.ending && t.live == 0 && !t.ended {
			w.bad("transfer %d is over and quiet and has not ended", o)
		}
	}
	for _, sl := range w.slices {
		if w.transfers[sl.Owner].ending && !sl.canceled {
			w.bad("slice %+v of a transfer that is over was not cancelled", sl.Slice)
		}
	}
}

// apart returns slices with the runs among them taken apart.
func (w *twin) apart(run []Slice) (single []Slice) {
	for _, sl := range run {
		for i := range uint64(max(sl.Run, 1)) {
			one := sl
			one.Tag, one.Owner, one.Run = sl.Tag+transport.Tag(i), sl.Owner+i, 0
			if sl.Run > 0 {
				one.Length = w.transfers[one.Owner].in.Length
			}
			single = append(single, one)
		}
	}
	return single
}

// ends is end for a run as well.
func (w *twin) ends(e End) {
	if e.Run == 0 {
		w.end(e)
		return
	}
	total := uint64(0)
	for i := range uint64(e.Run) {
		one := End{Owner: e.Owner + i, Path: e.Path}
		if t := w.transfers[one.Owner]; t != nil {
			one.Bytes = t.in.Length
		}
		total += one.Bytes
		w.end(one)
	}
	if total != e.Bytes || e.Code != errs.OK || e.Attempts != nil {
		w.bad("the end of a run is %+v, for %d bytes", e, total)
	}
}

func (w *twin) post(post Post) {
	p := w.path(post.Path)
	if !p.up {
		w.bad("post to path %#x, which is not up", post.Path)
		return
	}
	for _, sl := range post.Slices {
		if w.slices[sl.Tag] != nil || TagShard(sl.Tag) != 5 {
			w.bad("tag %#x is in flight already, or of another shard", sl.Tag)
		}
		w.slices[sl.Tag] = &twinSlice{Slice: sl, path: post.Path}
		w.order = append(w.order, sl.Tag)
		t := w.transfers[sl.Owner]
		if t.ended || t.ending {
			w.bad("transfer %d: posted after it was over", sl.Owner)
		}
		if sl.Length == 0 || sl.Length > 64 || p.spec.MaxSlice > 0 && sl.Length > p.spec.MaxSlice || int(sl.Rail) >= len(p.rails) ||
			sl.Op != t.in.Op || sl.Class != min(t.in.Class, 2) {
			w.bad("transfer %d: slice %+v is not what its path or its request allows", sl.Owner, sl)
			return
		}
		for i := sl.Offset; i < sl.Offset+sl.Length; i++ {
			if t.state[i] != ' ' {
				w.bad("transfer %d: byte %d posted while %q", sl.Owner, i, t.state[i])
			}
			t.state[i] = 'L'
		}
		t.live++
	}
	p.posts = append(p.posts, post.Slices...)
	for r, spec := range p.rails {
		bytes, n := uint64(0), 0
		for _, sl := range w.slices {
			if sl.path == p.id && int(sl.Rail) == r {
				bytes, n = bytes+sl.Length, n+1
			}
		}
		if bytes > or(spec.Window, 200) || n > 8 {
			w.bad("path %#x rail %d has %d slices of %d bytes in flight, its window is %d", p.id, r, n, bytes, spec.Window)
		}
	}
	if len(w.slices) > 2*w.cfg.MaxSlices {
		w.bad("%d slices in flight, want at most %d and few more", len(w.slices), w.cfg.MaxSlices)
	}
}

func (w *twin) end(e End) {
	t := w.transfers[e.Owner]
	if t == nil || t.ended {
		w.bad("transfer %d ended twice, or never began", e.Owner)
		return
	}
	t.ended = true
	w.ended++
	done := uint64(0)
	for _, b := range t.state {
		if b == 'D' {
			done++
		}
	}
	switch {
	case t.live != 0:
		w.bad("transfer %d ended (%v) with %d slices in flight", e.Owner, e.Code, t.live)
	case e.Bytes != done:
		w.bad("transfer %d ended with %d bytes, want %d", e.Owner, e.Bytes, done)
	case e.Code == errs.OK && (done != t.in.Length || t.ending):
		w.bad("transfer %d ended well with %d of %d bytes, ending %v", e.Owner, done, t.in.Length, t.ending)
	case e.InDoubt != t.inDoubt:
		w.bad("transfer %d ended with doubt %v, want %v", e.Owner, e.InDoubt, t.inDoubt)
	case len(e.Attempts) > w.cfg.Retries+2*Rungs && t.in.Length < restoreSlices*64:
		w.bad("transfer %d was tried %d times with %d retries", e.Owner, len(e.Attempts), w.cfg.Retries)
	case len(e.Attempts) > maxAttempts:
		w.bad("transfer %d remembers %d attempts", e.Owner, len(e.Attempts))
	}
}

// forget takes a slice out of the books and gives its bytes a new state.
func (w *twin) forget(sl *twinSlice, state byte) {
	delete(w.slices, sl.Tag)
	w.order = slices.DeleteFunc(w.order, func(t transport.Tag) bool { return t == sl.Tag })
	t := w.transfers[sl.Owner]
	for i := sl.Offset; i < sl.Offset+sl.Length; i++ {
		t.state[i] = state
	}
	t.live--
}

func (w *twin) submit() {
	n := 1 + w.r.IntN(5)
	ts, ids := make([]Transfer, n), make([]TransferID, n)
	for i := range ts {
		w.owner++
		t := &ts[i]
		*t = Transfer{Owner: w.owner, Op: transport.Op(1 + w.r.IntN(2)), Class: transport.Class(w.r.IntN(4)), Group: w.r.Uint64N(4), Offset: w.r.Uint64N(100)}
		t.Length = []uint64{0, 1, w.r.Uint64N(16), w.r.Uint64N(300), w.r.Uint64N(3000)}[w.r.IntN(5)]
		if w.r.IntN(4) == 0 {
			t.Deadline = w.now + Time(w.r.Int64N(int64(20*time.Millisecond)))
		}
		for _, j := range w.r.Perm(len(w.paths)) {
			if t.Rungs < Rungs && (t.Rungs == 0 || w.r.IntN(2) == 0) {
				t.Ladder[t.Rungs] = w.paths[j].id
				t.Rungs++
			}
		}
		w.transfers[w.owner] = &twinTransfer{in: *t, state: []byte(fmt.Sprintf("%*s", t.Length, ""))}
	}
	if w.runs && w.r.IntN(2) == 0 {
		w.more(&ts[n-1])
	}
	w.s.Submit(w.now, ts, ids, &w.out)
	for i := range ts {
		for k := range max(1, len(ts[i].Lengths)) {
			w.transfers[ts[i].Owner+uint64(k)].id = ids[i] + TransferID(k)
		}
	}
	w.settle()
}

// more makes the last transfer of a call a run.
func (w *twin) more(t *Transfer) {
	n := []int{1, 2 + w.r.IntN(9), RunLen}[w.r.IntN(3)]
	for i := range n {
		length := 1 + w.r.Uint64N(16)
		if i > 0 {
			w.owner++
		}
		if w.r.IntN(40) == 0 {
			length = []uint64{0, 17, 300}[w.r.IntN(3)] // not what a run can be
		}
		in := *t
		in.Owner, in.Length = w.owner, length
		w.transfers[w.owner] = &twinTransfer{in: in, state: []byte(fmt.Sprintf("%*s", length, ""))}
		t.Lengths = append(t.Lengths, uint32(length))
	}
}

// handOver lets a path try the slices that it was handed.
func (w *twin) handOver(p *twinPath) {
	posts := p.posts
	p.posts = nil
	accept := len(posts)
	if p.closing || !p.up {
		accept = 0
	} else if !w.calm && w.r.IntN(4) == 0 {
		accept = w.r.IntN(len(posts) + 1)
	}
	for _, sl := range posts[:accept] {
		w.slices[sl.Tag].accepted = true
	}
	refused := posts[accept:]
	if len(refused) == 0 {
		return
	}
	code := []errs.Code{errs.Overloaded, errs.Overloaded, errs.LaneLost, errs.Restarted, errs.Unsupported, errs.Denied, errs.Unresponsive}[w.r.IntN(7)]
	if !p.up {
		code = errs.Closed
	}
	w.completing = map[transport.Tag]bool{}
	var tags []transport.Tag
	for _, sl := range refused {
		w.forget(w.slices[sl.Tag], ' ')
		w.completing[sl.Tag] = true
		tags = append(tags, sl.Tag)
	}
	first := w.transfers[refused[0].Owner]
	if code == errs.Denied {
		first.ending = true
	}
	w.s.Refused(w.now, p.id, tags, code, errors.New("refused"), &w.out)
	w.settle()
	w.completing = nil
}

var twinCodes = []errs.Code{
	errs.LaneLost, errs.LaneLost, errs.Checksum, errs.Checksum, errs.Overloaded, errs.Unreachable, errs.Unresponsive, errs.Unsupported,
	errs.Denied, errs.Revoked, errs.Restarted, errs.Canceled, errs.Closed, errs.Internal, errs.Code(0xfff),
}

// complete ends some of the accepted slices that pass the filter.
func (w *twin) complete(which func(*twinSlice) bool, code func() errs.Code) {
	var done []transport.Completion
	for _, tag := range slices.Clone(w.order) {
		sl := w.slices[tag]
		if !sl.accepted || !which(sl) {
			continue
		}
		c := transport.Completion{Tag: tag, Code: code()}
		t := w.transfers[sl.Owner]
		if sl.canceled && w.r.IntN(2) == 0 {
			c.Code = errs.Canceled
		}
		state := byte('D')
		if c.Code != errs.OK {
			state = ' '
			c.InDoubt = sl.Op == transport.Write && w.r.IntN(4) == 0
			if sl.Op == transport.Write && (c.InDoubt || !w.path(sl.path).spec.Fences) {
				state = 'X'
			}
			if v := ruleOf(c.Code).slice; v == final || state == 'X' {
				t.ending = true
			}
		}
		t.inDoubt = t.inDoubt || c.InDoubt
		w.forget(sl, state)
		done = append(done, c)
	}
	if len(done) > 0 {
		w.completing = map[transport.Tag]bool{}
		for _, c := range done {
			w.completing[c.Tag] = true
		}
		w.s.Completed(w.now, done, &w.out)
		w.settle()
		w.completing = nil
	}
}

func (w *twin) code() errs.Code {
	if w.calm || w.r.IntN(6) != 0 {
		return errs.OK
	}
	return twinCodes[w.r.IntN(len(twinCodes))]
}

func (w *twin) answerConnect(p *twinPath) {
	if !p.connecting {
		return
	}
	p.connecting = false
	if !w.calm && w.r.IntN(3) == 0 {
		code := []errs.Code{errs.Refused, errs.Unreachable, errs.Unresponsive, errs.Restarted, errs.LaneLost}[w.r.IntN(5)]
		w.s.ConnectFailed(w.now, p.id, code, errors.New("no"), &w.out)
	} else {
		p.up, p.rails = true, nil
		for range 1 + w.r.IntN(3) {
			p.rails = append(p.rails, RailSpec{Window: []uint64{0, 5, 30, 500}[w.r.IntN(4)]})
		}
		w.s.Connected(w.now, p.id, p.rails, &w.out)
	}
	w.settle()
}

func (w *twin) finishClose(p *twinPath) {
	if p.closing {
		w.handOver(p)
		w.complete(func(sl *twinSlice) bool { return sl.path == p.id }, func() errs.Code { return errs.Closed })
	}
}

func (w *twin) trouble() {
	i := w.r.IntN(len(w.paths))
	p := w.paths[i]
	switch w.r.IntN(4) {
	case 0:
		w.s.PathDown(w.now, p.id, []errs.Code{errs.LaneLost, errs.Unreachable, errs.Restarted}[w.r.IntN(3)], nil, &w.out)
	case 1:
		w.paths = slices.Delete(w.paths, i, i+1)
		w.gone = append(w.gone, p)
		w.s.RemovePath(w.now, p.id, errs.Closed, nil, &w.out)
		w.settle()
		w.addPath()
	default:
		for o := uint64(1); o <= w.owner; o++ {
			if t := w.transfers[o]; !t.ended && t.id != 0 && w.r.IntN(5) == 0 {
				t.ending = true
				w.s.Cancel(w.now, t.id, errs.Canceled, &w.out)
				break
			}
		}
	}
	w.settle()
}

// often is true once in n times, and always when the world is calm.
func (w *twin) often(n int) bool { return w.calm || w.r.IntN(n) == 0 }

func (w *twin) step() {
	for _, p := range slices.Concat(w.paths, w.gone) {
		if w.often(3) {
			w.answerConnect(p)
		}
		if w.often(2) {
			w.handOver(p)
		}
		if w.often(3) {
			w.finishClose(p)
		}
	}
	w.complete(func(*twinSlice) bool { return w.often(3) }, w.code)
	w.now += Time(w.r.Int64N(int64(2 * time.Millisecond)))
	if wake := w.s.NextWake(); wake <= w.now {
		w.tick()
	}
}

// tick lets the due deadlines pass. Those transfers are over.
func (w *twin) tick() {
	for _, t := range w.transfers {
		if t.in.Deadline != 0 && t.in.Deadline <= w.now {
			t.ending = true
		}
	}
	w.s.Tick(w.now, &w.out)
	w.settle()
}

func (w *twin) run() error {
	for range 150 {
		if w.r.IntN(2) == 0 && len(w.transfers)-w.ended < 40 {
			w.submit()
		}
		if w.r.IntN(8) == 0 {
			w.trouble()
		}
		if w.step(); w.err != nil {
			return w.err
		}
	}
	w.calm = true
	for i := 0; w.ended < len(w.transfers); i++ {
		if i > 60_000 {
			return fmt.Errorf("%d transfers never ended; %d slices in flight, next wake in %d", len(w.transfers)-w.ended, len(w.slices), w.s.NextWake()-w.now)
		}
		if w.step(); w.err != nil {
			return w.err
		}
	}
	return w.empty()
}

// empty checks that nothing is left when all transfers have ended.
func (w *twin) empty() error {
	for range 5 {
		for _, p := range slices.Concat(w.paths, w.gone) {
			w.answerConnect(p)
			w.finishClose(p)
		}
		w.now += Time(time.Second)
		w.tick()
	}
	if w.err != nil {
		return w.err
	}
	var info PathInfo
	for _, p := range w.paths {
		if !w.s.Path(w.now, p.id, &info) {
			return fmt.Errorf("path %#x, which was not removed, is gone", p.id)
		}
		if info.Queued != 0 || info.InFlight != 0 {
			return fmt.Errorf("path %#x is left with %+v", p.id, info)
		}
		for _, r := range info.Rails {
			if r.InFlight != 0 || r.Slices != 0 {
				return fmt.Errorf("path %#x is left with %+v in flight", p.id, r)
			}
		}
	}
	if w.s.sliceCount != 0 || w.s.NextWake() != Never {
		return fmt.Errorf("%d slices left, next wake %d", w.s.sliceCount, w.s.NextWake())
	}
	free := 0
	for pi := w.s.freePath; pi != 0 && free <= len(w.s.paths); pi = w.s.paths[pi].next {
		free++
	}
	if used := len(w.s.paths) - 1 - free; used != len(w.paths) {
		return fmt.Errorf("%d of %d slots are taken for %d paths", used, len(w.s.paths)-1, len(w.paths))
	}
	return nil
}

// TestTwin plays the same worlds each time, so that a failure is one of the
// change at hand; TestSoakTwin looks for new ones.
func TestTwin(t *testing.T) {
	n := uint64(400)
	if testing.Short() {
		n = 100
	}
	for seed := range n {
		if err := newTwin(t, seed, seed%2 == 0).run(); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
	for _, found := range []struct {
		seed uint64
		runs bool
		what string
	}{
		{8573880966146451, false, "a path removed while it waited for a slice slot was freed twice"},
	} {
		if err := newTwin(t, found.seed, found.runs).run(); err != nil {
			t.Errorf("seed %d, %s: %v", found.seed, found.what, err)
		}
	}
}

func TestSoakTwin(t *testing.T) {
	testenv.NeedSoak(t)
	check := func(seed uint64) bool {
		err := newTwin(t, seed, seed%2 == 0).run()
		if err != nil {
			t.Logf("seed %d: %v", seed, err)
		}
		return err == nil
	}
	if err := quick.Check(check, &quick.Config{MaxCount: 10_000}); err != nil {
		t.Error(err)
	}
}
