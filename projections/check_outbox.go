package projections

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/samuelhu324-dev/weft/outbox"
)

// rightsQuery reads which of weft's own rights on an outbox the role of the session lacks, and
// which of the indexes on open events are missing, or were left unfinished, or are on which other table, and
// which of its tables are unlogged.
const rightsQuery = `
with base as (select regexp_replace($1, '_events$', '') as name), lacking as (
  select i.name, coalesce((select x.indrelid::regclass::text from pg_index x where x.indexrelid = to_regclass(i.name) and x.indrelid <> to_regclass($1)), '') as elsewhere
  from base, lateral (select 'weft_' || base.name || '_' || of from unnest(array['list', 'retry', 'entity', 'behind', 'processing', 'failed']) as of) as i(name)
  where not exists (select from pg_index x where x.indexrelid = to_regclass(i.name) and x.indrelid = to_regclass($1) and x.indisvalid))
select current_user::text,
       array(select w.text from (values
           ('select on weft_outbox', has_table_privilege('weft_outbox', 'select')),
           ('select on ' || $1, has_table_privilege($1, 'select')),
           ('update on ' || $1, has_any_column_privilege($1, 'update')),
           ('select on ' || base.name || '_versions', has_table_privilege(to_regclass(base.name || '_versions'), 'select'))) as w(text, granted)
         where not granted),
       array(select name from lacking order by name), array(select elsewhere from lacking order by name),
       array(select c.relname::text from pg_class c where c.oid in (to_regclass($1), to_regclass(base.name || '_versions')) and c.relpersistence = 'u' order by 1)
from base`

// outbox looks at the outbox table, without which nothing else can be tried.
func (c *checker) outbox(ctx context.Context) (ok bool, err error) {
	if db, ok := c.pool.(outbox.DB); ok {
		_, err := outbox.DescribeTable(ctx, db, c.declaration.Table, queryTimeout)
		if wrong, ok := errors.AsType[*outbox.ShapeError](err); ok {
			c.find("outbox.table", "table "+wrong.Table+" "+wrong.Why, wrong.Remedy)
			return false, nil
		}
		if err != nil {
			return false, err
		}
	}
	var role string
	var lacking, indexes, elsewhere, unlogged []string
	if err := each(ctx, c.pool, rightsQuery, []any{c.declaration.Table}, []any{&role, &lacking, &indexes, &elsewhere, &unlogged}, nil); err != nil {
		return false, fmt.Errorf("rights on %s: %w", c.declaration.Table, err)
	}
	for _, right := range lacking {
		c.find("outbox.table", fmt.Sprintf("role %s lacks %s", role, right), "run `weft migrate grant "+role+"` as the owner of the tables")
	}
	for i, name := range indexes {
		if at := elsewhere[i]; at != "" { // as after a copy has taken the table's place
			c.find("outbox.table", "index "+name+" is on table "+at+": statements would read the whole table", "run `weft doctor` for the statements that free its name and make it anew")
			continue
		}
		c.find("outbox.table", "index "+name+" is missing or unfinished: statements would read the whole table", "run `weft migrate up`")
	}
	for _, name := range unlogged {
		c.find("outbox.table", name+" is unlogged: a crash empties it, and what it held is lost", "alter table "+name+" set logged; after a crash `weft load`, then `weft verify --repair`")
	}
	return len(lacking) == 0, nil
}

