package move

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/internal/postgres"
	"github.com/samuelhu324-dev/weft/migrations"
)

// Check looks at both databases and returns what is to be done. It changes nothing. An
// [*migrations.OutboxError] says why the shard cannot be moved.
func Check(ctx context.Context, o Options) (*Plan, error) {
	from, err := connect(ctx, o.From.URL)
	if err != nil {
		return nil, err
	}
	defer closeSession(ctx, from)
	to, err := connect(ctx, o.To.URL)
	if err != nil {
		return nil, fmt.Errorf("server to move to: %w", err)
	}
	defer closeSession(ctx, to)
	ctx, cancel := context.WithTimeout(ctx, 4*shortStatement)
	defer cancel()
	c := checker{Options: o, from: from, to: to, plan: &Plan{}}
	for _, step := range []func(context.Context) error{c.servers, c.source, c.target, c.homes, c.tables} {
		if err := step(ctx); err != nil || c.plan.Done {
			return c.plan, err
		}
	}
	return c.plan, nil
}

type checker struct {
	Options
	from, to *pgx.Conn
	plan     *Plan
	targetIs *migrations.Away
}

// servers compares what the two are.
func (c *checker) servers(ctx context.Context) (err error) {
	if c.plan.From, err = readServer(ctx, c.from); err != nil {
		return err
	}
	if c.plan.To, err = readServer(ctx, c.to); err != nil {
		return err
	}
	from, to := c.plan.From, c.plan.To
	if from.same(to) {
		return refuse(fmt.Sprintf("shard %d", c.Shard), "is in "+to.Address+", where it is to go",
			fmt.Sprintf("give the address of another database; if an earlier move was interrupted, take shard %d out of WEFT_SHARD_SERVERS and repeat it", c.Shard))
	}
	if err := postgres.CheckWritable(ctx, c.from); err != nil {
		return err
	}
	switch err := postgres.CheckWritable(ctx, c.to); {
	case errors.Is(err, postgres.ErrReadOnly):
		return refuse(to.Address, "takes no writes", "give the address of a primary, and of a role without default_transaction_read_only")
	case err != nil:
		return err
	}
	if to.major < from.major {
		return refuse(to.Address, fmt.Sprintf("has PostgreSQL %s, which is older than %s of %s", to.Version, from.Version, from.Address), "upgrade it first")
	}
	for _, conn := range []*pgx.Conn{c.from, c.to} {
		if err := postgres.CheckEnvironment(ctx, conn, c.Env); err != nil {
			return err
		}
	}
	return nil
}

func readServer(ctx context.Context, conn *pgx.Conn) (s Server, err error) {
	var number int
	err = conn.QueryRow(ctx, `select current_setting('server_version'), current_setting('server_version_num')::int, pg_postmaster_start_time(),
		(select oid from pg_database where datname = current_database())`).Scan(&s.Version, &number, &s.started, &s.oid)
	if err != nil {
		return s, fmt.Errorf("look at the server: %w", err)
	}
	s.Version, _, _ = strings.Cut(s.Version, " ")
	s.Address, s.major = postgres.Address(&conn.Config().Config), number/10000
	return s, nil
}

// source looks whether the shard can leave.
func (c *checker) source(ctx context.Context) error {
	there, err := migrations.ShardsThere(ctx, c.From.Dealt, c.From.Spec)
	if err != nil {
		return err
	}
	if !there {
		return refuse(c.plan.From.Address, "has no shards", fmt.Sprintf("make them with `weft shards create %d`", len(c.From.Spec.Shards)))
	}
	if err := migrations.Check(ctx, c.from); err != nil {
		return err
	}
	if err := c.owner(ctx, c.from, c.plan.From); err != nil {
		return err
	}
	var by string
	err = c.from.QueryRow(ctx, `select coalesce(min(k.conrelid::regclass::text), '') from pg_constraint k join pg_class c on c.oid = k.confrelid
		where k.contype = 'f' and c.relname = any ($2) and (c.relnamespace = to_regnamespace($1)
			or c.oid in (select i.inhparent from pg_inherits i join pg_class l on l.oid = i.inhrelid where l.relnamespace = to_regnamespace($1)))`,
		pgx.Identifier{c.Schema}.Sanitize(), migrations.DealtTables()).Scan(&by)
	if err != nil {
		return fmt.Errorf("look for foreign keys: %w", err)
	}
	if by != "" {
		return refuse("table "+by, "has a foreign key to a table that is dealt out", "drop that constraint: its rows would stay, and the rows that it refers to go")
	}
	return nil
}

