package doctor

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/internal/records"
	"github.com/samuelhu324-dev/weft/migrations"
)

// costlyIndexes names what every settle writes into and weft does not read. While a table lacks an index of weft's, one of
// another name may stand in for it, as in a copy that has taken the table's place.
func (e *examination) costlyIndexes(ctx context.Context) error {
	found, err := migrations.FindCostly(ctx, e.Pool)
	if err != nil {
		return err
	}
	if e.missing, err = migrations.FindMissing(ctx, e.Pool); err != nil {
		return err
	}
	for _, c := range found {
		if slices.ContainsFunc(e.missing, func(m migrations.MissingIndex) bool { return m.Table == c.Table }) {
			continue
		}
		f := Finding{Check: "index.read", Severity: Note, On: c.Table + "." + c.Name, Index: &c}
		cost := fmt.Sprintf("every settle writes into it (%s, read %s)", size(c.Bytes), records.Counted(c.Scans, "once", "%d times"))
		switch {
		case c.Older:
			f.Check, f.Text, f.Remedy = "index.older", "weft's own, only for builds before leases: "+cost+"; drop it once no such build runs", c.Drop()
		case c.Constraint:
			f.Text = "it holds a constraint of the application: " + cost
		case c.Scans == 0:
			f.Check, f.Text, f.Remedy = "index.unread", "the application never reads it: "+cost, c.Drop()
		default:
			f.Text, f.Remedy = "the application reads it: "+cost, c.Drop()
		}
		e.found = append(e.found, f)
	}
	return nil
}

func (e *examination) missingIndexes(context.Context) error {
	for _, m := range e.missing {
		text := "an index that weft reads is missing: each lease reads the whole table"
		switch {
		case m.Elsewhere != "":
			text = "an index that weft reads is on table " + m.Elsewhere + ": without one like it each lease reads the whole table"
		case m.Invalid:
			text = "an index that weft reads is not valid, because its build was interrupted: each lease reads the whole table"
		}
		e.add("index.missing", Error, m.Table+"."+m.Name, text, m.Make())
	}
	return nil
}

func (e *examination) tables(ctx context.Context) ([]string, error) {
	tables, err := migrations.Tables(ctx, e.Pool)
	return append(tables, "weft_lease"), err
}

// indexBloat names weft's partial indexes that are far larger than their rows ask for.
func (e *examination) indexBloat(ctx context.Context) error {
	tables, err := e.tables(ctx)
	if err != nil {
		return err
	}
	rows, err := e.Pool.Query(ctx, `
select t.relname, c.relname, quote_ident(c.relname), pg_relation_size(c.oid), greatest(c.reltuples, 0)::bigint
from pg_index i join pg_class c on c.oid = i.indexrelid join pg_class t on t.oid = i.indrelid
where t.relnamespace = quote_ident(current_schema())::regnamespace and t.relname = any ($1) and c.relname like 'weft\_%' and i.indpred is not null
  and pg_relation_size(c.oid) > $2 and pg_relation_size(c.oid) > 500 * greatest(c.reltuples, 0)`, tables, e.indexBytes)
	if err != nil {
		return err
	}
	var table, name, quoted string
	var bytes, entries int64
	_, err = pgx.ForEachRow(rows, []any{&table, &name, &quoted, &bytes, &entries}, func() error {
		e.add("index.bloat", Warning, table+"."+name, fmt.Sprintf("%s for about %d entries: a list steps over what is dead", size(bytes), entries), "reindex index concurrently "+quoted+";")
		return nil
	})
	return err
}

const vacuumState = `
select c.relname, quote_ident(c.relname), greatest(coalesce(s.n_live_tup, 0), c.reltuples, 0)::bigint, coalesce(s.n_dead_tup, 0),
       current_setting('autovacuum')::boolean,
       coalesce((select option_value::boolean from pg_options_to_table(c.reloptions) where option_name = 'autovacuum_enabled'), true),
       coalesce((select option_value::float8 from pg_options_to_table(c.reloptions) where option_name = 'autovacuum_vacuum_scale_factor'), current_setting('autovacuum_vacuum_scale_factor')::float8),
       coalesce((select option_value::float8 from pg_options_to_table(c.reloptions) where option_name = 'autovacuum_vacuum_threshold'), current_setting('autovacuum_vacuum_threshold')::float8),
       extract(epoch from clock_timestamp() - greatest(s.last_vacuum, s.last_autovacuum))::float8
from pg_class c left join pg_stat_user_tables s on s.relid = c.oid
where c.relnamespace = quote_ident(current_schema())::regnamespace and c.relname = any ($1)
order by c.relname`

// vacuumed is what the server knows of a table for vacuum.
type vacuumed struct {
	name, quoted      string
	live, dead        int64
	server, table     bool // autovacuum is on
	scale, threshold  float64
	ago               *float64 // seconds since the last vacuum
	beginsAt          int64    // dead rows
	settings, removes string   // remedies
}

func (e *examination) vacuumed(ctx context.Context, each func(v vacuumed)) error {
	tables, err := e.tables(ctx)
	if err != nil {
		return err
	}
	rows, err := e.Pool.Query(ctx, vacuumState, tables)
	if err != nil {
		return err
	}
	var v vacuumed
	_, err = pgx.ForEachRow(rows, []any{&v.name, &v.quoted, &v.live, &v.dead, &v.server, &v.table, &v.scale, &v.threshold, &v.ago}, func() error {
		v.beginsAt = int64(v.threshold + v.scale*float64(v.live))
		v.settings = "alter table " + v.quoted + fmt.Sprintf(" set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = %d);", e.vacuumAt/2)
		v.removes = "vacuum (verbose) " + v.quoted + ";"
		each(v)
		return nil
	})
	return err
}

func (e *examination) vacuumSettings(ctx context.Context) error {
	server := false
	return e.vacuumed(ctx, func(v vacuumed) {
		switch {
		case !v.server && !server:
			server = true
			e.add("vacuum.settings", Error, "autovacuum", "autovacuum is off for the whole server: dead rows pile up, and ids run out", "alter system set autovacuum = on; select pg_reload_conf();")
		case !v.table:
			e.add("vacuum.settings", Error, v.name, "autovacuum is off for the table: dead rows pile up, and leases get slower", "alter table "+v.quoted+" reset (autovacuum_enabled);")
		case v.beginsAt > e.vacuumAt:
			e.add("vacuum.settings", Warning, v.name, fmt.Sprintf("autovacuum begins at %d dead rows, with %d rows in the table", v.beginsAt, v.live), v.settings)
		}
	})
}

func (e *examination) tableBloat(ctx context.Context) error {
	return e.vacuumed(ctx, func(v vacuumed) {
		if v.dead < e.dead || float64(v.dead) < e.deadShare*float64(v.live+v.dead) {
			return
		}
		last := "it has never been vacuumed"
		if v.ago != nil {
			last = "its last vacuum was " + ago(time.Duration(*v.ago*float64(time.Second))) + " ago"
		}
		e.add("vacuum.bloat", Warning, v.name, fmt.Sprintf("%d dead rows beside %d live ones; %s", v.dead, v.live, last), v.removes)
	})
}
