package traffic

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
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
			opts := Options{Settings: s, App: &Application{Pool: pool}, Environment: os.Getenv("WORDLOOM_ENV"), Out: cmd.OutOrStdout(), Wait: wait}
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

// Scenario says what is written.
type Scenario string

// The scenarios.
const (
	CreateScenario Scenario = "create" // each operation makes an entity
	UpdateScenario Scenario = "update" // changes of entities that were made before
	DeleteScenario Scenario = "delete" // removes entities that were made before, each once
	MixedScenario  Scenario = "mixed"  // 30 % creates, 50 % updates, 20 % deletes
	HotScenario    Scenario = "hot"    // updates, four of five of ten entities
)

// Scenarios lists them.
func Scenarios() []Scenario {
	return []Scenario{CreateScenario, UpdateScenario, DeleteScenario, MixedScenario, HotScenario}
}

// Settings of a load.
type Settings struct {
	Scenario    Scenario
	Ops         int
	Bytes       int     // of an entity's text
	Rate        float64 // operations per second; 0 is as fast as possible
	Concurrency int     // operations that are under way at most
	Seed        uint64
	Missing     outbox.Op // each operation is one event of this op for an entity that never existed; empty: the scenario
}

// setting is one of the environment's names.
type setting struct {
	env, flag, fallback, about string
	set                        func(*Settings, string) error
}

func settings() []setting {
	whole := func(low, high int, into func(*Settings) *int) func(*Settings, string) error {
		return func(s *Settings, text string) error {
			n, err := strconv.Atoi(text)
			if err != nil || n < low || n > high {
				return fmt.Errorf("%q is no number from %d to %d", text, low, high)
			}
			*into(s) = n
			return nil
		}
	}
	return []setting{
		{"LOADGEN_SCENARIO", "scenario", "create", "create, update, delete, mixed or hot", func(s *Settings, text string) error {
			s.Scenario = Scenario(text)
			if !slices.Contains(Scenarios(), s.Scenario) {
				return fmt.Errorf("%q is none of %v", text, Scenarios())
			}
			return nil
		}},
		{"TOTAL_OPS", "ops", "3000", "operations in all", whole(1, 100_000_000, func(s *Settings) *int { return &s.Ops })},
		{"CONTENT_BYTES", "bytes", "200", "length of an entity's text", whole(1, 1<<20, func(s *Settings) *int { return &s.Bytes })},
		{"RATE_PER_SEC", "rate", "100", "operations per second; 0 is as fast as possible", func(s *Settings, text string) error {
			rate, err := strconv.ParseFloat(text, 64)
			if err != nil || !(rate >= 0 && rate <= 1e6) {
				return fmt.Errorf("%q is no number from 0 to 1000000", text)
			}
			s.Rate = rate
			return nil
		}},
		{"CONCURRENCY", "concurrency", "20", "operations that are under way at most", whole(1, 500, func(s *Settings) *int { return &s.Concurrency })},
	}
}

// Load returns the settings that flags, the environment and the defaults give, in that
// order; a flag is known by its name in flags. A name that is set and does not parse is an
// error.
func Load(getenv func(string) string, flags map[string]string) (Settings, error) {
	var s Settings
	var wrong []string
	for _, one := range settings() {
		text, from := one.fallback, ""
		if v := getenv(one.env); v != "" {
			text, from = v, one.env
		}
		if v, ok := flags[one.flag]; ok {
			text, from = v, "--"+one.flag
		}
		if err := one.set(&s, strings.TrimSpace(text)); err != nil {
			wrong = append(wrong, fmt.Sprintf("%s: %v", from, err))
		}
	}
	if len(wrong) > 0 {
		return s, fmt.Errorf("load: %s", strings.Join(wrong, "; "))
	}
	return s, nil
}
