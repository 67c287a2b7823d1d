package main

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/tideway-io/tideway"
)

func newStat(c *console) *cobra.Command {
	o := &client{c: c}
	cmd := &cobra.Command{
		Use:   "stat ADDR[/NAME]",
		Short: "Show another process: its life, its transports, the round trip, its buffers",
		Args:  arguments(1, 1, "ADDR or ADDR/NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := o.names.segmentPlace(args[0])
			if err == nil && p.hasOffset {
				err = usagef("%q: stat takes no range", args[0])
			}
			if err != nil {
				return err
			}
			return stat(cmd.Context(), o, p)
		},
	}
	o.flags(cmd, "table", "json")
	return cmd
}

// segmentInfo is what stat prints.
type segmentInfo struct {
	Segment     string       `json:"segment"`
	Addr        string       `json:"addr"`
	Incarnation string       `json:"incarnation"`
	Version     uint64       `json:"version"`
	Transports  []string     `json:"transports"`
	RTTMicros   float64      `json:"rtt_us"`
	Buffers     []bufferInfo `json:"buffers"`
}

func stat(ctx context.Context, o *client, p place) error {
	e, err := o.open(ctx, tuning{})
	if err != nil {
		return err
	}
	defer e.Close()
	seg, err := e.OpenSegment(ctx, p.addr)
	if err != nil {
		return err
	}
	defer seg.Close()
	info, err := statSegment(ctx, e, seg, p.name)
	if err != nil {
		return err
	}
	if o.output.value == "json" {
		return printJSON(o.c.out, info)
	}
	return info.print(o)
}

// statSegment asks for one buffer, or for all when name is empty.
func statSegment(ctx context.Context, e *tideway.Engine, seg *tideway.Segment, name string) (*segmentInfo, error) {
	info := &segmentInfo{Buffers: []bufferInfo{}}
	if name != "" {
		r, err := findBuffer(ctx, seg, name)
		if err != nil {
			return nil, err
		}
		d := r.Desc()
		info.Buffers = append(info.Buffers, describe(&d))
	}
	rtt, err := e.Probe(ctx, seg.Name())
	if err != nil {
		return nil, err
	}
	d := seg.Desc()
	info.Segment, info.Addr, info.Incarnation, info.Version = string(d.Name), d.Addr, d.Incarnation.String(), d.Version
	info.Transports, info.RTTMicros = d.Transports, float64(rtt)/float64(time.Microsecond)
	for i := range d.Buffers {
		if b := &d.Buffers[i]; name == "" && !internalName(b.Name) {
			info.Buffers = append(info.Buffers, describe(b))
		}
	}
	return info, nil
}

func (i *segmentInfo) print(o *client) error {
	err := printTable(o.c.out, [][]string{
		{"segment", i.Segment}, {"address", orDash(i.Addr)}, {"incarnation", i.Incarnation},
		{"version", strconv.FormatUint(i.Version, 10)},
		{"transports", orDash(strings.Join(i.Transports, ", "))}, {"round trip", formatMicros(i.RTTMicros)}, {""},
	})
	if err != nil {
		return err
	}
	return printTable(o.c.out, bufferRows(i.Buffers))
}

// formatMicros prints microseconds for people.
func formatMicros(us float64) string {
	d := time.Duration(us * float64(time.Microsecond))
	switch {
	case d < 10*time.Microsecond:
		return d.Round(10 * time.Nanosecond).String()
	case d < 10*time.Millisecond:
		return d.Round(time.Microsecond).String()
	}
	return d.Round(time.Millisecond).String()
}
