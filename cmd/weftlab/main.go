// Command weftlab is weft's workshop: real servers to test and to try things with, and
// what runs on them.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/samuelhu324-dev/weft/internal/lab/bench"
	"github.com/samuelhu324-dev/weft/internal/lab/chaos"
	"github.com/samuelhu324-dev/weft/internal/lab/demo"
	"github.com/samuelhu324-dev/weft/internal/lab/drill"
	"github.com/samuelhu324-dev/weft/internal/lab/failover"
	"github.com/samuelhu324-dev/weft/internal/lab/systemd"
	"github.com/samuelhu324-dev/weft/internal/lab/traffic"
	"github.com/samuelhu324-dev/weft/internal/lab/verdict"
	"github.com/samuelhu324-dev/weft/internal/testenv/stack"
)

func main() {
	stack.GuardIfAsked()
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// run is the whole program: it returns the exit code.
func run(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	stack.EndWithGoRun()

	root := &cobra.Command{
		Use:   "weftlab",
		Short: "weft's workshop: servers to test with, the demo and the drills",
		Long: `weft's workshop: servers to test with, the demo, the drills, and what breaks and measures
weft. It needs Go, a JDK 17 or newer and Maven. Never point it at a server that matters.

Exit codes:
    0  done, and what was judged is good
    1  it is not good, or something failed
   64  the command line is wrong
   69  the servers of stack could not be started; otherwise stack ends as its command does
  130  the start of the servers was interrupted, 143: terminated`,
		Example: `  weftlab demo
  weftlab run leader_sigkill && weftlab verify leader_sigkill
  weftlab chaos --duration 3m
  eval "$(weftlab stack up)"`,
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
	}
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError(err) })
	root.AddCommand(newStackCommand(), bench.Command(), chaos.Command(), demo.Command(), failover.Command(), newPeersCommand(), traffic.Command(), verdict.Command(), verdict.HistoryCommand(), systemd.Command())
	root.AddCommand(drill.Commands()...)
	argsAreUsage(root)

	err := root.ExecuteContext(ctx)
	code, message := explain(err)
	if message != "" {
		fmt.Fprintf(stderr, "weftlab: %s\n", message)
	}
	return code
}

// argsAreUsage makes what a command says about its arguments an error of usage.
func argsAreUsage(cmd *cobra.Command) {
	if check := cmd.Args; check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			err := check(cmd, args)
			if _, ok := errors.AsType[*exitError](err); ok || err == nil {
				return err
			}
			return usageError(fmt.Errorf("%s: %w", cmd.Name(), err))
		}
	}
	for _, c := range cmd.Commands() {
		argsAreUsage(c)
	}
}
