package projections

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections/elastic"
)

// sourceTableQuery reads which table an outbox has the changes of.
const sourceTableQuery = `
select w.source, w.entity_type, w.key_columns, w.key_types, coalesce(w.routing, ''), greatest(c.reltuples::bigint, 0)
from weft_outbox w left join pg_class c on c.oid = to_regclass(w.source)
where w.table_name = $1`

// registered is an outbox's source, as weft_outbox has it.
type registered struct {
	table, entityType string
	keys, types       []string
	routing           string
	typed             bool // the first of the keys is the type of the entity
	rows              int64
}

func (s *declaredSource) registered(ctx context.Context) (r registered, err error) {
	rows, err := s.pool.Query(ctx, sourceTableQuery, s.declaration.Table)
	if err != nil {
		return r, err
	}
	r, err = pgx.CollectOneRow(rows, func(row pgx.CollectableRow) (r registered, err error) {
		return r, row.Scan(&r.table, &r.entityType, &r.keys, &r.types, &r.routing, &r.rows)
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return s.named(ctx)
	}
	return r, err
}

// rowsQuery reads about how many rows a table has.
const rowsQuery = `select greatest(reltuples::bigint, 0) from pg_class where oid = $1::regclass`

// named returns the source that the declaration names.
func (s *declaredSource) named(ctx context.Context) (r registered, err error) {
	d := &s.declaration
	if d.Source == "" {
		return r, fmt.Errorf("outbox table %s was not made by `weft outbox create`, so its source is not known", d.Table)
	}
	shape, err := s.known(ctx)
	if err != nil {
		return r, err
	}
	rows, err := s.pool.Query(ctx, rowsQuery, d.Source)
	if err != nil {
		return r, err
	}
	n, err := pgx.CollectOneRow(rows, pgx.RowTo[int64])
	if err != nil {
		return r, fmt.Errorf("table %s: %w", d.Source, err)
	}
	return registered{table: d.Source, keys: shape.key.columns, typed: shape.key.typed, rows: n}, nil
}

// entitiesQuery reads a page of such a table.
const entitiesQuery = `select {entity} from {source} s where {after} order by {keys} limit $1`

// page returns the statement for the entities after one, whose id is $2 and whose type, where
// the table tells it, is $3; or for the first.
func (r *registered) page(base string, kind outbox.IDKind, first bool) string {
	keys, after, offset := make([]string, len(r.keys)), make([]string, len(r.keys)), 1
	column := func(name string) string { return "s." + pgx.Identifier{name}.Sanitize() }
	args := []string{}
	placed := r.routing != "" && !slices.Contains(r.keys, r.routing)
	if placed {
		args, offset = append(args, column(r.routing)), 2
	}
	for i, key := range r.keys {
		keys[i] = column(key)
		if i < len(r.types) {
			after[i] = fmt.Sprintf("weft_part_of($2, %d)::%s", i+offset, r.types[i])
		}
	}
	list := strings.Join(keys, ", ")
	entity, next := base+"_id("+list+")", "("+list+") > ("+strings.Join(after, ", ")+")"
	switch {
	case r.typed:
		entity, next = keys[1]+", "+keys[0], "("+list+") > ($3, $2)"
	case placed:
		entity = base + "_place(" + strings.Join(append(args, keys...), ", ") + ")"
	case len(keys) == 1:
		entity, next = list+"::"+kind.String(), list+" > $2"
	}
	if first {
		next = "true"
	}
	for _, column := range keys { // a unique column may be null, and such a row is no entity
		next += " and " + column + " is not null"
	}
	return strings.NewReplacer("{entity}", entity, "{source}", r.table, "{after}", next, "{keys}", list).Replace(entitiesQuery)
}

func (s *declaredSource) entities(ctx context.Context, after outbox.Key, n int) ([]outbox.Key, error) {
	r, err := s.registered(ctx)
	if err != nil {
		return nil, err
	}
	shape, err := s.known(ctx)
	if err != nil {
		return nil, err
	}
	first, args := after.ID.IsZero(), []any{n}
	if !first {
		args = append(args, &after.ID)
	}
	if !first && r.typed {
		args = append(args, after.Type)
	}
	rows, err := s.pool.Query(ctx, r.page(strings.TrimSuffix(s.declaration.Table, "_events"), shape.key.kind, first), args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (k outbox.Key, err error) {
		if r.typed {
			return k, row.Scan(&k.ID, &k.Type)
		}
		k.Type = r.entityType
		return k, row.Scan(&k.ID)
	})
}

func (s *declaredSource) entityOf(ctx context.Context) (func(elastic.Doc) (outbox.Key, bool), error) {
	r, err := s.registered(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := s.known(ctx); err != nil {
		return nil, err
	}
	return func(d elastic.Doc) (outbox.Key, bool) {
		key, ours := s.naming.Load().entity(d)
		if !r.typed && !key.ID.IsZero() {
			key.Type = r.entityType
		}
		return key, ours
	}, nil
}

func (s *declaredSource) size(ctx context.Context) (int64, error) {
	r, err := s.registered(ctx)
	return r.rows, err
}
