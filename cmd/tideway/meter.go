package main

import (
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/term"
)

// lineEvery is the time between two progress lines where there is no terminal.
const lineEvery = 5 * time.Second

// meter counts what has moved and says so: as a bar on a terminal, as a line
// now and then elsewhere, not at all when quiet. add may be called from any
// goroutine.
type meter struct {
	what  string
	total uint64 // 0: not known
	base  uint64 // moved by an earlier attempt
	start time.Time
	now   atomic.Uint64

	out  io.Writer // nil when quiet
	bars *mpb.Progress
	bar  *mpb.Bar
	quit chan struct{}
	wg   sync.WaitGroup
}

// newMeter starts a meter for total bytes of which base are there already.
func newMeter(out io.Writer, what string, base, total uint64) *meter {
	m := &meter{what: what, total: total, base: base, start: time.Now(), out: out, quit: make(chan struct{})}
	m.now.Store(base)
	if isTerminal(out) && total > 0 {
		m.bars = mpb.New(mpb.WithOutput(out), mpb.WithWidth(40))
		m.bar = m.bars.AddBar(int64(total), mpb.PrependDecorators(decor.Name(what+" ")),
			mpb.AppendDecorators(decor.Any(func(decor.Statistics) string { return " " + m.text() })))
		m.bar.SetCurrent(int64(base))
	} else if out != nil {
		m.wg.Go(m.lines)
	}
	return m
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// add counts n more bytes.
func (m *meter) add(n int) {
	m.now.Add(uint64(n))
	if m.bar != nil {
		m.bar.IncrBy(n)
	}
}

// moved returns the bytes of this attempt and the time that it has taken.
func (m *meter) moved() (uint64, time.Duration) { return m.now.Load() - m.base, time.Since(m.start) }

// text says how far it is, how fast it goes and how long it will take.
func (m *meter) text() string {
	n, d := m.moved()
	s := fmt.Sprintf("%s  %s", formatSize(m.base+n), formatRate(rate(n, d)))
	if m.total == 0 {
		return s
	}
	return fmt.Sprintf("%s of %s  %d%%  %s  ETA %s", formatSize(m.base+n), formatSize(m.total),
		int(float64(m.base+n)/float64(m.total)*100), formatRate(rate(n, d)), eta(m.total-min(m.base+n, m.total), n, d))
}

// eta guesses the time that is left from the average so far.
func eta(left, moved uint64, d time.Duration) string {
	if left == 0 {
		return "0s"
	}
	if moved == 0 || d <= 0 {
		return "-"
	}
	seconds := float64(left) / rate(moved, d)
	if seconds > 1e9 {
		return "-"
	}
	return time.Duration(seconds * float64(time.Second)).Round(time.Second).String()
}

func (m *meter) lines() {
	t := time.NewTicker(lineEvery)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			fmt.Fprintf(m.out, "%s: %s\n", m.what, m.text())
		case <-m.quit:
			return
		}
	}
}

// stop ends the display, leaving a bar as it is.
func (m *meter) stop() {
	close(m.quit)
	m.wg.Wait()
	if m.bar != nil {
		m.bar.Abort(false)
		m.bars.Wait()
	}
}
