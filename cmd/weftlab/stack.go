package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/samuelhu324-dev/weft/internal/testenv/stack"
)

const stackHelp = `stack -- CMD starts a PostgreSQL and an Elasticsearch, runs CMD with DATABASE_URL
and ELASTIC_URL, ends with CMD's exit code and takes the servers and their data down.

The servers are fetched with mvn the first time and kept in the user's cache
directory (root: /var/cache/weft). Elasticsearch 8 and OpenSearch 2 need a JDK 17 or
newer, Elasticsearch 9 and OpenSearch 3 one of 21 or newer.
Where DATABASE_URL or ELASTIC_URL is set, that server is used and none started.

up keeps a pair running, for as long as the machine runs or until down:
  eval "$(weftlab stack up)"`

func newStackCommand() *cobra.Command {
	var opts stack.Options
	var stateFile string
	cmd := &cobra.Command{
		Use:   "stack -- CMD [ARG…]",
		Short: "Start a PostgreSQL and an Elasticsearch for a command, or keep them running",
		Long:  stackHelp,
		Example: "  weftlab stack -- go test ./...\n  weftlab stack --postgres 14 --elastic 9.2.0 -- bash\n" +
			"  weftlab stack --elastic-nodes 3 -- bash",
		Args: func(cmd *cobra.Command, args []string) error {
			if cmd.ArgsLenAtDash() != 0 || len(args) == 0 {
				return usageError(errors.New("stack needs `-- CMD`, or one of up, down, status"))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return runInStack(cmd.Context(), stackOptions(cmd.ErrOrStderr(), opts), args)
		},
	}
	cmd.PersistentFlags().IntVar(&opts.HeapMB, "elastic-heap", 0, fmt.Sprintf("heap of each Elasticsearch in MiB (default %d, or %d where there are several)", stack.DefaultHeapMB, stack.NodeHeapMB))
	cmd.PersistentFlags().IntVar(&opts.ElasticNodes, "elastic-nodes", 1, "nodes of Elasticsearch, as one cluster: 1 to 9; three take 3 GB")
	cmd.PersistentFlags().BoolVar(&opts.Quick, "quick", false, "for servers that live for minutes: half the CPU time of Elasticsearch at a lower throughput, a PostgreSQL that does not wait for the disk, and data in memory where there is enough")
	cmd.PersistentFlags().BoolVar(&opts.Logical, "logical", false, "let PostgreSQL write what logical decoding reads")
	opts.AddFlags(cmd.PersistentFlags())
	cmd.PersistentFlags().StringVar(&stateFile, "state", "", "`file` that describes the running servers (default: in the cache directory)")
	cmd.AddCommand(newUpCommand(&opts, &stateFile), newDownCommand(&stateFile), newStatusCommand(&stateFile))
	return cmd
}

func stackOptions(progress io.Writer, opts stack.Options) stack.Options {
	opts.Progress, opts.DatabaseURL, opts.ElasticURL = progress, os.Getenv("DATABASE_URL"), os.Getenv("ELASTIC_URL")
	return opts
}

func runInStack(ctx context.Context, opts stack.Options, argv []string) (err error) {
	// Until the servers are down a SIGINT must not end this process; the command gets its own.
	starting, stop := signal.NotifyContext(ctx, syscall.SIGINT)
	defer stop()
	s, err := stack.Start(starting, opts)
	if err != nil {
		return startError(ctx, starting, err)
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	return s.Run(ctx, argv)
}

// startError: ctx ends with a SIGTERM or the parent, starting also with a SIGINT.
func startError(ctx, starting context.Context, err error) error {
	code := exitUnavailable
	switch {
	case ctx.Err() != nil:
		code = exitTerminated
	case starting.Err() != nil:
		code = exitInterrupted
	}
	return &exitError{code, "stack: " + err.Error()}
}

func newUpCommand(opts *stack.Options, stateFile *string) *cobra.Command {
	return &cobra.Command{
		Use:     "up",
		Short:   "Start the servers and leave them running; print their URLs as shell exports",
		Example: "  eval \"$(weftlab stack up)\"",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT)
			defer stop()
			state, started, err := stack.Up(ctx, stackOptions(cmd.ErrOrStderr(), *opts), *stateFile)
			if err != nil {
				return startError(cmd.Context(), ctx, err)
			}
			if !started {
				fmt.Fprintf(cmd.ErrOrStderr(), "stack: running since %s\n", state.StartedAt.Local().Format(time.DateTime))
			}
			printExports(cmd.OutOrStdout(), state, *stateFile)
			return nil
		},
	}
}

