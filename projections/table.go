package projections

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections/elastic"
)

// tableSink writes documents into the rows of a table of the fence's database. Columns
// entity_id and version are of weft, the others have the names of the fields.
//
// A delete removes the row, and leaves no tombstone: each statement holds the fence of its
// term, and each event reads the source anew, so that no late write of an old leader and no
// older event brings the row back. A version never goes down.
type tableSink struct {
	name   string // as declared
	outbox string
	source *declaredSource
	pool   Querier

	mu     sync.Mutex
	target *tableTarget   // nil until it is known, and after a refusal
	shape  *declaredShape // for which it is
}

func newTableSink(d Declaration, source *declaredSource, pool Querier) *tableSink {
	return &tableSink{name: d.Destination, outbox: d.Table, source: source, pool: pool}
}

// tableTarget is a table that fits, and the statements on it.
type tableTarget struct{ write, live, read, versions, first, next string }

// EnsureIndex implements Documents. The table is its owner's to make.
func (s *tableSink) EnsureIndex(ctx context.Context) error { return s.Ready(ctx) }

// Ready implements Documents.
func (s *tableSink) Ready(ctx context.Context) error {
	_, err := s.known(ctx)
	return err
}

// Close implements Documents.
func (s *tableSink) Close() {}

func (s *tableSink) known(ctx context.Context) (*tableTarget, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	limited, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	shape, err := s.source.known(limited)
	if err != nil {
		return nil, err
	}
	if s.target != nil && s.shape == shape {
		return s.target, nil
	}
	look, err := s.look(limited)
	if err != nil {
		return nil, databaseFault(ctx, "destination table", err)
	}
	if found := look.findings(shape); len(found) > 0 {
		err := fmt.Errorf("destination.table of projection %s: %s; %s", s.source.declaration.Name, found[0].What, found[0].Remedy)
		return nil, &outbox.Fault{Reason: outbox.ReasonUnknown, Shared: true, Err: err}
	}
	s.target, s.shape = look.statements(shape), shape
	return s.target, nil
}

func (s *tableSink) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.target = nil
}

// Write implements Documents.
func (s *tableSink) Write(ctx context.Context, actions []elastic.Action) ([]outbox.Outcome, error) {
	authority, ok := outbox.AuthorityFrom(ctx)
	if !ok {
		return nil, errors.New("destination table: no authority in context")
	}
	target, err := s.known(ctx)
	if err != nil {
		return nil, err
	}
	out, idx := make([]outbox.Outcome, len(actions)), make([]int, len(actions))
	for i := range idx {
		idx[i] = i
	}
	err = halves(idx, func(idx []int) error { return s.write(ctx, authority, target, actions, idx, out) },
		func(i int, detail string) { out[i] = outbox.Reject(outbox.ReasonDeterministic, detail) })
	if err == nil {
		return out, nil
	}
	s.forget() // it may have changed
	err = databaseFault(ctx, "rows of "+s.name, err)
	f, ok := errors.AsType[*outbox.Fault](err)
	if !ok || !slices.ContainsFunc(out, func(o outbox.Outcome) bool { return o.Verdict != 0 }) {
		return nil, err
	}
	for i := range out {
		if out[i].Verdict == 0 {
			out[i] = outbox.Outcome{Verdict: outbox.Retry, Reason: f.Reason, Detail: oneLine(f.Error())}
		}
	}
	return out, f
}

// write writes the actions at idx in one statement.
func (s *tableSink) write(ctx context.Context, a outbox.Authority, t *tableTarget, actions []elastic.Action, idx []int, out []outbox.Outcome) error {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	ids, versions, docs := make([]string, len(idx)), make([]int64, len(idx)), make([]*string, len(idx))
	for j, i := range idx {
		ids[j], versions[j] = actions[i].ID, actions[i].Version
		if !actions[i].Delete {
			doc := string(actions[i].Body)
			docs[j] = &doc
		}
	}
	rows, err := s.pool.Query(ctx, t.write, a.Group, a.Epoch, a.Instance, ids, versions, docs)
	if err != nil {
		return err
	}
	var fenced, changed bool
	var held *int64
	// Nothing is decided before the last row: the error of a statement may come after rows of
	// it, as that of a constraint which is checked at its end does.
	var decided []outbox.Outcome
	var before []int64 // the versions of rows that are newer
	var unwritten []string
	_, err = pgx.ForEachRow(rows, []any{&fenced, &changed, &held}, func() error {
		j := len(decided)
		outcome, version := outbox.Outcome{}, int64(0)
		switch {
		case !fenced:
			return outbox.ErrFenced
		case j == len(idx):
			return fmt.Errorf("rows of %s: more answers than the %d actions", s.name, j)
		case changed:
			outcome = outbox.OK()
		case held != nil && *held > versions[j]:
			outcome, version = outbox.NoOp(outbox.NoopAlreadyApplied), *held
		case held == nil && docs[j] == nil:
			outcome = outbox.NoOp(outbox.NoopES404)
		default:
			unwritten = append(unwritten, ids[j])
		}
		decided, before = append(decided, outcome), append(before, version)
		return nil
	})
	if err != nil {
		return err
	}
	if len(decided) != len(idx) {
		return &outbox.Fault{Reason: outbox.ReasonUnknown, Err: fmt.Errorf("rows of %s: %d answers for %d actions", s.name, len(decided), len(idx))}
	}
	there, err := s.present(ctx, t, unwritten)
	if err != nil {
		return err
	}
	for j, i := range idx {
		out[i], actions[i].Held = decided[j], before[j]
		if decided[j].Verdict == 0 {
			out[i], actions[i].Held = s.unwritten(&actions[i], there)
		}
	}
	return nil
}

