package traffic

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/postgres"
	"github.com/samuelhu324-dev/weft/outbox"
)

// Command returns `weftlab load`.
func Command() *cobra.Command {
	var wait time.Duration
	var seed uint64
	var file, op, metrics string
	var missing bool
	cmd := &cobra.Command{
		Use:   "load",
		Short: "Write to an outbox as an application does, at a rate that nothing slows down",
		Long: `Change rows of search_index and write their outbox events in the same transactions, in
the database of DATABASE_URL, which must be migrated and of environment test or dev.

The load is an open loop: an operation begins when it is due, however long those before
it take, and its latency counts from then. Entities that a scenario changes are made
first and do not count.

Each flag can be set in the environment, too: LOADGEN_SCENARIO, TOTAL_OPS,
CONTENT_BYTES, RATE_PER_SEC, CONCURRENCY.

--missing --op delete --total 1 writes a single event for an entity that never existed, with
no row: the surest way to make weft send a request that changes nothing.

--metrics serves outbox_produced_total as an application does, while the load and its --wait
last.

Exit code 0 means that every operation was carried out, 1 that some failed, or that events
were not settled within --wait.`,
		Example: `  weftlab load --scenario create --ops 3000 --rate 100
  LOADGEN_SCENARIO=hot TOTAL_OPS=8000 RATE_PER_SEC=200 CONCURRENCY=40 weftlab load --wait 1m
  weftlab load --op delete --total 1 --missing
  weftlab load --ops 60000 --metrics 127.0.0.1:9111`,
		Args: cobra.NoArgs,
		RunE: rig.RunE(func(ctx context.Context, cmd *cobra.Command) error {
			given := map[string]string{}
			for _, s := range settings() {
				if f := cmd.Flags().Lookup(s.flag); f.Changed {
					given[s.flag] = f.Value.String()
				}
			}
			s, err := Load(os.Getenv, given)
			if err != nil {
				return err
			}
			if s.Missing, err = missingOp(missing, op); err != nil {
				return err
			}
			s.Seed = seed
			if !cmd.Flags().Changed("seed") {
				s.Seed = uint64(time.Now().UnixNano())
			}
			raw := os.Getenv("DATABASE_URL")
			if raw == "" {
				return errors.New("load: DATABASE_URL is not set: say which database to write to (weftlab stack up starts one)")
			}
			config, err := postgres.ParseURL(raw)
			if err != nil {
				return fmt.Errorf("load: %w", err)
			}
			config.MaxConns = int32(s.Concurrency + 2)
			config.ConnConfig.RuntimeParams["application_name"] = "weftlab/load"
			pool, err := pgxpool.NewWithConfig(ctx, config)
			if err != nil {
				return fmt.Errorf("load: open pool: %w", err)
			}
			defer pool.Close()
			opts := Options{Settings: s, Pool: pool, Environment: os.Getenv("WORDLOOM_ENV"), Out: cmd.OutOrStdout(), Wait: wait}
			if metrics != "" {
				p, err := produce(metrics, opts.Environment)
				if err != nil {
					return err
				}
				defer p.close()
				opts.Committed = p.committed
				fmt.Fprintf(cmd.ErrOrStderr(), "load: outbox_produced_total at http://%s/metrics\n", p.address)
			}
			r, err := Run(ctx, opts)
			if kind, text := postgres.Diagnose(err); kind != postgres.Unknown {
				err = fmt.Errorf("load: %s", text)
			}
			if r != nil && file != "" {
				err = errors.Join(err, rig.WriteResult(file, r))
			}
			switch {
			case err != nil:
				return err
			case r.Errors > 0:
				return fmt.Errorf("load: %d operations failed", r.Errors)
			case r.Ops < r.Asked:
				return fmt.Errorf("load: interrupted after %d operations", r.Ops)
			default:
				return nil
			}
		}),
	}
	for _, s := range settings() {
		cmd.Flags().String(s.flag, s.fallback, s.about+" ("+s.env+")")
	}
	cmd.Flags().Uint64Var(&seed, "seed", 0, "of texts and choices (default by the clock)")
	cmd.Flags().DurationVar(&wait, "wait", 0, "how long to wait in the end until weft has settled the events, to say how long they took")
	cmd.Flags().BoolVar(&missing, "missing", false, "write events of --op for entities that never existed, instead of a scenario")
	cmd.Flags().StringVar(&op, "op", "", "upsert or delete, with --missing")
	cmd.Flags().StringVar(&metrics, "metrics", "", "serve outbox_produced_total on this `ADDRESS`")
	cmd.Flags().SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if name == "total" {
			name = "ops"
		}
		return pflag.NormalizedName(name)
	})
	cmd.Flags().StringVar(&file, "json", "", "write the figures to `FILE` as JSON")
	return cmd
}

// missingOp returns the op of events for entities that never existed, or "" for none.
func missingOp(missing bool, op string) (outbox.Op, error) {
	switch {
	case !missing && op != "":
		return "", errors.New("load: --op goes with --missing; --scenario says what else to write")
	case !missing:
		return "", nil
	case op != string(outbox.Upsert) && op != string(outbox.Delete):
		return "", fmt.Errorf("load: --missing needs --op upsert or --op delete, not %q", op)
	}
	return outbox.Op(op), nil
}
