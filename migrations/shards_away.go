package migrations

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// Away says that a shard is not at home in a database.
type Away struct {
	Server   string // where it is at home, as HOST:PORT/DATABASE
	Since    time.Time
	Arriving bool   // it is on its way here
	Move     string // the id of the move that has taken it away, or brings it
}

// String says where the shard is, as the end of a sentence that begins with its name.
func (a *Away) String() string {
	if a.Arriving {
		return "is on its way here from " + a.Server + ", and nobody may lead it yet"
	}
	return fmt.Sprintf("is on %s since %s: its tables here are empty and refuse writes", a.Server, a.Since.UTC().Format(time.RFC3339))
}

// Remedy says what an operator does about it.
func (a *Away) Remedy() string {
	if a.Arriving {
		return "wait for `weft shards move`, or repeat it where it was interrupted"
	}
	return "give its address in WEFT_SHARD_SERVERS to every command and instance, and restart one instance after the other"
}

// The triggers that refuse to write into a dealt table of a shard that is away.
const (
	awayTrigger         = "weft_shard_away"
	awayTruncateTrigger = "weft_shard_away_truncate"
	awayTable           = "weft_shard_away"
)

// DealtTables returns the names of the tables that are dealt out to shards.
func DealtTables() (names []string) {
	for _, t := range dealt {
		names = append(names, t.table)
	}
	return names
}

// AwaySQL returns the statements that have shard n refuse every write. They may be repeated. The caller
// inserts the row that [ReadAway] reads.
func AwaySQL(schema string, n int) string {
	var triggers strings.Builder
	shard := pgx.Identifier{schema}.Sanitize()
	for _, t := range dealt {
		table := pgx.Identifier{schema, t.table}.Sanitize()
		fmt.Fprintf(&triggers, "create or replace trigger %s before insert or update or delete on %s for each row execute function %s.weft_shard_refuse();\n", awayTrigger, table, shard)
		fmt.Fprintf(&triggers, "create or replace trigger %s before truncate on %s for each statement execute function %s.weft_shard_refuse();\n", awayTruncateTrigger, table, shard)
	}
	return SettledSQL(schema, n) + strings.NewReplacer("{quote}", "$weft$", "{shard}", shard, "{triggers}", triggers.String()).Replace(template("shards_away.sql"))
}

// SettledSQL returns the statements that have weft_settled of shard n raise an error while the shard is not at home.
// They may be repeated. A move runs them before it takes its locks: a call that waits for these is told, too.
func SettledSQL(schema string, n int) string {
	return strings.NewReplacer("{quote}", "$weft$", "{shard}", pgx.Identifier{schema}.Sanitize(), "{name}", literal(schema), "{n}", strconv.Itoa(n)).
		Replace(template("shards_settled.sql"))
}

// oldSettled reads the number of a shard that has moved and whose weft_settled does not know of that; null elsewhere.
const oldSettled = `select max(substring(pg_get_expr(c.relpartbound, c.oid) from 'remainder (\d+)')::int) from pg_class c, pg_proc p
	where c.oid = to_regclass($1) and to_regclass($2) is not null and p.oid = to_regprocedure($3) and strpos(p.prosrc, 'weft_shard_elsewhere') = 0`

// refreshSettled brings weft_settled of a shard that an earlier build has moved to what [SettledSQL] makes. It
// returns whether it was another.
func (m *migrator) refreshSettled(ctx context.Context) (bool, error) {
	var n *int
	err := m.db.QueryRowContext(ctx, oldSettled, m.qualify(dealt[0].table), m.qualify(awayTable), m.qualify("weft_settled")+"(text, text)").Scan(&n)
	if err == nil && n != nil {
		err = m.ddl(ctx, awayTable, SettledSQL(m.schema, *n))
	}
	if err != nil {
		return false, fmt.Errorf("function weft_settled: %w", err)
	}
	return n != nil, nil
}

// RefuseSQL returns the statements that turn the triggers of [AwaySQL] on or off: those of the dealt
// tables, and with leader that of weft_leader, too.
func RefuseSQL(schema string, on, leader bool) string {
	var b strings.Builder
	verb := map[bool]string{true: "enable", false: "disable"}[on]
	for _, t := range dealt {
		fmt.Fprintf(&b, "alter table %s %s trigger %s, %[2]s trigger %[4]s;\n", pgx.Identifier{schema, t.table}.Sanitize(), verb, awayTrigger, awayTruncateTrigger)
	}
	if leader {
		fmt.Fprintf(&b, "alter table %s %s trigger %s;\n", pgx.Identifier{schema, "weft_leader"}.Sanitize(), verb, awayTrigger)
	}
	return b.String()
}

// ReadAway returns where the shard of a schema is at home. It returns nil when that is in this database, and
// for a schema that is not there or that no move has touched. An empty name means the current schema.
func ReadAway(ctx context.Context, db Querier, schema string) (*Away, error) {
	var there bool
	table := awayTable
	if schema != "" {
		table = pgx.Identifier{schema, awayTable}.Sanitize()
	}
	if err := db.QueryRow(ctx, "select to_regclass($1) is not null", table).Scan(&there); err != nil || !there {
		return nil, err
	}
	var a Away
	err := db.QueryRow(ctx, "select server, since, arriving, move::text from "+table).Scan(&a.Server, &a.Since, &a.Arriving, &a.Move)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("home of the shard: %w", err)
	}
	return &a, nil
}

// ShardsThere reports whether the current schema of url has the tables that deal out to the shards of
// spec. It returns an [*OutboxError] where such tables are there and differ, or cannot deal out.
func ShardsThere(ctx context.Context, url string, spec ShardsSpec) (there bool, err error) {
	_, err = run(ctx, url, nil, func(ctx context.Context, m *migrator) ([]Step, error) {
		there, err = m.shardsThere(ctx, spec)
		return nil, err
	})
	return there, err
}

// awayStatements returns the statements by which a new shard refuses writes from the start; none where it is
// at home.
func awayStatements(n int, s Shard) string {
	if s.Away == "" {
		return ""
	}
	return AwaySQL(s.Schema, n) + fmt.Sprintf("insert into %s (server, since, arriving, move) values (%s, now(), false, gen_random_uuid());\n",
		pgx.Identifier{s.Schema, awayTable}.Sanitize(), literal(s.Away))
}
