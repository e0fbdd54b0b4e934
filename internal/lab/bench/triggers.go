package bench

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/internal/lab/verdict"
	"github.com/samuelhu324-dev/weft/internal/postgres"
	"github.com/samuelhu324-dev/weft/migrations"
)

const (
	triggerParents = 100_000
	triggerSingles = 2000 // statements of one row in a round
)

// triggerTables are parents with a child each.
const triggerTables = `
create table parent (id bigint primary key, name text not null, n int not null);
create table child (id bigint primary key, parent_id bigint not null references parent, name text not null, n int not null);
create index on child (parent_id);
insert into parent select i, 'name of ' || i, 0 from generate_series(1, %[1]d) i;
insert into child select i, 1 + i %% %[1]d, 'name of ' || i, 0 from generate_series(1, %[1]d) i;
vacuum (analyze) parent; vacuum (analyze) child;`

// TriggerCost is what a changed row costs its writer, beside the same without triggers.
type TriggerCost struct {
	Table    string  `json:"table"`
	Rows     int     `json:"rows_per_statement"`
	Rounds   int     `json:"rounds"`
	US       float64 `json:"us_per_row"`
	WAL      float64 `json:"wal_bytes_per_row"`
	PlainUS  float64 `json:"us_per_row_without"`
	PlainWAL float64 `json:"wal_bytes_per_row_without"`
}

// cost is what one round took, for each row.
type cost struct{ us, wal float64 }

// triggers measures updates of a table and of its children, with and without an outbox.
func (b *bench) triggers() (out []TriggerCost) {
	var conns []*pgx.Conn
	for _, watched := range []bool{false, true} {
		corner := b.corner()
		defer func() { b.Must(corner.Close(b.Ctx)) }()
		url, err := quiet(corner.DatabaseURL)
		b.Must(err)
		conn, err := pgx.Connect(b.Ctx, url)
		b.Must(err)
		defer func() { _ = conn.Close(context.WithoutCancel(b.Ctx)) }()
		b.makeTriggers(conn, url, watched)
		conns = append(conns, conn)
	}
	for _, table := range []string{"parent", "child"} {
		for _, rows := range []int{1, 1000, triggerParents} {
			sides := make([][]cost, len(conns))
			for round := range b.opts.Rounds {
				for turn := range conns {
					side := (turn + round) % len(conns)
					c, err := update(b.Ctx, conns[side], table, rows)
					b.MustDo(fmt.Sprintf("update of %d rows of %s", rows, table), err)
					sides[side] = append(sides[side], c)
				}
			}
			plain, with := middleCost(sides[0]), middleCost(sides[1])
			out = append(out, TriggerCost{table, rows, b.opts.Rounds, with.us, with.wal, plain.us, plain.wal})
			b.screen.Line("%-26s %.1f µs and %.0f B a row, %.1f and %.0f without", fmt.Sprintf("%s, %d rows", table, rows), with.us, with.wal, plain.us, plain.wal)
		}
	}
	return out
}

// makeTriggers makes the tables, and their outbox when they are watched.
func (b *bench) makeTriggers(conn *pgx.Conn, url string, watched bool) {
	exec := func(sql string) {
		_, err := conn.Exec(b.Ctx, sql)
		b.MustDo("tables", err)
	}
	for sql := range strings.SplitSeq(fmt.Sprintf(triggerTables, triggerParents), ";") {
		exec(sql)
	}
	if !watched {
		return
	}
	_, err := migrations.Up(b.Ctx, url)
	b.Must(err)
	_, err = migrations.CreateOutbox(b.Ctx, url, migrations.OutboxSpec{Table: "parent", Children: []migrations.Child{{Table: "child", Columns: []string{"parent_id"}}}}, true)
	b.Must(err)
	exec("update parent set n = 1") // each has a version from now on
}

// update changes rows, as many in each statement, and returns what one of them took.
func update(ctx context.Context, conn *pgx.Conn, table string, rows int) (c cost, err error) {
	for _, t := range []string{"parent", "child"} {
		if _, err := conn.Exec(ctx, "vacuum "+t); err != nil {
			return c, err
		}
	}
	statements := max(min(triggerSingles, 20_000/rows), 1)
	sql := "update " + table + " set n = n + 1 where id between $1 and $2"
	before, err := walPosition(ctx, conn)
	if err != nil {
		return c, err
	}
	began := time.Now()
	for i := range statements {
		first := 1 + i*rows%triggerParents
		if _, err := conn.Exec(ctx, sql, first, first+rows-1); err != nil {
			return c, err
		}
	}
	took := time.Since(began)
	after, err := walPosition(ctx, conn)
	n := float64(rows * statements)
	return cost{us: float64(took.Microseconds()) / n, wal: (after - before) / n}, err
}

func walPosition(ctx context.Context, db postgres.Querier) (at float64, err error) {
	err = db.QueryRow(ctx, "select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float8").Scan(&at)
	return at, err
}

func middleCost(all []cost) cost {
	var us, wal verdict.Distribution
	for _, c := range all {
		us, wal = append(us, c.us), append(wal, c.wal)
	}
	return cost{us.Percentile(50), wal.Percentile(50)}
}
