// Command weftlab is weft's workshop: real servers to test and to try things with, and
// what runs on them.
package main

import (
	"context"
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
	"github.com/samuelhu324-dev/weft/internal/lab/load"
	"github.com/samuelhu324-dev/weft/internal/lab/report"
	"github.com/samuelhu324-dev/weft/internal/lab/stack"
	"github.com/samuelhu324-dev/weft/internal/lab/trail"
	"github.com/samuelhu324-dev/weft/internal/lab/units"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// run is the whole program: it returns the exit code.
func run(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	ctx, leave := stack.WithParent(ctx)
	defer leave()

	root := &cobra.Command{
		Use:               "weftlab",
		Short:             "weft's workshop: servers to test with, the demo and the drills",
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
	}
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError(err) })
	root.AddCommand(newStackCommand(), bench.Command(), chaos.Command(), demo.Command(), failover.Command(), load.Command(), report.Command(), trail.Command(), units.Command())
	root.AddCommand(drill.Commands()...)

	err := root.ExecuteContext(ctx)
	code, message := explain(err)
	if message != "" {
		fmt.Fprintf(stderr, "weftlab: %s\n", message)
	}
	return code
}
