package core

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/transport"
)

var rewrite = flag.Bool("rewrite", false, "write what the shard did into testdata/*.txt")

// TestTranscripts plays testdata/*.txt. A file is blocks of commands, each
// followed by a line of dashes and what the shard asked for. Lines that start
// with # are prose. Run with -rewrite after a change that is meant, and read
// the difference.
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) < 10 {
		t.Fatalf("%d transcripts found, want at least 10: %v", len(files), err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := play(t, string(text))
			if *rewrite {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got != string(text) {
				t.Errorf("the shard did otherwise; with -rewrite it is:\n%s", got)
			}
		})
	}
}

// player is a shard whose paths, transfers and slices have names.
type player struct {
	s     *Shard
	now   Time
	out   Actions
	wake  Time
	paths map[string]PathID
	names map[PathID]string
	ids   map[string]TransferID
	owner []string             // names of transfers by owner
	live  map[string]liveSlice // by name
	order []string             // names of live slices, oldest first
	print strings.Builder
}

type liveSlice struct {
	Slice
	path PathID
}

func play(t *testing.T, text string) string {
	p := &player{
		s: NewShard(Config{Retries: 3}), wake: Never, paths: map[string]PathID{}, names: map[PathID]string{},
		ids: map[string]TransferID{}, live: map[string]liveSlice{},
	}
	var out strings.Builder
	for _, block := range strings.Split(strings.TrimSpace(text), "\n\n") {
		if out.Len() > 0 {
			out.WriteString("\n")
		}
		var commands []string
		for _, line := range strings.Split(block, "\n") {
			if line == "----" {
				break
			}
			out.WriteString(line + "\n")
			if !strings.HasPrefix(line, "#") {
				commands = append(commands, line)
			}
		}
		if len(commands) == 0 {
			continue
		}
		for len(commands) > 0 {
			n := 1
			for n < len(commands) && strings.HasPrefix(commands[0], "submit ") && strings.HasPrefix(commands[n], "submit ") {
				n++ // neighbours are one batch
			}
			if err := p.do(commands[:n]); err != nil {
				t.Fatalf("%q: %v", commands[0], err)
			}
			p.report()
			commands = commands[n:]
		}
		if p.s.NextWake() != p.wake {
			if p.wake = p.s.NextWake(); p.wake != Never {
				fmt.Fprintf(&p.print, "wake at %v\n", time.Duration(p.wake))
			}
		}
		if p.print.Len() == 0 {
			p.print.WriteString("nothing\n")
		}
		out.WriteString("----\n" + p.print.String())
		p.print.Reset()
	}
	return out.String()
}

// args splits a command into plain words and key=value ones.
func args(line string) (words []string, opts map[string]string) {
	opts = map[string]string{}
	for _, w := range strings.Fields(line) {
		if k, v, ok := strings.Cut(w, "="); ok {
			opts[k] = v
		} else {
			words = append(words, w)
		}
	}
	return words, opts
}

func (p *player) do(lines []string) error {
	words, opts := args(lines[0])
	switch words[0] {
	case "config":
		return p.config(opts)
	case "path":
		spec := PathSpec{MaxSlice: size(opts["max"]), Align: size(opts["align"]), Fences: slices.Contains(words, "fences")}
		p.paths[words[1]] = p.s.AddPath(spec)
		p.names[p.paths[words[1]]] = words[1]
	case "submit":
		return p.submit(lines)
	case "run":
		return p.run(words, opts)
	case "connected":
		rails := make([]RailSpec, max(1, int(size(opts["rails"]))))
		for i := range rails {
			rails[i].Window = size(opts["window"])
		}
		p.s.Connected(p.now, p.paths[words[1]], rails, &p.out)
	case "connect-failed":
		p.s.ConnectFailed(p.now, p.paths[words[1]], code(words[2]), fmt.Errorf("dial: %s", words[2]), &p.out)
	case "complete":
		return p.complete(words[1:])
	case "refuse":
		return p.refuse(words[1], words[2:len(words)-1], code(words[len(words)-1]))
	case "down":
		p.s.PathDown(p.now, p.paths[words[1]], code(words[2]), fmt.Errorf("noticed: %s", words[2]), &p.out)
	case "remove":
		p.s.RemovePath(p.now, p.paths[words[1]], code(words[2]), fmt.Errorf("removed: %s", words[2]), &p.out)
	case "cancel":
		p.s.Cancel(p.now, p.ids[words[1]], errs.Canceled, &p.out)
	case "wait":
		d, err := time.ParseDuration(words[1])
		if err != nil {
			return err
		}
		p.now += Time(d)
		if p.s.NextWake() <= p.now {
			p.s.Tick(p.now, &p.out)
		}
	case "serve":
		return p.serve(int(size(words[1])))
	case "show":
		p.show(words[1])
	default:
		return fmt.Errorf("no such command")
	}
	return nil
}

