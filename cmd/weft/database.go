package main

import (
	"context"
	"errors"
	"os/signal"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/samuelhu324-dev/weft/internal/config"
	"github.com/samuelhu324-dev/weft/internal/daemon"
	"github.com/samuelhu324-dev/weft/internal/postgres"
	"github.com/samuelhu324-dev/weft/internal/records"
	"github.com/samuelhu324-dev/weft/migrations"
	"github.com/samuelhu324-dev/weft/outbox"
)

// A query is what a command does with the database. The pool has one connection, but for
// commands that compare.
type query func(ctx context.Context, cfg config.Config, pool *pgxpool.Pool) error

// databaseFlags adds the flags of the database, of the shard and of further settings.
func databaseFlags(cmd *cobra.Command, keys ...string) {
	cmd.Flags().String(shardFlag, "", "") // described by describeShard, once the command has its place
	config.AddFlags(cmd.Flags(), append([]string{"database.url", "database.password", "database.timeout"}, keys...)...)
}

// jsonFlags adds those, and --json.
func (a *app) jsonFlags(cmd *cobra.Command, keys ...string) {
	cmd.Flags().BoolVar(&a.asJSON, "json", false, "print JSON")
	databaseFlags(cmd, keys...)
}

// reading runs q for a command that changes nothing, on each shard in turn.
func (a *app) reading(cmd *cobra.Command, q query) error { return a.connected(cmd, 1, here(q)) }

// here is q, whose answer counts only where the shard is at home: elsewhere, or once it has moved away, its tables are empty.
func here(q query) query {
	return func(ctx context.Context, cfg config.Config, pool *pgxpool.Pool) error {
		err := q(ctx, cfg, pool)
		if unreachable(err) || errors.Is(err, context.DeadlineExceeded) { // nobody is to wait for the server twice
			return err
		}
		if away := atHome(ctx, pool, cfg); is[*exitError](away) {
			return away
		}
		return err
	}
}

// atHome returns an error when the shard is at home in another database.
func atHome(ctx context.Context, pool *pgxpool.Pool, cfg config.Config) error {
	ctx, cancel := context.WithTimeout(ctx, preflightTimeout)
	defer cancel()
	away, err := migrations.ReadAway(ctx, pool, "")
	if err == nil && away != nil {
		err = elsewhere("the shard of group "+cfg.Group, away)
	}
	return err
}

func (a *app) connected(cmd *cobra.Command, connections int, q query) error {
	name := strings.Fields(cmd.CommandPath())[1]
	return a.eachShard(cmd, func(cfg config.Config) error {
		ctx := cmd.Context()
		pool, err := postgres.NewPool(ctx, cfg.Database.URL.Reveal(), postgres.Options{
			AppName: "weft/" + name, MaxConns: connections, Statement: cfg.Database.Timeout})
		if err != nil {
			return err
		}
		defer pool.Close()
		if cfg.Shards.Of > 1 {
			if err := otherShards(ctx, pool, cfg); err != nil {
				return err
			}
		}
		err = q(ctx, cfg, pool)
		if err == nil || is[*exitError](err) || ctx.Err() != nil {
			return err
		}
		if errors.Is(err, context.DeadlineExceeded) { // the time of a statement may end before that of its connection
			if silent := pool.Ping(ctx); unreachable(silent) {
				return silent
			}
		}
		if cfg.Shards.Of <= 1 {
			if other := otherShards(ctx, pool, cfg); other != nil { // so weft's tables are not here
				return other
			}
		}
		if kind, _ := postgres.Diagnose(daemon.Cause(err)); kind == postgres.MissingMigration || is[*outbox.ShapeError](err) { // perhaps of an older schema
			if why := migrations.Check(ctx, pool); is[*migrations.BehindError](why) || is[*migrations.RightsError](why) {
				return why
			}
		}
		return postgres.In(cfg.Database.URL.Reveal(), err)
	})
}

// unreachable reports whether err says that no server answers.
func unreachable(err error) bool {
	kind, _ := postgres.Diagnose(err)
	return err != nil && kind == postgres.Unreachable
}

// otherShards returns an error when the tables are dealt out to another number of shards. Of any other fault the
// command says more.
func otherShards(ctx context.Context, pool *pgxpool.Pool, cfg config.Config) error {
	ctx, cancel := context.WithTimeout(ctx, preflightTimeout)
	defer cancel()
	err := migrations.CheckShards(ctx, pool, cfg.Shards.Of)
	if !is[*migrations.ShardsError](err) {
		return nil
	}
	return err
}

// writing runs q for a command that changes rows, after a check that it may.
func (a *app) writing(cmd *cobra.Command, q query) error {
	return a.reading(cmd, func(ctx context.Context, cfg config.Config, pool *pgxpool.Pool) error {
		if err := mayWrite(ctx, pool, cfg); err != nil {
			return err
		}
		return q(ctx, cfg, pool)
	})
}

// interruptible ends the context at SIGTERM and SIGINT. A second signal ends the process.
func interruptible(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

// unlessInterrupted returns err, or what is to say of a command that a signal has ended before its answer was there.
func unlessInterrupted(ctx context.Context, err error) error {
	switch {
	case err == nil || ctx.Err() == nil || is[*exitError](err):
		return err
	case is[*migrations.UnfinishedError](err): // the command itself would be refused now
		return &exitError{exitTryAgain, "interrupted while history and views were brought up to date; run `weft migrate up` to finish"}
	default:
		return &exitError{exitTryAgain, "interrupted; run the command again to finish"}
	}
}

// mayWrite returns why a command must not write: a replica, another environment, a shard that has
// moved away, a schema that is too old. A newer schema is no obstacle.
func mayWrite(ctx context.Context, pool *pgxpool.Pool, cfg config.Config) error {
	ctx, cancel := context.WithTimeout(ctx, preflightTimeout)
	defer cancel()
	if err := postgres.CheckWritable(ctx, pool); err != nil {
		return err
	}
	if err := postgres.CheckEnvironment(ctx, pool, cfg.Env); err != nil {
		return err
	}
	if err := atHome(ctx, pool, cfg); err != nil {
		return err
	}
	err := migrations.Check(ctx, pool)
	if is[*migrations.AheadError](err) {
		return nil
	}
	return err
}

// scope is what a command reads of the group and its tables.
func scope(cfg config.Config) records.Scope {
	sc := records.Scope{Group: cfg.Group, Timeout: cfg.Database.Timeout, MaxProcessing: cfg.Outbox.MaxProcessing}
	for _, name := range cfg.Projections {
		sc.Tables = append(sc.Tables, records.Table{Projection: name, Name: cfg.Registry().Table(name)})
	}
	return sc
}
