package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// Stamped by the linker: -X main.version=… -X main.commit=….
var (
	version = ""
	commit  = ""
)

// build says which build this is.
type build struct {
	Version  string `json:"version"`
	Commit   string `json:"commit"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func (b build) String() string {
	return fmt.Sprintf("weft %s (commit %s, %s, %s)", b.Version, b.Commit, b.Go, b.Platform)
}

// readBuild prefers what the linker stamped to what the go command recorded.
func readBuild() build {
	b := build{Version: version, Commit: commit, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if info, ok := debug.ReadBuildInfo(); ok {
		b.Version = cmp.Or(b.Version, info.Main.Version)
		var rev, dirty string
		for _, s := range info.Settings {
			switch {
			case s.Key == "vcs.revision":
				rev = s.Value[:min(12, len(s.Value))]
			case s.Key == "vcs.modified" && s.Value == "true":
				dirty = "+dirty"
			}
		}
		if rev != "" {
			b.Commit = cmp.Or(b.Commit, rev+dirty)
		}
	}
	b.Version, b.Commit = cmp.Or(b.Version, "(devel)"), cmp.Or(b.Commit, "unknown")
	return b
}

func (a *app) versionCommand(b build) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print which build this is",
		Example: "  weft version --json",
		Args:    noArgs,
		RunE: func(*cobra.Command, []string) error {
			if a.asJSON {
				return json.NewEncoder(a.stdout).Encode(b)
			}
			_, err := fmt.Fprintln(a.stdout, b)
			return err
		},
	}
	cmd.Flags().BoolVar(&a.asJSON, "json", false, "print JSON")
	return cmd
}