// watchedQuery reads how triggers see the changes of tables: those that have triggers of the
// outbox $1, and those in $2. A plan names the partitions of a table, of which there may be one for each day: the table stands
// for them.
const watchedQuery = `
with made as (
  select t.tgrelid, t.tgname, t.tgenabled, t.tgtype::int as kind, p.prosrc as body
  from pg_trigger t join pg_proc p on p.oid = t.tgfoid
  where p.pronamespace = (select relnamespace from pg_class where oid = to_regclass($1))
    and p.proname ~ ('^' || regexp_replace($1, '_events$', '') || '_changed_[0-9]+$')
), tables as (
  select tgrelid as oid from made
  union select case when exists (select from made where tgrelid = to_regclass(t.name)) then to_regclass(t.name) else coalesce(pg_partition_root(to_regclass(t.name)), to_regclass(t.name)) end
        from unnest($2::text[]) as t(name)
  union select to_regclass(t.name) from unnest($2::text[]) as t(name) where row_security_active(to_regclass(t.name))
  union select to_regclass(source) from weft_outbox where table_name = $1
)
select format('%I.%I', n.nspname, c.relname), exists (select from made m where m.tgrelid = c.oid), row_security_active(c.oid),
       array(select k.name from (values (4, 'insert'), (16, 'update'), (8, 'delete')) as k(bit, name)
             where not exists (select from made m where m.tgrelid = c.oid and m.kind & k.bit > 0)),
       array(select m.tgname::text from made m where m.tgrelid = c.oid and m.tgenabled in ('D', 'R') order by 1),
       array(select m.tgname::text from made m where m.tgrelid = c.oid and m.tgenabled = 'A' order by 1),
       array(select distinct n.names[1] from made m cross join regexp_matches(m.body, '\mweft_(?:old|new)\.("(?:[^"]|"")+")', 'g') as n(names)
             where m.tgrelid = c.oid and not exists (select from pg_attribute a where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
                                                     and '"' || replace(a.attname, '"', '""') || '"' = n.names[1]) order by 1),
       case when c.relkind = 'p' then 'is partitioned: triggers of an outbox miss what is written into a partition directly'
            when c.relispartition then 'is a partition: triggers on it miss what is written through its parent'
            when c.relkind = 'm' then 'is a materialized view: a refresh fires no trigger'
            when c.relkind = 'f' then 'is a foreign table: changes on its server fire no trigger here'
            when exists (select from pg_inherits where inhrelid = c.oid or inhparent = c.oid)
                 then 'is part of an inheritance tree: triggers on it miss what is written through another of its tables'
            when exists (select from pg_subscription_rel where srrelid = c.oid)
                 then 'is filled by a logical replication subscription, which fires no statement triggers'
            else '' end,
       c.relpersistence = 'u',
       exists (select from pg_constraint k where k.conrelid = c.oid and k.confrelid = c.oid and (k.confdeltype in ('c', 'n', 'd') or k.confupdtype in ('c', 'n', 'd')))
       and case v.num / 10000 when 15 then v.num < 150016 when 16 then v.num < 160012 when 17 then v.num < 170008 when 18 then v.num < 180002 else false end
from (select current_setting('server_version_num')::int) as v(num), tables t join pg_class c on c.oid = t.oid join pg_namespace n on n.oid = c.relnamespace
where c.oid is distinct from to_regclass($1) and c.oid is distinct from to_regclass(regexp_replace($1, '_events$', '') || '_versions')
order by 1`

const remakeOutbox = "drop the outbox with `weft outbox drop`, make it again, then `weft load` and `weft verify --repair`: no event told of the changes meanwhile"

// watched is a table, and how triggers see its changes.
type watched struct {
	name                      string
	triggers, hidden          bool // some lead to the outbox; row security hides rows from weft
	lacking, disabled, always []string
	lost                      []string // columns that its triggers name, as SQL has them, and that it has not
	blind                     string   // why statement triggers miss changes
	unlogged                  bool
	merges                    bool // a MERGE hides rows from them, on a server of this version
}

// changes looks whether each change of what a document is made of writes an event. r is nil
// where there is no plan yet.
func (c *checker) changes(ctx context.Context, r *reading) error {
	source, versions, err := c.registered(ctx)
	if err != nil || source == "" {
		return err // the application writes the events itself
	}
	var read []string
	if r != nil {
		read = slices.Sorted(maps.Keys(r.tables))
		remedy := "join it on the entity's id and return its version"
		switch {
		case !r.tables[versions]:
			c.find("source.query", "version is not that of "+versions+", whose numbers the events have", remedy)
		case c.older != "":
			c.find("source.query", "version is not that of "+versions+", or the query reads what is behind, as a materialized view: an event of entity "+c.older+" has a higher one", remedy)
		}
	}
	var w watched
	err = each(ctx, c.pool, watchedQuery, []any{c.declaration.Table, read}, []any{&w.name, &w.triggers, &w.hidden, &w.lacking, &w.disabled, &w.always, &w.lost, &w.blind, &w.unlogged, &w.merges},
		func() { c.table(w, w.name == source) })
	if err != nil {
		return fmt.Errorf("triggers of %s: %w", c.declaration.Table, err)
	}
	return c.writers(ctx, source)
}

// registeredQuery reads the source of an outbox, empty when that is gone, its versions, and which
// columns of the key have another type than when the outbox was made, by the names that package migrations
// gives the types of keys.
const registeredQuery = `
select w.source, coalesce((select format('%I.%I', n.nspname, c.relname) from pg_class c join pg_namespace n on n.oid = c.relnamespace
         where c.oid = to_regclass(w.source)), ''),
       coalesce((select format('"%s"."%s"', n.nspname, c.relname) from pg_class c join pg_namespace n on n.oid = c.relnamespace
         where c.oid = to_regclass(regexp_replace($1, '_events$', '') || '_versions')), ''),
       array(select format('%I is a %s, no %s', k.name, t.now, k.type)
             from unnest(w.key_columns, w.key_types) as k(name, type) join pg_attribute a on a.attrelid = to_regclass(w.source) and a.attname = k.name and not a.attisdropped
             cross join lateral format_type(a.atttypid, null) as t(now)
             where k.type <> case t.now when 'smallint' then 'bigint' when 'integer' then 'bigint' when 'character varying' then 'text' when 'character' then 'bpchar' else t.now end)
from weft_outbox w where w.table_name = $1`

