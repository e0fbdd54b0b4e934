package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"

	"github.com/spf13/cobra"

	"github.com/samuelhu324-dev/weft/internal/config"
	"github.com/samuelhu324-dev/weft/internal/daemon"
	"github.com/samuelhu324-dev/weft/internal/postgres"
	"github.com/samuelhu324-dev/weft/internal/records"
	"github.com/samuelhu324-dev/weft/internal/telemetry"
)

// app is what the commands share. Its functions are seams for tests.
type app struct {
	environ []string
	stdin   io.Reader
	stdout  io.Writer
	stderr  io.Writer

	file    string // --config
	asJSON  bool   // --json
	daemon  func(ctx context.Context, cfg config.Config, tel *telemetry.Telemetry, b build, reload daemon.Reload) error
	signals func(...os.Signal) (<-chan os.Signal, func())
	flush   func() error // writes what stderr still holds; nil where it holds nothing
}

const longHelp = `weft carries committed changes from a Postgres outbox into Elasticsearch, in order
per entity. Any number of instances may run; one leads, the others stand by and take
over within a fraction of a second.

Settings come from defaults, a YAML file, the environment and flags; the later wins.
DATABASE_URL is the only one that is required.

Exit codes:
   0  done
   1  the thing that was checked is bad: nobody leads, migrations are pending,
      events failed again
   3  inconclusive: what was asked for stands, and was not seen to be done in time
  64  the command line is wrong
  69  a server does not answer, or not in time: Postgres, or Elasticsearch where
      the command needs it
  70  a fault of weft itself, output that cannot be written, or a stop without
      waiting
  75  try again: a migration or the index is missing, the server is read-only, a
      port is taken, or the command was interrupted
  77  refused: another environment, no permission, wrong password, no standby to
      take over
  78  the configuration is wrong: a bad value, an unknown database, a pooler in
      transaction mode, an address at which no search server answers, a query
      of a projection that Postgres refuses`

func (a *app) execute(ctx context.Context, args []string) int {
	out := &checked{Writer: a.stdout}
	a.stdout = out
	root := a.root()
	root.SetArgs(append([]string{}, args...)) // nil would mean os.Args
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		err = out.err
	}
	if cmd.Name() == "run" && a.flush == nil { // it ended before it had a log; whoever starts it again waits for its code
		log := telemetry.NewOutput(a.stderr)
		a.stderr, a.flush = log, log.Sync
	}
	code, lines := explain(err)
	for _, l := range lines {
		fmt.Fprintln(a.stderr, "weft: "+records.Inert(l))
	}
	if a.flush != nil {
		_ = a.flush() // nobody is left to tell
	}
	return code
}

func (a *app) root() *cobra.Command {
	b := readBuild()
	root := groupOf(&cobra.Command{
		Use:   "weft",
		Short: "Carry committed changes from a Postgres outbox into Elasticsearch",
		Long:  longHelp,
		Example: `  export DATABASE_URL=postgres://weft@localhost/wordloom ELASTIC_URL=http://localhost:9200
  weft migrate up
  weft run
  weft status`,
		Version:       b.Version,
		SilenceErrors: true,
		SilenceUsage:  true,
	}, a.runCommand(b), a.migrateCommand(), a.outboxCommand(), a.projectionCommand(), a.shardsCommand(),
		a.loadCommand(), a.verifyCommand(), a.rebuildCommand(), a.statusCommand(), a.resignCommand(),
		a.failedCommand(), a.replayCommand(), a.pauseCommand(), a.resumeCommand(), a.quarantineCommand(),
		a.releaseCommand(), a.throttleCommand(), a.auditCommand(), a.eventCommand(), a.waitCommand(),
		a.historyCommand(), a.topCommand(), a.pruneCommand(), a.doctorCommand(), a.bundleCommand(b),
		a.uninstallCommand(), a.versionCommand(b), a.manCommand(b))
	describeShard(root)
	root.SetVersionTemplate(b.String() + "\n")
	root.CompletionOptions.HiddenDefaultCmd = true
	root.PersistentFlags().StringVar(&a.file, "config", "", "YAML `file` with settings (default that of WEFT_CONFIG, else "+config.DefaultFile+" when it exists)")
	root.SetFlagErrorFunc(flagError)
	root.SetHelpCommand(&cobra.Command{
		Use: "help [COMMAND]", Short: "Show the help of a command", Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			found, rest, err := cmd.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return unknownCommand(found, rest)
			}
			return found.Help()
		},
	})
	return root
}

// groupOf makes a command that only holds others.
func groupOf(cmd *cobra.Command, held ...*cobra.Command) *cobra.Command {
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return usage(cmd, "a command is missing")
		}
		return unknownCommand(cmd, args)
	}
	cmd.SuggestionsMinimumDistance = 2
	cmd.AddCommand(held...)
	return cmd
}

func unknownCommand(cmd *cobra.Command, args []string) error {
	msg := fmt.Sprintf("unknown command %q", args[0])
	if s := cmd.SuggestionsFor(args[0]); len(s) > 0 {
		msg += fmt.Sprintf("; did you mean %q?", s[0])
	}
	return usage(cmd, msg)
}

// noArgs is cobra.NoArgs as an error of usage.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usage(cmd, fmt.Sprintf("unexpected argument %q", args[0]))
	}
	return nil
}

func (a *app) load(cmd *cobra.Command) (config.Config, error) {
	return config.Load(config.Options{
		File:         a.file,
		FallbackFile: config.DefaultFile,
		Environ:      a.environ,
		Flags:        cmd.Flags(),
		CheckDatabaseURL: func(raw string) error {
			_, err := postgres.ParseURL(raw)
			return err
		},
	})
}

func notify(sigs ...os.Signal) (<-chan os.Signal, func()) {
	ch := make(chan os.Signal, 2)
	signal.Notify(ch, sigs...)
	return ch, func() { signal.Stop(ch) }
}
