package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/testenv/process"
	"github.com/samuelhu324-dev/weft/internal/testenv/stack"
)

const peersHelp = `Run the same backlog and the same faults on weft and on what one would pick instead:
PGSync, Hibernate Search with outbox polling, River's election, pgstream. All get the same
PostgreSQL, Debian's, and the same Elasticsearch; each runs with the settings that are
printed. Every document is compared with its row. docs/peers.md has figures.

It needs Debian's packages postgresql-15, redis-server and python3-venv, a JDK 17 or newer
and Maven. A peer that cannot be run is named with the reason. Leave the machine alone
while it runs: the figures are of the whole machine.

Exit code 0 means that it ran, whatever the figures are.`

func newPeersCommand() *cobra.Command {
	var rows, times int
	var only []string
	var file, dir string
	cmd := &cobra.Command{
		Use:     "peers",
		Short:   "Measure weft beside what one would pick instead of it",
		Long:    peersHelp,
		Example: "  weftlab peers --json peers.json\n  weftlab peers --rows 2000 --times 1 --only weft,PGSync",
		Args:    cobra.NoArgs,
		RunE: rig.RunE(func(ctx context.Context, cmd *cobra.Command) error {
			if rows < 1 || times < 1 {
				return usageError(errors.New("peers: --rows and --times are at least 1"))
			}
			args := []string{"-rows", strconv.Itoa(rows), "-times", strconv.Itoa(times), "-only", strings.Join(only, ",")}
			if file != "" {
				path, err := filepath.Abs(file)
				if err != nil {
					return err
				}
				args = append(args, "-json", path)
			}
			place := rig.Dir{Path: dir, Program: "peers", Holds: "logs"}
			return place.Run(ctx, func(ctx context.Context, path string) error {
				opts := stack.Options{Progress: cmd.ErrOrStderr(), ElasticURL: os.Getenv("ELASTIC_URL")}
				return runPeers(ctx, opts, path, args)
			})
		}),
	}
	f := cmd.Flags()
	f.IntVar(&rows, "rows", 100_000, "rows of the backlog")
	f.IntVar(&times, "times", 3, "take over `N` times after each fault")
	f.StringSliceVar(&only, "only", nil, "only these: weft, PGSync, Hibernate Search, pgstream, River")
	f.StringVar(&file, "json", "", "write the figures to `FILE` as JSON")
	f.StringVar(&dir, "dir", "", "keep logs and data in `DIR`")
	return cmd
}

// runPeers builds weft and the module of the peers, and runs that beside an Elasticsearch.
func runPeers(ctx context.Context, opts stack.Options, dir string, args []string) (err error) {
	weft, err := rig.Build(ctx, dir, nil)
	if err != nil {
		return err
	}
	tree, err := process.Tool{}.Run(ctx, "go", "list", "-m", "-f", "{{.Dir}}")
	if err != nil {
		return fmt.Errorf("tree of weft: %w", err)
	}
	source, peers := filepath.Join(strings.TrimSpace(tree), "tools", "peers"), filepath.Join(dir, "peers")
	if _, err := (process.Tool{}).Run(ctx, "go", "-C", source, "build", "-o", peers, "."); err != nil {
		return fmt.Errorf("build tools/peers: %w", err)
	}
	s, err := stack.Start(ctx, opts)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	return s.Run(ctx, append([]string{peers, "-weft", weft, "-source", source, "-dir", dir}, args...))
}
