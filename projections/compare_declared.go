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

// page returns the statement for the entities after one, whose id is $2 and whose type, where
// the table tells it, is $3; or for the first. base begins the names of the outbox's functions.
func (k *entityKey) page(base string, first bool) string {
	keys, after, offset := make([]string, len(k.keys)), make([]string, len(k.keys)), 1
	column := func(name string) string { return "s." + pgx.Identifier{name}.Sanitize() }
	if k.placed {
		offset = 2
	}
	for i, key := range k.keys {
		keys[i], after[i] = column(key), fmt.Sprintf("weft_part_of($2, %d)::%s", i+offset, k.types[i])
	}
	list := strings.Join(keys, ", ")
	entity, next := base+"_id("+list+")", "("+list+") > ("+strings.Join(after, ", ")+")"
	switch {
	case k.typed:
		entity, next = keys[1]+", "+keys[0], "("+list+") > ($3, $2)"
	case k.placed:
		entity = base + "_place(" + column(k.routing) + ", " + list + ")"
	case len(keys) == 1:
		entity, next = list+"::"+k.kind.String(), list+" > $2"
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
	err = each(ctx, s.pool, shape.key.page(strings.TrimSuffix(s.declaration.Table, "_events"), first), args, into, func() { keys = append(keys, k) })
	if stale(err) {
		s.forget() // the outbox was made anew
	}
	return keys, err
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

// rowsQuery reads about how many rows a table has.
const rowsQuery = `select greatest(reltuples::bigint, 0) from pg_class where oid = to_regclass($1)`

func (s *declaredSource) size(ctx context.Context) (n int64, err error) {
	shape, err := s.sourced(ctx)
	if err == nil {
		err = each(ctx, s.pool, rowsQuery, []any{shape.key.source}, []any{&n}, nil)
	}
	return n, err
}