func (p *player) config(opts map[string]string) error {
	cfg := Config{Retries: 3}
	for k, v := range opts {
		switch k {
		case "retries":
			cfg.Retries = int(size(v))
		case "slice":
			cfg.SliceBytes = size(v)
		case "window":
			cfg.Window = size(v)
		case "max-window":
			cfg.MaxWindow = size(v)
		case "slices":
			cfg.MaxSlices = int(size(v))
		default:
			return fmt.Errorf("no such option %s", k)
		}
	}
	p.s = NewShard(cfg)
	return nil
}

func (p *player) submit(lines []string) error {
	ts, ids := make([]Transfer, len(lines)), make([]TransferID, len(lines))
	for i, line := range lines {
		words, opts := args(line) // submit NAME OP SIZE PATH... class= batch= within=
		t := &ts[i]
		*t = Transfer{Owner: uint64(len(p.owner)), Op: transport.Read, Class: 1, Length: size(words[3])}
		if words[2] == "write" {
			t.Op = transport.Write
		}
		if opts["class"] != "" {
			t.Class = transport.Class(size(opts["class"]))
		}
		if opts["batch"] != "" {
			t.Group = size(opts["batch"])
		}
		if d, err := time.ParseDuration(opts["within"]); err == nil {
			t.Deadline = p.now + Time(d)
		}
		for _, name := range words[4:] {
			t.Ladder[t.Rungs] = p.paths[name]
			t.Rungs++
		}
		p.owner = append(p.owner, words[1])
	}
	p.s.Submit(p.now, ts, ids, &p.out)
	for i := range ids {
		p.ids[p.owner[ts[i].Owner]] = ids[i]
	}
	return nil
}

// run NAME COUNT OP SIZE PATH... submits NAME0, NAME1 and so on as one run.
func (p *player) run(words []string, opts map[string]string) error {
	t := Transfer{Owner: uint64(len(p.owner)), Op: transport.Read, Class: 1}
	if words[3] == "write" {
		t.Op = transport.Write
	}
	if d, err := time.ParseDuration(opts["within"]); err == nil {
		t.Deadline = p.now + Time(d)
	}
	for _, name := range words[5:] {
		t.Ladder[t.Rungs] = p.paths[name]
		t.Rungs++
	}
	for i := range size(words[2]) {
		t.Lengths = append(t.Lengths, uint32(size(words[4])))
		p.owner = append(p.owner, fmt.Sprint(words[1], i))
	}
	var ids [1]TransferID
	p.s.Submit(p.now, []Transfer{t}, ids[:], &p.out)
	for i := range t.Lengths {
		p.ids[p.owner[t.Owner+uint64(i)]] = ids[0] + TransferID(i)
	}
	return nil
}

// pick returns the names of live slices that the words mean: "*", a transfer's
// name, or a slice's.
func (p *player) pick(words []string) (names []string) {
	for _, name := range p.order {
		for _, w := range words {
			if w == "*" || w == name || strings.HasPrefix(name, w+"@") {
				names = append(names, name)
				break
			}
		}
	}
	return names
}

func (p *player) forget(name string) liveSlice {
	sl := p.live[name]
	delete(p.live, name)
	p.order = slices.DeleteFunc(p.order, func(s string) bool { return s == name })
	return sl
}

func (p *player) complete(words []string) error {
	doubt := words[len(words)-1] == "in-doubt"
	if doubt {
		words = words[:len(words)-1]
	}
	c := code(words[len(words)-1])
	var done []transport.Completion
	for _, name := range p.pick(words[:len(words)-1]) {
		d := transport.Completion{Tag: p.forget(name).Tag, Code: c, InDoubt: doubt}
		if c != errs.OK {
			d.Err = fmt.Errorf("slice: %v", c)
		}
		done = append(done, d)
	}
	if len(done) == 0 {
		return fmt.Errorf("no such slice in flight")
	}
	p.s.Completed(p.now, done, &p.out)
	return nil
}

func (p *player) refuse(path string, words []string, c errs.Code) error {
	var refused []transport.Tag
	for _, name := range p.pick(words) {
		refused = append(refused, p.forget(name).Tag)
	}
	if len(refused) == 0 {
		return fmt.Errorf("no such slice in flight")
	}
	p.s.Refused(p.now, p.paths[path], refused, c, fmt.Errorf("post: %v", c), &p.out)
	return nil
}

// serve completes the oldest slice n times, a microsecond each, and prints how
// many bytes each transfer got, instead of what was posted.
func (p *player) serve(n int) error {
	served := map[string]uint64{}
	var ended []string
	for range n {
		if len(p.order) == 0 {
			return fmt.Errorf("nothing in flight any more")
		}
		p.now += 1000
		sl := p.forget(p.order[0])
		served[p.owner[sl.Owner]] += sl.Length
		p.s.Completed(p.now, []transport.Completion{{Tag: sl.Tag}}, &p.out)
		for _, post := range p.out.Posts {
			for i := range post.Slices {
				p.note(&post.Slices[i], post.Path)
			}
		}
		for _, e := range p.out.Ends {
			ended = append(ended, p.owner[e.Owner])
		}
		p.out.Reset()
	}
	for _, name := range p.owner {
		if served[name] > 0 {
			fmt.Fprintf(&p.print, "%s got %s\n", name, short(served[name]))
			delete(served, name)
		}
	}
	if len(ended) > 0 {
		fmt.Fprintf(&p.print, "ended: %s\n", strings.Join(ended, " "))
	}
	return nil
}

