package main

import (
	"fmt"
	"strings"
)

// others are figures of other engines, measured once on a machine with two
// processors over loopback, with one thread that submits; write, then read.
type others struct {
	shape                             string
	classic, pooled, tent, tentMemory string
	tcp, single, memory               string // names of our rows with OP for the operation
}

func othersTable() []others {
	return []others{
		{"4 KiB one by one, p50/p99 us", "104/281; 92/246", "48/79; 49/111", "78/145; 86/172", "1/1; 1/1", "tcp-OP-4k-b1-t1", "", "shm-OP-4k-b1-t1"},
		{"4 KiB, batch of 128, k req/s", "14; 14", "31; 32", "-", "-", "tcp-OP-4k-b128-t1", "", "shm-OP-4k-b128-t1"},
		{"64 KiB, batch of 16 (TENT one by one), GB/s", "0.77; 0.75", "1.56; 1.41", "0.48; 0.55", "25; 24", "tcp-OP-64k-b16-t1", "tcp-OP-64k-b1-t1", "shm-OP-64k-b1-t1"},
		{"1 MiB, batch of 8 (TENT one by one), GB/s", "1.67; 1.77", "2.02; 1.66", "1.34; 1.80", "41; 41 (in cache)", "tcp-OP-1m-b8-t1", "tcp-OP-1m-b1-t1", "shm-OP-1m-b1-t1"},
		{"16 MiB one by one, GB/s", "1.92; 1.66", "2.04; 1.64", "1.11; 1.38", "23; 21", "tcp-OP-16m-b1-t1", "", "shm-OP-16m-b1-t1"},
		{"8 threads, 4 KiB one by one, p50/p99 us", "p99 25,000", "", "p99 25,000", "", "tcp-OP-4k-b1-t8", "", ""},
		{"8 threads, 64 KiB one by one, GB/s", "0.1 to 0.3", "", "0.1 to 0.3", "", "tcp-OP-64k-b1-t8", "", ""},
		{"8 threads, 1 MiB one by one, GB/s", "0.44", "", "0.6", "", "tcp-OP-1m-b1-t8", "", ""},
		{"8 threads, 16 MiB one by one, GB/s", "0.4", "", "0.9", "", "tcp-OP-16m-b1-t8", "", ""},
	}
}

// published puts our rows beside the figures of others.
func published(rows []row, found map[string]*measured) string {
	cell := func(name string) string {
		var parts []string
		for _, op := range []string{"write", "read"} {
			for _, r := range rows {
				if m := found[r.name]; m != nil && name != "" && r.name == strings.ReplaceAll(name, "OP", op) {
					text := strings.TrimPrefix(r.figure(m), "p50/p99 ")
					for _, unit := range []string{" us", " GB/s", " k req/s"} {
						text = strings.TrimSuffix(text, unit)
					}
					parts = append(parts, text)
				}
			}
		}
		if parts == nil {
			return "-"
		}
		return strings.Join(parts, "; ")
	}
	var b strings.Builder
	b.WriteString("**Beside other engines.** Theirs were measured once, on a machine with two processors like this one, over loopback, and\n" +
		"not in this run: they say what order of magnitude to expect, not by how many per cent. Write; read.\n\n" +
		"| one thread unless said | Mooncake classic TCP | the same, pooled lanes | TENT TCP, one by one | TENT shared memory, one by one | Tideway tcp | Tideway tcp, one by one | Tideway shm, one by one |\n" +
		"|---|---|---|---|---|---|---|---|\n")
	dash := func(s string) string {
		if s == "" {
			return "-"
		}
		return s
	}
	for _, o := range othersTable() {
		single := o.single
		if single == "" && !strings.Contains(o.tcp, "-b128-") {
			single = o.tcp
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s | %s |\n", o.shape, dash(o.classic), dash(o.pooled), dash(o.tent), dash(o.tentMemory),
			cell(o.tcp), cell(single), cell(o.memory))
	}
	b.WriteString("\nOur memory is 64 MiB at each end, walked in order, so that it does not come from a cache; with 4 KiB it is 4 MiB.\n")
	return b.String()
}