// owner refuses a role that does not own the tables of the shard.
func (c *checker) owner(ctx context.Context, conn *pgx.Conn, s Server) error {
	var role, foreign string
	err := conn.QueryRow(ctx, `select current_user, coalesce(min(c.relname), '') from pg_class c
		where c.relnamespace = to_regnamespace($1) and c.relkind in ('r', 'p') and not pg_has_role(c.relowner, 'USAGE')`,
		pgx.Identifier{c.Schema}.Sanitize()).Scan(&role, &foreign)
	if err != nil {
		return fmt.Errorf("look at the owner: %w", err)
	}
	if foreign != "" {
		return refuse(fmt.Sprintf("role %q", role), fmt.Sprintf("does not own %s.%s at %s", c.Schema, foreign, s.Address), "move the shard as the role that owns its tables")
	}
	return nil
}

// target looks whether the other server has what a shard needs, or whether that can be made.
func (c *checker) target(ctx context.Context) error {
	var schema, shard, create bool
	var role string
	err := c.to.QueryRow(ctx, `select to_regnamespace($1) is not null, to_regnamespace($2) is not null, current_user,
			has_database_privilege(current_database(), 'create') and (to_regnamespace($1) is null or has_schema_privilege(to_regnamespace($1), 'create'))`,
		pgx.Identifier{c.Dealt}.Sanitize(), pgx.Identifier{c.Schema}.Sanitize()).Scan(&schema, &shard, &role, &create)
	if err != nil {
		return fmt.Errorf("look at %s: %w", c.plan.To.Address, err)
	}
	c.plan.Structure = true
	if schema {
		there, err := migrations.ShardsThere(ctx, c.To.Dealt, c.To.Spec)
		if err != nil {
			return fmt.Errorf("%s: %w", c.plan.To.Address, err)
		}
		c.plan.Structure = !there
	}
	if c.plan.Structure {
		if !create {
			return refuse(fmt.Sprintf("role %q", role), "may not create schemas in "+c.plan.To.Address, "grant it create on the database, and on the schema of the tables that deal out")
		}
		return nil
	}
	if ahead, ok := errors.AsType[*migrations.AheadError](migrations.Check(ctx, c.to)); ok {
		return fmt.Errorf("%s: %w", c.plan.To.Address, ahead)
	}
	return c.owner(ctx, c.to, c.plan.To)
}

// homes looks where the shard is at home, and what an earlier try has left.
func (c *checker) homes(ctx context.Context) (err error) {
	shard, p := fmt.Sprintf("shard %d", c.Shard), c.plan
	if p.sourceAway, err = migrations.ReadAway(ctx, c.from, c.Schema); err != nil {
		return err
	}
	if c.targetIs, err = migrations.ReadAway(ctx, c.to, c.Schema); err != nil {
		return fmt.Errorf("%s: %w", p.To.Address, err)
	}
	source, target := p.sourceAway, c.targetIs
	switch {
	case source == nil && p.Structure:
		return nil
	case source == nil && target == nil:
		return refuse(shard, "is at home in "+p.To.Address+", too", "that database has shards of its own: give another one")
	case source == nil:
		p.Again = target.Arriving
		if !target.Arriving {
			return c.empty(ctx)
		}
		return nil
	case source.Arriving:
		return refuse(shard, fmt.Sprintf("is on its way from %s to %s", source.Server, p.From.Address), "repeat that move first: take the shard out of WEFT_SHARD_SERVERS, or put its former server there")
	case target != nil && target.Arriving && target.Move == source.Move:
		p.Open, p.move, p.Since = true, source.Move, source.Since
		return nil
	case target == nil && !p.Structure && source.Server == p.To.Address:
		p.Done, p.Since = true, source.Since
		return nil
	}
	return refuse(shard, fmt.Sprintf("is on %s since %s, and not in %s", source.Server, source.Since.UTC().Format("2006-01-02 15:04 UTC"), p.From.Address),
		fmt.Sprintf("set WEFT_SHARD_SERVERS to have its address as that of shard %d", c.Shard))
}

