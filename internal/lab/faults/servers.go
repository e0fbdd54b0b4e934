package faults

import (
	"context"
	"errors"
	"fmt"
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

func servers() []Fault {
	return []Fault{
		restart(PostgresRestartFast, "PostgreSQL is stopped and started", stack.Postgres, stack.StopServer, 1),
		restart(PostgresRestartImmediate, "PostgreSQL is stopped without a checkpoint and recovers", stack.Postgres, stack.StopServerImmediately, 1),
		restart(ElasticSIGKILL, "Elasticsearch is killed and started", stack.Elastic, stack.KillServer, 1),
		restart("elastic-restart", "Elasticsearch is stopped and started", stack.Elastic, stack.StopServer, 1),
	}
}

// restart stops a server in Inject and starts it in Heal, which notes when it took work.
func restart(name, about string, server stack.Server, stop stack.Operation, share int) Fault {
	return Fault{
		Name: name, About: about, Measure: Restarted, Share: share, Draw: lasts(0, 2*second), // between the stop and the start
		Crash: name == PostgresRestartImmediate || name == PostgresSIGKILL,
		Available: func(i *Injection) {
			if server == stack.Postgres && !i.Started.Postgres || server == stack.Elastic && !i.Started.Elastic {
				i.Must(Never("the servers are not of this run"))
			}
		},
		Inject: func(i *Injection) {
			if server == stack.Elastic {
				makeProbeIndex(i)
			}
			i.Must(i.Servers.Do(i.Ctx, stop, i.is(server)))
		},
		Heal: func(i *Injection) {
			started := make(chan error, 1)
			go func() { started <- i.Servers.Do(i.Ctx, stack.StartServer, i.is(server)) }()
			probe := probePostgres
			if server == stack.Elastic {
				probe = probeElastic
			}
			err := rig.Await(i.Ctx, startTimeout, probePeriod, "answer of "+string(server), func(ctx context.Context) error {
				ctx, cancel := context.WithTimeout(ctx, probeTimeout)
				defer cancel()
				return probe(ctx, i)
			})
			i.Accepts = time.Now() // the server's clock is this machine's
			i.Must(errors.Join(err, <-started))
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

func makeProbeIndex(i *Injection) {
	names := rig.Try(i.Elastic.Indices(i.Ctx, i.Index+"-probe")).Must(i)
	if len(names) == 0 {
		i.Must(i.Ask(i.Ctx, "make an index to probe", http.MethodPut, probeIndex(i), map[string]any{"settings": map[string]any{"number_of_replicas": 0}}, nil))
	}
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
		restart(PostgresSIGKILL, "all processes of PostgreSQL are killed, and it is started", stack.Postgres, stack.KillServer, 0),
		{
			Name: "elastic-down", About: "every connection between an instance and Elasticsearch ends at once",
			Aimed: true, Draw: lasts(2*second, 6*second),
			Inject: func(i *Injection) { i.Must(i.Member.Elastic.Cut()) }, Heal: healLinks,
		},
	}
}

// LongSnapshot names the fault that lasts beside others.
const LongSnapshot = "long-snapshot"

const (
	strangerRows = 20
	strangerWait = 5 * time.Second // for rows to be there
)

func databases() []Fault {
	return []Fault{
		{
			Name: "stranger-lock", About: "somebody else holds row locks on pending events",
			Share: 1, Draw: lasts(second, 4*second), Inject: lockRows, Heal: disconnect,
		},
		{
			Name: LongSnapshot, About: "a snapshot stays open, up to ten minutes, while other faults go on",
			Share: 1, Lasting: true, Draw: func(_ *Dice, p *Params) { p.Hold = 10 * time.Minute },
			Inject: openSnapshot, Heal: disconnect,
		},
	}
}

func (i *Injection) connect() {
	ctx, cancel := context.WithTimeout(i.Ctx, rig.QueryTimeout)
	defer cancel()
	i.conn = rig.Try(pgx.Connect(ctx, i.DatabaseURL)).MustDo(i, "connect as a stranger")
}

// disconnect ends the session and with it its transaction.
func disconnect(i *Injection) {
	if i.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(i.Ctx, rig.QueryTimeout)
	defer cancel()
	_ = i.conn.Close(ctx) // a server that was restarted has ended it
	i.conn = nil
}

// lockRows locks pending events in a session that weft knows nothing of.
func lockRows(i *Injection) {
	i.connect()
	rig.Try(i.conn.Exec(i.Ctx, "begin")).MustDo(i, "begin as a stranger")
	for until := time.Now().Add(strangerWait); time.Now().Before(until); {
		tag := rig.Try(i.conn.Exec(i.Ctx, fmt.Sprintf(`select from %s where status = 'pending' limit %d for update skip locked`, i.Outbox, strangerRows))).MustDo(i, "lock as a stranger")
		if n := tag.RowsAffected(); n > 0 {
			i.Note, i.At = fmt.Sprintf(", %d rows", n), time.Now()
			return
		}
	}
	i.Must(Skip("no event was pending when it was looked"))
}

// openSnapshot keeps vacuum from everything that the transaction could see. A restart of the
// server ends it early.
func openSnapshot(i *Injection) {
	i.connect()
	ctx, cancel := context.WithTimeout(i.Ctx, rig.QueryTimeout)
	defer cancel()
	// The first query takes the snapshot. Without arguments both are one message.
	rig.Try(i.conn.Exec(ctx, "begin isolation level repeatable read; select count(*) from weft_leader")).MustDo(i, "open snapshot")
}

// Alive reports whether a lasting fault still goes on.
func (i *Injection) Alive(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, rig.QueryTimeout)
	defer cancel()
	return i.conn != nil && i.conn.Ping(ctx) == nil && time.Since(i.At) < i.Hold
}
