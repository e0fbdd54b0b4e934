package projections

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections/elastic"
)

// sourced returns the shape of the answer, for work that needs the table with the entities.
func (s *declaredSource) sourced(ctx context.Context) (*declaredShape, error) {
	shape, err := s.known(ctx)
	if err == nil && shape.key.source == "" {
		err = fmt.Errorf("outbox table %s was not made by `weft outbox create`, so its source is not known", s.declaration.Table)
	}
	return shape, err
}

// entitiesQuery reads a page of the source.
const entitiesQuery = `select {entity} from {source} s where {after} order by {keys} limit $1`

// row returns the columns of the key, and the id that a row has. base begins the names of the outbox's functions.
func (k *entityKey) row(base string) (keys []string, id string) {
	column := func(name string) string { return "s." + pgx.Identifier{name}.Sanitize() }
	for _, key := range k.keys {
		keys = append(keys, column(key))
	}
	list := strings.Join(keys, ", ")
	switch {
	case k.typed:
		return keys, keys[1]
	case k.placed:
		return keys, base + "_place(" + column(k.routing) + ", " + list + ")"
	case len(keys) == 1:
		return keys, list + "::" + k.kind.String()
	}
	return keys, base + "_id(" + list + ")"
}

// parts returns the values of the key's columns in an id of several parts.
func (k *entityKey) parts(id string) string {
	parts, offset := make([]string, len(k.keys)), 1
	if k.placed {
		offset = 2
	}
	for i := range parts {
		parts[i] = fmt.Sprintf("weft_part_of(%s, %d)::%s", id, i+offset, k.types[i])
	}
	return strings.Join(parts, ", ")
}

// page returns the statement for the entities after one, whose id is $2 and whose type, where
// the table tells it, is $3; or for the first.
func (k *entityKey) page(base string, first bool) string {
	keys, entity := k.row(base)
	list := strings.Join(keys, ", ")
	var next string
	switch {
	case k.typed:
		entity, next = entity+", "+keys[0], "("+list+") > ($3, $2)"
	case k.composite():
		next = "(" + list + ") > (" + k.parts("$2") + ")"
	default:
		next = list + " > $2"
	}
	if first {
		next = "true"
	}
	for _, column := range keys { // a unique column may be null, and such a row is no entity
		next += " and " + column + " is not null"
	}
	return strings.NewReplacer("{entity}", entity, "{source}", k.source, "{after}", next, "{keys}", list).Replace(entitiesQuery)
}

func (s *declaredSource) entities(ctx context.Context, after outbox.Key, n int) (keys []outbox.Key, err error) {
	shape, err := s.sourced(ctx)
	if err != nil {
		return nil, err
	}
	k, first := outbox.Key{Type: shape.key.entityType}, after.ID.IsZero()
	into, args := []any{&k.ID}, []any{n}
	if !first {
		args = append(args, &after.ID)
	}
	if shape.key.typed {
		into = append(into, &k.Type)
		if !first {
			args = append(args, after.Type)
		}
	}
	err = s.rows(ctx, shape.key.page(strings.TrimSuffix(s.declaration.Table, "_events"), first), args, into, func() { keys = append(keys, k) })
	return keys, err
}

// presentQuery says of each entity whether the source has its row. Its parameters are their types and ids. The limit
// keeps it a lookup per key.
const presentQuery = `select coalesce((select true from {source} s where ({keys}) = ({values}) and {id} = k.id{kind} limit 1), false)
from unnest($1::text[], $2::text[]) with ordinality k(type, id, place) order by k.place`

func (k *entityKey) present(base string) string {
	keys, id := k.row(base)
	var values string
	switch {
	case k.typed:
		values = "k.type, k.id::" + k.types[1]
	case k.composite():
		values = k.parts("k.id")
	default:
		values = "k.id::" + k.types[0]
	}
	return strings.NewReplacer("{source}", k.source, "{keys}", strings.Join(keys, ", "), "{values}", values, "{id}", id, "{kind}", "::"+k.kind.String()).Replace(presentQuery)
}

func (s *declaredSource) present(ctx context.Context, keys []outbox.Key) (out []bool, err error) {
	shape, err := s.sourced(ctx)
	if err != nil {
		return nil, err
	}
	types, ids := make([]string, len(keys)), make([]string, len(keys))
	for i, k := range keys {
		types[i], ids[i] = k.Type, k.ID.String()
	}
	var is bool
	err = s.rows(ctx, shape.key.present(strings.TrimSuffix(s.declaration.Table, "_events")), []any{types, ids}, []any{&is}, func() { out = append(out, is) })
	return out, err
}

func (s *declaredSource) entityOf(ctx context.Context) (func(elastic.Doc) (outbox.Key, bool), error) {
	shape, err := s.sourced(ctx)
	if err != nil {
		return nil, err
	}
	return func(d elastic.Doc) (outbox.Key, bool) {
		key, ours := s.naming.Load().entity(d)
		if !shape.key.typed && !key.ID.IsZero() {
			key.Type = shape.key.entityType
		}
		return key, ours
	}, nil
}

// rowsQuery reads about how many rows a table has. Of a partitioned one autovacuum counts the partitions alone.
const rowsQuery = `
select coalesce(sum(greatest(reltuples::bigint, 0)), 0)::bigint from pg_class
where oid = to_regclass($1) and relkind <> 'p' or oid in (select relid from pg_partition_tree(to_regclass($1)) where isleaf)`

func (s *declaredSource) size(ctx context.Context) (n int64, err error) {
	shape, err := s.sourced(ctx)
	if err == nil {
		err = each(ctx, s.pool, rowsQuery, []any{shape.key.source}, []any{&n}, nil)
	}
	return n, err
}