func printExports(w io.Writer, state *stack.State, stateFile string) {
	if state.Postgres != nil {
		fmt.Fprintf(w, "export DATABASE_URL='%s'\n", state.Postgres.URL)
	}
	if state.Elastic != nil {
		fmt.Fprintf(w, "export ELASTIC_URL='%s'\n", state.ElasticURL())
	}
	down := "weftlab stack down"
	if stateFile != "" {
		down += " --state '" + stateFile + "'"
	}
	fmt.Fprintln(w, "# stop them: "+down)
}

func newDownCommand(stateFile *string) *cobra.Command {
	return &cobra.Command{
		Use:     "down",
		Short:   "Stop the servers that up left running and remove their data",
		Example: "  weftlab stack down",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			stopped, err := stack.Down(cmd.Context(), *stateFile)
			if err != nil {
				return err
			}
			message := "stopped"
			if !stopped {
				message = "nothing is running"
			}
			fmt.Fprintln(cmd.ErrOrStderr(), "stack: "+message)
			return nil
		},
	}
}

func newStatusCommand(stateFile *string) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "status",
		Short:   "Show the servers that up left running; exit code 1 unless all of them run",
		Example: "  weftlab stack status --json | jq .servers",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			state, err := stack.Status(*stateFile)
			if err != nil {
				return err
			}
			rows := statusRows(state)
			if asJSON {
				encoder := json.NewEncoder(cmd.OutOrStdout())
				encoder.SetIndent("", "  ")
				err = encoder.Encode(map[string]any{"servers": rows})
			} else {
				err = printStatus(cmd.OutOrStdout(), rows)
			}
			if err != nil {
				return err
			}
			for _, row := range rows {
				if row.State != "running" {
					return &exitError{code: exitBad}
				}
			}
			if len(rows) == 0 {
				return &exitError{code: exitBad}
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

type statusRow struct {
	Server    string    `json:"server"`
	State     string    `json:"state"` // running, ended
	URL       string    `json:"url"`
	PID       int       `json:"pid"`
	StartedAt time.Time `json:"started_at"`
}

func statusRows(state *stack.State) []statusRow {
	rows := []statusRow{}
	if state == nil {
		return rows
	}
	add := func(name stack.Server, server *stack.RunningServer) {
		if server == nil {
			return
		}
		row := statusRow{string(name), "running", server.URL, server.Process.PID, state.StartedAt}
		if !server.Process.Alive() {
			row.State = "ended"
		}
		rows = append(rows, row)
	}
	add(stack.Postgres, state.Postgres)
	for n, node := range append([]*stack.RunningServer{state.Elastic}, state.ElasticOthers...) {
		add(stack.ElasticNode(n+1), node)
	}
	return rows
}

func printStatus(w io.Writer, rows []statusRow) error {
	if len(rows) == 0 {
		_, err := fmt.Fprintln(w, "nothing is running")
		return err
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, strings.Join([]string{"SERVER", "STATE", "PID", "SINCE", "URL"}, "\t"))
	for _, row := range rows {
		fmt.Fprintf(table, "%s\t%s\t%d\t%s\t%s\n", row.Server, row.State, row.PID, row.StartedAt.Local().Format(time.DateTime), row.URL)
	}
	return table.Flush()
}