// empty refuses rows where the shard is not at home.
func (c *checker) empty(ctx context.Context) error {
	for _, t := range migrations.DealtTables() {
		var rows bool
		name := pgx.Identifier{c.Schema, t}.Sanitize()
		if err := c.to.QueryRow(ctx, "select exists (select from "+name+")").Scan(&rows); err != nil {
			return fmt.Errorf("rows of %s: %w", name, err)
		}
		if rows {
			return refuse(c.Schema+"."+t+" of "+c.plan.To.Address, "has rows, although its shard is not at home there", "look what has written them, and delete them")
		}
	}
	return nil
}

// tables lists what is to be copied, and compares it with what is there.
func (c *checker) tables(ctx context.Context) (err error) {
	if c.plan.Open {
		return nil
	}
	if c.plan.Tables, err = readTables(ctx, c.from, c.Schema); err != nil || c.plan.Structure {
		return err
	}
	if migrations.Check(ctx, c.to) != nil {
		return nil // an older schema is brought up before anything is copied
	}
	return compareTables(ctx, c.to, c.Schema, c.plan.To.Address, c.plan.Tables)
}

// notCopied has what belongs to a database, and not to the shard: the signs of life of instances, the
// election, which is written anew, and where the shard is.
func notCopied() []string {
	return []string{"weft_instance", "weft_leader", "weft_fence", "weft_shard_away", "weft_schema_version", "environment_sentinel"}
}

func readTables(ctx context.Context, conn *pgx.Conn, schema string) ([]Table, error) {
	rows, err := conn.Query(ctx, `
		select c.relname::text, c.relkind = 'p', s.rows, s.bytes, k.columns, k.types
		from pg_class c
		cross join lateral (select coalesce(sum(greatest(p.reltuples::bigint, pg_stat_get_live_tuples(p.oid), 0)), 0)::bigint as rows, coalesce(sum(pg_total_relation_size(p.oid)), 0)::bigint as bytes
			from pg_class p where p.oid = c.oid or p.oid in (select relid from pg_partition_tree(c.oid))) s
		cross join lateral (select coalesce(string_agg(quote_ident(a.attname), ', ' order by a.attname), '') as columns,
				coalesce(string_agg(format('%I %s', a.attname, format_type(a.atttypid, a.atttypmod)), ', ' order by a.attname), '') as types
			from pg_attribute a where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped and a.attgenerated = '') k
		where c.relnamespace = to_regnamespace($1) and c.relkind in ('r', 'p') and c.relname <> all ($2) and k.columns <> ''
			and not exists (select from pg_inherits i join pg_class p on p.oid = i.inhparent where i.inhrelid = c.oid and p.relnamespace = c.relnamespace)
		order by 1`, pgx.Identifier{schema}.Sanitize(), notCopied())
	if err != nil {
		return nil, fmt.Errorf("tables of %s: %w", schema, err)
	}
	tables, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (t Table, err error) {
		err = row.Scan(&t.Name, &t.parts, &t.Rows, &t.Bytes, &t.columns, &t.types)
		return t, err
	})
	if err != nil {
		return nil, fmt.Errorf("tables of %s: %w", schema, err)
	}
	return tables, nil
}

// compareTables refuses tables that the target lacks, or has with other columns.
func compareTables(ctx context.Context, to *pgx.Conn, schema, address string, tables []Table) error {
	there, err := readTables(ctx, to, schema)
	if err != nil {
		return fmt.Errorf("%s: %w", address, err)
	}
	for _, t := range tables {
		i := slices.IndexFunc(there, func(o Table) bool { return o.Name == t.Name })
		switch {
		case i < 0:
			return refuse(schema+"."+t.Name, "is not in "+address, "make it there, or drop it where the shard is")
		case there[i].types != t.types:
			return refuse(schema+"."+t.Name, fmt.Sprintf("has other columns in %s (%s) than where the shard is (%s)", address, there[i].types, t.types), "alter one of the two")
		}
	}
	return nil
}