// present returns the versions of the rows of ids that are there.
func (s *tableSink) present(ctx context.Context, t *tableTarget, ids []string) (map[string]int64, error) {
	there := map[string]int64{}
	if len(ids) == 0 {
		return there, nil
	}
	found, err := s.documents(ctx, t.versions, ids)
	for _, d := range found {
		there[d.ID] = d.Version
	}
	return there, err
}

// unwritten decides about an action that has changed no row although none was newer: a write beside it has passed it, or
// the table does not take it. there has the versions of rows as they are since.
func (s *tableSink) unwritten(a *elastic.Action, there map[string]int64) (outbox.Outcome, int64) {
	switch version, found := there[a.ID]; {
	case !found && a.Delete:
		return outbox.NoOp(outbox.NoopES404), 0
	case found && version > a.Version, found && version == a.Version && !a.Delete:
		return outbox.NoOp(outbox.NoopAlreadyApplied), version
	default:
		return outbox.Reject(outbox.ReasonDeterministic, "table "+s.name+" does not take the change, and says no error: a trigger or a rule of it discards that; change it, then replay the event"), 0
	}
}

// Live implements Documents.
func (s *tableSink) Live(ctx context.Context, docs []elastic.Doc) (out []bool, err error) {
	target, err := s.known(ctx)
	if err != nil {
		return nil, err
	}
	var live bool
	if err := each(ctx, s.pool, target.live, []any{docIDs(docs)}, []any{&live}, func() { out = append(out, live) }); err != nil {
		return nil, databaseFault(ctx, "rows of "+s.name, err)
	}
	return out, nil
}

// writeTable is the statement of write. It answers for each action, in their order, whether
// the fence held, whether the row was written or removed, and its version before.
const writeTable = `
with fence as materialized (
  select from weft_fence where group_name = $1 and epoch = $2 and instance = $3 for key share
), action as materialized (
  select a.n, a.id::{key} as entity_id, a.version, a.doc
  from unnest($4::text[], $5::bigint[], $6::text[]::json[]) with ordinality as a(id, version, doc, n)
), written as (
  insert into {table} as t (entity_id, version{columns})
  select a.entity_id, a.version{values}
  from action a{record}
  where a.doc is not null and exists (select from fence)
  on conflict (entity_id) do update set version = excluded.version{set}
  where t.version <= excluded.version
  returning entity_id
), removed as (
  delete from {table} t using action a
  where a.doc is null and t.entity_id = a.entity_id and t.version <= a.version and exists (select from fence)
  returning t.entity_id
)
select exists (select from fence), a.entity_id in (select entity_id from written union all select entity_id from removed),
       (select t.version from {table} t where t.entity_id = a.entity_id)
from action a
order by a.n`

const liveTable = `
select exists (select from {table} t where t.entity_id = k.id::{key})
from unnest($1::text[]) with ordinality as k(id, n) order by n`

const readTable = `
select to_jsonb(t.*) - '{entity_id,version}'::text[], t.version from {table} t where t.entity_id = $1::text::{key}`

