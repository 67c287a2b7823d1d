package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// versionInfo is what version prints.
type versionInfo struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func newVersion(c *console) *cobra.Command {
	output := choiceFlag{"table", []string{"table", "json"}}
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version of this build",
		Args:  arguments(0, 0, "no arguments"),
		RunE: func(*cobra.Command, []string) error {
			if output.value == "json" {
				return printJSON(c.out, buildVersion())
			}
			return printVersion(c.out)
		},
	}
	cmd.Flags().VarP(&output, "output", "o", "how to print the result")
	return cmd
}

func printVersion(w io.Writer) error {
	v := buildVersion()
	_, err := fmt.Fprintf(w, "tideway %s %s %s\n", v.Version, v.Go, v.Platform)
	return err
}

// buildVersion reads what the Go toolchain recorded in the binary.
func buildVersion() versionInfo {
	v := versionInfo{Version: "(unknown)", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	v.Version = info.Main.Version
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Revision = s.Value
		case "vcs.modified":
			v.Modified = s.Value == "true"
		}
	}
	return v
}