func (p *player) show(name string) {
	var info PathInfo
	p.s.Path(p.now, p.paths[name], &info)
	fmt.Fprintf(&p.print, "%s is %v, %d waiting, %d in flight\n", name, info.State, info.Queued, info.InFlight)
	for i, r := range info.Rails {
		fmt.Fprintf(&p.print, "  rail %d: %s of %s", i, short(r.InFlight), short(r.Window))
		if r.Resting {
			p.print.WriteString(", resting")
		}
		p.print.WriteString("\n")
	}
}

// note remembers a posted slice and returns its name.
func (p *player) note(sl *Slice, path PathID) string {
	name := fmt.Sprintf("%s@%s", p.owner[sl.Owner], short(sl.Offset))
	p.live[name] = liveSlice{*sl, path}
	p.order = append(p.order, name)
	return name
}

// noteRun is note for a run, and prints it.
func (p *player) noteRun(sl *Slice, path PathID) {
	fmt.Fprintf(&p.print, "post on %s:", p.names[path])
	for i := range int(sl.Run) {
		one := *sl
		one.Tag, one.Owner = sl.Tag+transport.Tag(i), sl.Owner+uint64(i)
		fmt.Fprintf(&p.print, " %s", p.note(&one, path))
	}
	if sl.Rail > 0 {
		fmt.Fprintf(&p.print, ", rail %d", sl.Rail)
	}
	p.print.WriteString("\n")
}

// report prints what the shard asked for and takes note of it.
func (p *player) report() {
	out, w := &p.out, &p.print
	for _, c := range out.Cancels {
		fmt.Fprintf(w, "cancel on %s:", p.names[c.Path])
		for _, name := range p.order {
			if slices.Contains(c.Tags, p.live[name].Tag) {
				w.WriteString(" " + name)
			}
		}
		w.WriteString("\n")
	}
	for _, post := range out.Posts {
		for i := range post.Slices {
			sl := &post.Slices[i]
			if sl.Run > 0 {
				p.noteRun(sl, post.Path)
				continue
			}
			fmt.Fprintf(w, "post on %s: %s, %s", p.names[post.Path], p.note(sl, post.Path), short(sl.Length))
			if sl.Rail > 0 {
				fmt.Fprintf(w, ", rail %d", sl.Rail)
			}
			if sl.Retry > 0 {
				fmt.Fprintf(w, ", retry %d", sl.Retry)
			}
			w.WriteString("\n")
		}
	}
	for _, id := range out.Close {
		fmt.Fprintf(w, "close %s\n", p.names[id])
	}
	for _, id := range out.Connect {
		fmt.Fprintf(w, "connect %s\n", p.names[id])
	}
	for _, e := range out.Ends {
		p.reportEnd(e)
	}
	if out.Fault != "" {
		fmt.Fprintf(w, "fault: %s\n", out.Fault)
	}
	out.Reset()
}

func (p *player) reportEnd(e End) {
	w := &p.print
	if e.Run > 0 {
		fmt.Fprintf(w, "%s to %s end", p.owner[e.Owner], p.owner[e.Owner+uint64(e.Run)-1])
	} else {
		fmt.Fprintf(w, "%s ends", p.owner[e.Owner])
	}
	fmt.Fprintf(w, ": %v", e.Code)
	if e.Path != 0 {
		fmt.Fprintf(w, " on %s", p.names[e.Path])
	}
	fmt.Fprintf(w, ", %s done", short(e.Bytes))
	if e.InDoubt {
		w.WriteString(", in doubt")
	}
	if e.Retryable {
		w.WriteString(", retryable")
	}
	if e.Err != nil {
		fmt.Fprintf(w, ": %v", e.Err)
	}
	w.WriteString("\n")
	for _, a := range e.Attempts {
		fmt.Fprintf(w, "  tried %s", p.names[a.Path])
		if a.Rail >= 0 {
			fmt.Fprintf(w, " rail %d", a.Rail)
		}
		fmt.Fprintf(w, ": %v\n", a.Code)
	}
}

func code(name string) errs.Code {
	for _, c := range errs.Codes() {
		if c.String() == name {
			return c
		}
	}
	panic("no such code: " + name)
}

// size reads a number with an optional KiB, MiB or GiB; "" is 0.
func size(s string) uint64 {
	for i, unit := range []string{"KiB", "MiB", "GiB"} {
		if n, ok := strings.CutSuffix(s, unit); ok {
			return size(n) << (10 * (i + 1))
		}
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil && s != "" {
		panic(err)
	}
	return n
}

// short is the inverse of size.
func short(n uint64) string {
	for i, unit := range []string{"GiB", "MiB", "KiB"} {
		if shift := 30 - 10*i; n != 0 && n&(1<<shift-1) == 0 {
			return fmt.Sprintf("%d%s", n>>shift, unit)
		}
	}
	return strconv.FormatUint(n, 10)
}
