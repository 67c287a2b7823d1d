package main

import (
	"context"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/tideway-io/tideway/segment"
)

func newLs(c *console) *cobra.Command {
	o := &client{c: c}
	var all bool
	cmd := &cobra.Command{
		Use:     "ls ADDR",
		Short:   "List the buffers that another process offers",
		Example: "  tideway ls 127.0.0.1:7000\n  tideway ls [fe80::1%eth0]:7000 -o json",
		Args:    arguments(1, 1, "ADDR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			addr, err := o.names.segment(args[0])
			if err != nil {
				return err
			}
			return ls(cmd.Context(), o, addr, all)
		},
	}
	o.flags(cmd, "table", "json")
	cmd.Flags().BoolVarP(&all, "all", "a", false, "list unnamed buffers and those of puts under way, too")
	return cmd
}

// bufferInfo is a published buffer as ls and stat print it.
type bufferInfo struct {
	Name     string `json:"name"`
	Length   uint64 `json:"length"`
	Access   string `json:"access"`
	Location string `json:"location"`
	Addr     uint64 `json:"addr,omitempty"`
	Key      uint32 `json:"key,omitempty"`
	ModTime  string `json:"modified,omitempty"` // files only
}

func describe(b *segment.Buffer) bufferInfo {
	d := bufferInfo{
		Name: b.Name, Length: b.Length, Access: b.Access.String(), Location: string(b.Location), Addr: b.Addr, Key: uint32(b.Key),
	}
	if b.Source.ModTime != 0 {
		d.ModTime = time.Unix(0, b.Source.ModTime).UTC().Format(time.RFC3339Nano)
	}
	return d
}

func ls(ctx context.Context, o *client, addr string, all bool) error {
	e, err := o.open(ctx, tuning{})
	if err != nil {
		return err
	}
	defer e.Close()
	seg, err := e.OpenSegment(ctx, addr)
	if err != nil {
		return err
	}
	defer seg.Close()
	list := []bufferInfo{}
	for _, b := range seg.Buffers() {
		if all || b.Name != "" && !internalName(b.Name) {
			list = append(list, describe(&b))
		}
	}
	if o.output.value == "json" {
		return printJSON(o.c.out, list)
	}
	return printTable(o.c.out, bufferRows(list))
}

func bufferRows(list []bufferInfo) [][]string {
	rows := [][]string{{"NAME", "SIZE", "ACCESS", "LOCATION", "MODIFIED"}}
	for _, b := range list {
		size := formatSize(b.Length)
		if b.Length >= 1024 {
			size += " (" + strconv.FormatUint(b.Length, 10) + ")"
		}
		rows = append(rows, []string{orDash(b.Name), size, b.Access, b.Location, orDash(b.ModTime)})
	}
	return rows
}
