package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
)

// The tables stand between these lines of the page.
const (
	beginMark = "<!-- made by make bench: begin -->"
	endMark   = "<!-- made by make bench: end -->"
)

// summary is one line for who watches.
func (m *measured) summary(r row) string {
	s := fmt.Sprintf("%-24s %s", m.Name, r.figure(m))
	if r.limit.name != "" {
		s += fmt.Sprintf("  %.2f of %s (%.2f to %.2f)", m.ratio(r), r.limit.name, m.Low, m.High)
	}
	return s
}

func (m *measured) ratio(r row) float64 {
	if r.latency {
		return r.ratio(m.P50, m.Limit)
	}
	return r.ratio(m.Rate, m.Limit)
}

// figure is the row's own result for people.
func (r row) figure(m *measured) string {
	if r.batch == 1 && r.size == 4<<10 {
		return fmt.Sprintf("p50/p99 %s/%s us", number(m.P50), number(m.P99))
	}
	if r.size == 4<<10 {
		return fmt.Sprintf("%.0f k req/s", m.Reqs/1000)
	}
	return fmt.Sprintf("%.2f GB/s", m.Rate/1e9)
}

// limitFigure is the limit's.
func (r row) limitFigure(m *measured) string {
	if r.latency {
		return fmt.Sprintf("p50 %s us", number(m.Limit))
	}
	return fmt.Sprintf("%.2f GB/s", m.Limit/1e9)
}

func number(v float64) string {
	if v < 10 {
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.0f", v)
}

// writePage replaces what is between the markers.
func writePage() error {
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	before, rest, ok := strings.Cut(string(text), beginMark)
	_, after, ok2 := strings.Cut(rest, endMark)
	if !ok || !ok2 {
		return fmt.Errorf("%s has no lines %s and %s", page, beginMark, endMark)
	}
	made, err := tables(rows(), load)
	if err != nil {
		return err
	}
	return os.WriteFile(page, []byte(before+beginMark+"\n"+machine()+made+endMark+after), 0o644)
}

// machine says where this was measured.
func machine() string {
	model := "unknown CPU"
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if _, rest, ok := strings.Cut(string(text), "model name"); ok {
			line, _, _ := strings.Cut(rest, "\n")
			model = strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), ":"))
		}
	}
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	control, _ := os.ReadFile("/proc/sys/net/ipv4/tcp_congestion_control")
	revision, _ := exec.Command("git", "describe", "--always", "--dirty").Output()
	return fmt.Sprintf("%d CPUs, %s; Linux %s, %s; the system's congestion control is %s, lanes and iperf3 use cubic; revision %s.\n\n",
		runtime.NumCPU(), model, strings.TrimSpace(string(kernel)), runtime.Version(), strings.TrimSpace(string(control)), strings.TrimSpace(string(revision)))
}

// tables makes the ratios and the comparison out of what has been measured.
func tables(rows []row, load func(string) (*measured, error)) (string, error) {
	found := map[string]*measured{}
	var b strings.Builder
	b.WriteString("| row | measured | limit | ratio (least to most) | CPU s/GiB | day |\n|---|---|---|---|---|---|\n")
	for _, r := range rows {
		m, err := load(r.name)
		if err != nil {
			return "", err
		}
		if m == nil {
			continue
		}
		found[r.name] = m
		limit, ratio := "-", "-"
		if r.limit.name != "" {
			limit = r.limit.name + " " + r.limitFigure(m)
			ratio = fmt.Sprintf("%.2f (%.2f to %.2f)", m.ratio(r), m.Low, m.High)
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %.2f | %s |\n", r.name, r.figure(m), limit, ratio, m.CPU, m.When.Format("2006-01-02"))
	}
	b.WriteString("\nRows are named transport, operation, size, requests in a batch and threads; `bin/measure -rows NAME`\n" +
		"measures one again. A ratio is the limit's latency over ours, or our rate over the limit's.\n\n")
	b.WriteString(published(rows, found))
	return b.String(), nil
}
