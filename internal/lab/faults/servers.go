package faults

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/testenv/stack"
)

// Names of faults that programs ask for.
const (
	PostgresRestartFast      = "postgres-restart-fast"
	PostgresRestartImmediate = "postgres-restart-immediate"
	PostgresSIGKILL          = "postgres-sigkill"
	ElasticSIGKILL           = "elastic-sigkill"
)

const (
	startTimeout = 3 * time.Minute // on a busy machine, with recovery
	probeTimeout = 2 * time.Second
	probePeriod  = 5 * time.Millisecond
)

type stopping func(*stack.Stack, context.Context, stack.Server) error

func servers() []Fault {
	return []Fault{
		restart(PostgresRestartFast, "PostgreSQL is stopped and started", stack.Postgres, (*stack.Stack).StopServer, 1),
		restart(PostgresRestartImmediate, "PostgreSQL is stopped without a checkpoint and recovers", stack.Postgres, (*stack.Stack).StopServerImmediately, 1),
		restart(ElasticSIGKILL, "Elasticsearch is killed and started", stack.Elastic, (*stack.Stack).KillServer, 1),
		restart("elastic-restart", "Elasticsearch is stopped and started", stack.Elastic, (*stack.Stack).StopServer, 1),
	}
}

// restart stops a server in Inject and starts it in Heal, which notes when it took work.
func restart(name, about string, server stack.Server, stop stopping, share int) Fault {
	return Fault{
		Name: name, About: about, Measure: Restarted, Share: share, Draw: lasts(0, 2*second), // between the stop and the start
		Crash: name == PostgresRestartImmediate || name == PostgresSIGKILL,
		Available: func(_ context.Context, i *Injection) error {
			if server == stack.Postgres && !i.Started.Postgres || server == stack.Elastic && !i.Started.Elastic {
				return Never("the servers are not of this run")
			}
			return nil
		},
		Inject: func(ctx context.Context, i *Injection) error {
			if server == stack.Elastic {
				if err := makeProbeIndex(ctx, i); err != nil {
					return err
				}
			}
			return stop(i.Servers, ctx, i.is(server))
		},
		Heal: func(ctx context.Context, i *Injection) error {
			started := make(chan error, 1)
			go func() { started <- i.Servers.StartServer(ctx, i.is(server)) }()
			probe := probePostgres
			if server == stack.Elastic {
				probe = probeElastic
			}
			err := rig.Await(ctx, startTimeout, probePeriod, "answer of "+string(server), func(ctx context.Context) error {
				ctx, cancel := context.WithTimeout(ctx, probeTimeout)
				defer cancel()
				return probe(ctx, i)
			})
			i.Accepts = time.Now() // the server's clock is this machine's
			return errors.Join(err, <-started)
		},
	}
}

// is returns the server that stands for PostgreSQL now.
func (i *Injection) is(server stack.Server) stack.Server {
	if server == stack.Postgres && i.Primary != "" {
		return i.Primary
	}
	return server
}

func probePostgres(ctx context.Context, i *Injection) error {
	conn, err := pgx.Connect(ctx, i.DatabaseURL)
	if err != nil {
		return err
	}
	return conn.Close(ctx)
}

// probeIndex is where it is tried whether Elasticsearch takes writes.
func probeIndex(i *Injection) string { return "/" + url.PathEscape(i.Index+"-probe") }

func makeProbeIndex(ctx context.Context, i *Injection) error {
	if names, err := i.Elastic.Indices(ctx, i.Index+"-probe"); err != nil || len(names) > 0 {
		return err
	}
	return i.Ask(ctx, "make an index to probe", http.MethodPut, probeIndex(i), map[string]any{"settings": map[string]any{"number_of_replicas": 0}}, nil)
}

// probeElastic writes to an index of its own, and asks whether the primary shard of weft's has
// started.
func probeElastic(ctx context.Context, i *Injection) error {
	if err := i.Elastic.Do(ctx, http.MethodPut, probeIndex(i)+"/_doc/1?timeout=1s", map[string]any{"here": true}, nil); err != nil {
		return err
	}
	return i.Elastic.Do(ctx, http.MethodGet, "/_cluster/health/"+url.PathEscape(i.Index)+"?wait_for_status=yellow&timeout=1s", nil, nil)
}

// onDemand are faults that no schedule draws.
func onDemand() []Fault {
	return []Fault{
		restart(PostgresSIGKILL, "all processes of PostgreSQL are killed, and it is started", stack.Postgres, (*stack.Stack).KillServer, 0),
		{
			Name: "elastic-down", About: "every connection between an instance and Elasticsearch ends at once",
			Aimed: true, Draw: lasts(2*second, 6*second),
			Inject: func(_ context.Context, i *Injection) error { return i.Member.Elastic.Cut() }, Heal: healLinks,
		},
	}
}
