package bench

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
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

// triggers measures updates of a table and of its children, with and without an outbox.
func (b *bench) triggers() (out []TriggerCost) {
	var conns []*pgx.Conn
	for _, watched := range []bool{false, true} {
		corner := b.corner()
		defer func() { b.Must(corner.Close(b.Ctx)) }()
		url := rig.Try(quiet(corner.DatabaseURL)).Must(b)
		conn := rig.Try(pgx.Connect(b.Ctx, url)).Must(b)
		defer func() { _ = conn.Close(context.WithoutCancel(b.Ctx)) }()
		b.makeTriggers(conn, url, watched)
		conns = append(conns, conn)
	}
	for _, table := range []string{"parent", "child"} {
		for _, rows := range []int{1, 1000, triggerParents} {
			var us, wal [2]verdict.Distribution // without triggers, and with
			for round := range b.opts.Rounds {
				for turn := range conns {
					side := (turn + round) % len(conns)
					var took, wrote float64
					b.Part(fmt.Sprintf("update of %d rows of %s", rows, table), 0, func() { took, wrote = b.update(conns[side], table, rows) })
					us[side], wal[side] = append(us[side], took), append(wal[side], wrote)
				}
			}
			c := TriggerCost{
				Table: table, Rows: rows, Rounds: b.opts.Rounds, US: us[1].Percentile(50), WAL: wal[1].Percentile(50),
				PlainUS: us[0].Percentile(50), PlainWAL: wal[0].Percentile(50),
			}
			out = append(out, c)
			b.screen.Line("%-26s %.1f µs and %.0f B a row, %.1f and %.0f without", fmt.Sprintf("%s, %d rows", table, rows), c.US, c.WAL, c.PlainUS, c.PlainWAL)
		}
	}
	return out
}

// makeTriggers makes the tables, and their outbox when they are watched.
func (b *bench) makeTriggers(conn *pgx.Conn, url string, watched bool) {
	exec := func(sql string) {
		rig.Try(conn.Exec(b.Ctx, sql)).MustDo(b, "tables")
	}
	for sql := range strings.SplitSeq(fmt.Sprintf(triggerTables, triggerParents), ";") {
		exec(sql)
	}
	if !watched {
		return
	}
	rig.Try(migrations.Up(b.Ctx, url)).Must(b)
	rig.Try(migrations.CreateOutbox(b.Ctx, url, migrations.OutboxSpec{Table: "parent", Children: []migrations.Child{{Table: "child", Columns: []string{"parent_id"}}}}, true)).Must(b)
	exec("update parent set n = 1") // each has a version from now on
}

// update changes rows of a table, so many with each statement, and returns the microseconds and the bytes of
// WAL that one row took.
func (b *bench) update(conn *pgx.Conn, table string, rows int) (us, wal float64) {
	exec := func(sql string, args ...any) {
		rig.Try(conn.Exec(b.Ctx, sql, args...)).Must(b)
	}
	position := func() float64 {
		return rig.Try(walPosition(b.Ctx, conn)).Must(b)
	}
	exec("vacuum parent")
	exec("vacuum child")
	statements := max(min(triggerSingles, 20_000/rows), 1)
	sql := "update " + table + " set n = n + 1 where id between $1 and $2"
	before := position()
	began := time.Now()
	for i := range statements {
		first := 1 + i*rows%triggerParents
		exec(sql, first, first+rows-1)
	}
	took := time.Since(began)
	n := float64(rows * statements)
	return float64(took.Microseconds()) / n, (position() - before) / n
}

func walPosition(ctx context.Context, db postgres.Querier) (at float64, err error) {
	err = db.QueryRow(ctx, "select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float8").Scan(&at)
	return at, err
}