// registered returns the source of the outbox and the table of its versions; nothing for one
// that `weft outbox create` has not made.
func (c *checker) registered(ctx context.Context) (source, versions string, err error) {
	var name string
	var changed []string
	err = each(ctx, c.pool, registeredQuery, []any{c.declaration.Table}, []any{&name, &source, &versions, &changed}, func() {
		if source == "" {
			c.find("outbox.table", "its source "+name+" is gone, or has another name: writers of it fail", remakeOutbox)
		}
		for _, key := range changed {
			c.find("outbox.table", "the key of "+source+" has another type than when the outbox was made: "+key+"; writers of it may fail", remakeOutbox)
		}
	})
	if err != nil {
		return "", "", fmt.Errorf("source of %s: %w", c.declaration.Table, err)
	}
	return source, versions, nil
}

// table says what is wrong with the triggers of one table.
func (c *checker) table(w watched, source bool) {
	const setting = "outbox.table"
	if w.hidden && source {
		c.find(setting, "row security hides rows of "+w.name+" from weft's role, which compares and loads them", "let the role bypass it: alter role … bypassrls")
	}
	switch {
	case !w.triggers && !source:
		what, remedy := "changes of "+w.name+" write no event: documents keep what it had", "name it with --children when the outbox is made; where no column of it is the key, let a trigger on it call weft_enqueue, or change"
		if w.blind != "" {
			what, remedy = w.name+" "+w.blind, "change"
		}
		c.warn("source.query", what, remedy+" the row of the entity whenever it changes")
		return
	case w.blind != "":
		c.find(setting, w.name+" "+w.blind, "take it out of there, or name another table")
	case w.unlogged:
		c.find(setting, w.name+" is unlogged: a crash empties it, and no event says so", "alter table "+w.name+" set logged, which locks and rewrites it")
	}
	for _, column := range w.lost {
		c.find(setting, w.name+" has lost column "+column+", or it has another name: writers of it fail", remakeOutbox)
	}
	for _, kind := range w.lacking {
		c.find(setting, w.name+" has no trigger for "+kind+": such changes write no event", remakeOutbox)
	}
	for _, name := range w.disabled {
		c.find(setting, fmt.Sprintf("trigger %s of %s is disabled, or enabled for replicas alone: changes write no event", name, w.name),
			fmt.Sprintf("alter table %s enable trigger %s, then `weft verify --repair`: a load leaves the documents of rows that were deleted meanwhile", w.name, pgIdentifier(name)))
	}
	if w.merges {
		c.warn(setting, w.name+" refers to itself with an action on delete or update: a MERGE that sets it off hides other rows from triggers on this version of PostgreSQL, and writes no event for them",
			"update the server to 15.16, 16.12, 17.8, 18.2 or newer, or write without MERGE")
	}
	for _, name := range w.always {
		c.warn(setting, fmt.Sprintf("trigger %s of %s fires under session_replication_role = replica, too: a restored dump writes events", name, w.name),
			fmt.Sprintf("alter table %s enable trigger %s, unless that is meant", w.name, pgIdentifier(name)))
	}
}

// writersQuery reads which roles write without triggers by their settings, and which other
// outboxes get the changes of the source $2 and belong to none of the projections' tables $3.
const writersQuery = `
select 'role', case when r.oid is null then 'every role' else 'role ' || r.rolname end || case when r.oid is null and s.setdatabase <> 0 then ' of this database' else '' end,
       'alter ' || concat_ws(' in ', case when r.oid is not null then 'role ' || quote_ident(r.rolname) when s.setdatabase = 0 then 'role all' end,
                             case when s.setdatabase <> 0 then 'database ' || quote_ident(current_database()) end) || ' reset session_replication_role'
from pg_db_role_setting s left join pg_roles r on r.oid = s.setrole
where s.setdatabase in (0, (select oid from pg_database where datname = current_database()))
  and 'session_replication_role=replica' = any(s.setconfig)
union all
select 'role', 'every role of this server', case source when 'command line' then 'start it without -c session_replication_role=replica'
       else 'alter system set session_replication_role = origin; select pg_reload_conf()' end
from pg_settings where name = 'session_replication_role' and setting = 'replica' and source in ('configuration file', 'command line')
union all
select 'outbox', table_name::text, '' from weft_outbox
where to_regclass(source) = to_regclass($2) and table_name <> $1 and not table_name = any($3)
order by 1, 2`

// writers looks at who writes past the triggers, and at events that nobody reads.
func (c *checker) writers(ctx context.Context, source string) error {
	var kind, name, remedy string
	err := each(ctx, c.pool, writersQuery, []any{c.declaration.Table, source, c.tables}, []any{&kind, &name, &remedy}, func() {
		if kind == "role" {
			c.warn("outbox.table", name+" has session_replication_role = replica in its settings: what it writes fires no trigger", remedy)
			return
		}
		c.warn("outbox.table", fmt.Sprintf("%s gets the changes of %s as well, and no projection reads it: its events pile up", name, source),
			"`weft outbox drop --name "+name+"`, or declare a projection for it")
	})
	if err != nil {
		return fmt.Errorf("writers of %s: %w", source, err)
	}
	return nil
}
