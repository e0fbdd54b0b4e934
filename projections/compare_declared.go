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
		err = fmt.Errorf("outbox table %s was not made by `weft outbox create`, so its source is not known", s.declaration.Table)
	}
	return r, err
}

// entitiesQuery reads a page of such a table.
const entitiesQuery = `select {id} from {source} s where {after} order by {keys} limit $1`

// page returns the statement for the entities after one whose id is $2, or for the first.
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
		after[i] = fmt.Sprintf("weft_part_of($2, %d)::%s", i+offset, r.types[i])
	}
	list := strings.Join(keys, ", ")
	id, next := base+"_id("+list+")", "("+list+") > ("+strings.Join(after, ", ")+")"
	switch {
	case placed:
		id = base + "_place(" + strings.Join(append(args, keys...), ", ") + ")"
	case len(keys) == 1:
		id, next = list+"::"+kind.String(), list+" > $2"
	}
	if first {
		next = "true"
	}
	return strings.NewReplacer("{id}", id, "{source}", r.table, "{after}", next, "{keys}", list).Replace(entitiesQuery)
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
	args := []any{n}
	if !after.ID.IsZero() {
		args = append(args, &after.ID)
	}
	rows, err := s.pool.Query(ctx, r.page(strings.TrimSuffix(s.declaration.Table, "_events"), shape.key.kind, after.ID.IsZero()), args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (k outbox.Key, err error) {
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
		id, ours := s.naming.Load().entity(d)
		if id.IsZero() {
			return outbox.Key{}, ours
		}
		return outbox.Key{Type: r.entityType, ID: id}, ours
	}, nil
}

func (s *declaredSource) size(ctx context.Context) (int64, error) {
	r, err := s.registered(ctx)
	return r.rows, err
}