// statements returns the statements on a table that has no findings.
func (l *tableLook) statements(shape *declaredShape) *tableTarget {
	var columns, values, set strings.Builder
	var record []string // of the other columns of the table, a domain may refuse a null
	for _, f := range shape.fields {
		name := pgx.Identifier{f.name}.Sanitize()
		value := "r." + name
		if c := l.columns[f.name]; c.oid == pgtype.ByteaOID {
			value = "decode(a.doc ->> '" + strings.ReplaceAll(f.name, "'", "''") + "', 'base64')"
		} else {
			record = append(record, name+" "+c.full)
		}
		fmt.Fprintf(&columns, ", %s", name)
		fmt.Fprintf(&values, ", %s", value)
		fmt.Fprintf(&set, ", %s = excluded.%s", name, name)
	}
	fill := strings.NewReplacer("{table}", l.table, "{key}", l.columns[reserved[columnEntity]].typ,
		"{columns}", columns.String(), "{values}", values.String(), "{set}", set.String(), "{record}", recordOf(record))
	return &tableTarget{write: fill.Replace(writeTable), live: fill.Replace(liveTable), read: fill.Replace(readTable),
		versions: fill.Replace(versionsTable), first: fill.Replace(firstOfTable), next: fill.Replace(nextOfTable)}
}

// recordOf joins the fields of a document as columns with their types.
func recordOf(columns []string) string {
	if len(columns) == 0 {
		return ""
	}
	return " cross join lateral json_to_record(a.doc) as r(" + strings.Join(columns, ", ") + ")"
}

// tableLook is what the catalogue says of a destination.
type tableLook struct {
	declared string // its name
	table    string // as SQL writes it; empty without one
	kind     string // of pg_class
	unique   bool   // entity_id alone is
	writable bool
	watched  bool // its changes are the events of the outbox
	role     string
	columns  map[string]tableColumn
	castable map[string]bool // fields whose type fits their column
}

type tableColumn struct {
	typ       string
	full      string // the type with its length or scale
	required  bool
	generated bool
	oid       uint32 // of the type, or of what the domain is over
}

// tableQuery reads a table and its columns.
const tableQuery = `
select c.oid::regclass::text, c.relkind::text,
       exists (select from pg_index i join pg_attribute k on k.attrelid = c.oid and k.attnum = i.indkey[0] and k.attname = 'entity_id'
               where i.indrelid = c.oid and i.indisunique and i.indisvalid and i.indimmediate and i.indpred is null and i.indnkeyatts = 1),
       has_table_privilege(c.oid, 'select') and has_table_privilege(c.oid, 'insert') and has_table_privilege(c.oid, 'update') and has_table_privilege(c.oid, 'delete'),
       exists (select from weft_outbox w where w.table_name = $2 and to_regclass(w.source) = c.oid), quote_ident(current_user),
       a.attname::text, format_type(a.atttypid, null), format_type(a.atttypid, a.atttypmod), a.attnotnull and not a.atthasdef and a.attidentity = '', a.attgenerated <> '' or a.attidentity = 'a',
       coalesce(nullif(t.typbasetype, 0), t.oid)
from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped join pg_type t on t.oid = a.atttypid
where c.oid = to_regclass($1)`

// castQuery returns the places of the pairs of types of which the first fits the second: it is
// the same, or may be assigned to it, or the second is text or JSON.
const castQuery = `
select p.n::int from unnest($1::oid[], $2::oid[]) with ordinality as p(source, target, n)
join pg_type t on t.oid = p.target
where p.source = p.target or t.typcategory = 'S' or t.typname in ('json', 'jsonb')
   or exists (select from pg_cast c where c.castsource = p.source and c.casttarget = p.target and c.castcontext in ('a', 'i'))`

// look reads the table, and the types of the query's columns.
func (s *tableSink) look(ctx context.Context) (*tableLook, error) {
	l := &tableLook{declared: s.name, columns: map[string]tableColumn{}, castable: map[string]bool{}}
	var name string
	var c tableColumn
	into := []any{&l.table, &l.kind, &l.unique, &l.writable, &l.watched, &l.role, &name, &c.typ, &c.full, &c.required, &c.generated, &c.oid}
	if err := each(ctx, s.pool, tableQuery, []any{s.name, s.outbox}, into, func() { l.columns[name] = c }); err != nil {
		return nil, err
	}
	shape, err := s.source.known(ctx)
	if err != nil {
		return nil, err
	}
	answer, err := s.source.answer(ctx, shape.key)
	if err != nil {
		return nil, err
	}
	var names []string
	var sources, targets []uint32
	for _, f := range answer {
		if c, ok := l.columns[f.Name]; ok {
			names, sources, targets = append(names, f.Name), append(sources, f.DataTypeOID), append(targets, c.oid)
		}
	}
	var n int
	return l, each(ctx, s.pool, castQuery, []any{sources, targets}, []any{&n}, func() { l.castable[names[n-1]] = true })
}
