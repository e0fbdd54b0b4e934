package projections

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections/elastic"
)

// Sides is a projection whose source and destination can be compared. Its methods read, and
// may be called from several goroutines at once.
type Sides interface {
	Projection
	// Entities returns at most n entities that have a row, in the source's own order, after
	// one; a zero key stands before the first.
	Entities(ctx context.Context, after outbox.Key, n int) ([]outbox.Key, error)
	// Wanted returns what the pipeline would write of each entity now.
	Wanted(ctx context.Context, keys []outbox.Key) ([]Wanted, error)
	// Held returns what the destination has of the entities, in no order. Without newest it
	// may be as old as the last refresh.
	Held(ctx context.Context, keys []outbox.Key, newest bool) ([]Held, error)
	// Every calls page with all that the destination has, without content, until page returns
	// an error.
	Every(ctx context.Context, page func([]Held) error) error
	// Known reports of each entity whether it has a row.
	Known(ctx context.Context, keys []outbox.Key) ([]bool, error)
	// State returns a text that every write to the destination changes.
	State(ctx context.Context) (string, error)
	// Size returns about how many rows the source has, and how many documents there are.
	Size(ctx context.Context) (rows, documents int64, err error)
	// ByVersionOnly says why contents cannot be compared; empty when they can.
	ByVersionOnly(ctx context.Context) (string, error)
}

// Wanted is what the pipeline would write of an entity.
type Wanted struct {
	Found    bool  // there is to be a document
	Version  int64 // of the row; 0 where it keeps none
	Document []byte
	Problem  string // why the row has no document, in words
}

// Held is what the destination has of an entity.
type Held struct {
	Key       outbox.Key // zero when no entity has such an id
	ID        string     // of the document
	Version   int64
	Document  []byte
	Misplaced bool // on another shard than the one where it is looked for
}

// Entities implements Sides.
func (s *Index) Entities(ctx context.Context, after outbox.Key, n int) ([]outbox.Key, error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	keys, err := s.source.entities(ctx, after, n)
	if err != nil {
		return nil, databaseFault(ctx, "entities of "+s.name, err)
	}
	return keys, nil
}

// Wanted implements Sides.
func (s *Index) Wanted(ctx context.Context, keys []outbox.Key) ([]Wanted, error) {
	events, out := make([]outbox.Event, len(keys)), make([]Wanted, 0, len(keys))
	for i, k := range keys {
		events[i].Key, events[i].Op = k, outbox.Upsert
	}
	for len(events) > 0 {
		var a arena
		n, err := s.source.read(ctx, &a, events)
		if err != nil {
			return nil, err
		}
		for i := range n {
			row := a.rows[i]
			w := Wanted{Version: row.version}
			switch {
			case row.bad != nil:
				w.Problem = row.bad.Error()
			case row.found && !row.deleted:
				w.Found, w.Document = true, a.json[row.from:row.to:row.to]
			}
			out = append(out, w)
		}
		events = events[n:]
	}
	return out, nil
}

// Held implements Sides.
func (s *Index) Held(ctx context.Context, keys []outbox.Key, newest bool) ([]Held, error) {
	ids, of := make([]string, len(keys)), make(map[string]outbox.Key, len(keys))
	for i := range keys {
		ids[i] = string(s.appendID(nil, &keys[i]))
		of[ids[i]] = keys[i]
	}
	found, err := s.sink.Search(ctx, ids)
	if err == nil && newest {
		found, err = s.newest(ctx, ids, found)
	}
	if err != nil {
		return nil, err
	}
	out := make([]Held, len(found))
	for i, d := range found {
		out[i] = Held{Key: of[d.ID], ID: d.ID, Version: d.Version, Document: d.Source, Misplaced: d.Routing != ""}
	}
	return out, nil
}

// newest returns the newest state of the documents, and of those that a search has found on
// another shard.
func (s *Index) newest(ctx context.Context, ids []string, searched []elastic.Document) ([]elastic.Document, error) {
	asked := make([]elastic.Document, len(ids), len(ids)+len(searched))
	for i, id := range ids {
		asked[i].ID = id
	}
	for _, d := range searched {
		if d.Routing != "" {
			asked = append(asked, elastic.Document{ID: d.ID, Routing: d.Routing})
		}
	}
	answers, err := s.sink.Newest(ctx, asked)
	if err != nil {
		return nil, err
	}
	var found []elastic.Document
	for _, d := range answers {
		if d != nil {
			found = append(found, *d)
		}
	}
	return found, nil
}

// Every implements Sides.
func (s *Index) Every(ctx context.Context, page func([]Held) error) error {
	entity, err := s.source.entityOf(ctx)
	if err != nil {
		return databaseFault(ctx, "entities of "+s.name, err)
	}
	return s.sink.Scan(ctx, func(found []elastic.Document) error {
		out := make([]Held, len(found))
		for i, d := range found {
			out[i] = Held{Key: entity(d.ID), ID: d.ID, Version: d.Version, Misplaced: d.Routing != ""}
		}
		return page(out)
	})
}

// Known implements Sides.
func (s *Index) Known(ctx context.Context, keys []outbox.Key) ([]bool, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	events := make([]outbox.Event, len(keys))
	for i := range keys {
		events[i].Key = keys[i]
	}
	versions, err := s.source.versions(ctx, events)
	if err != nil {
		return nil, databaseFault(ctx, "versions of "+s.name, err)
	}
	out := make([]bool, len(keys))
	for i, version := range versions {
		out[i] = version != nil
	}
	return out, nil
}

// State implements Sides.
func (s *Index) State(ctx context.Context) (string, error) { return s.sink.State(ctx) }

// Size implements Sides.
func (s *Index) Size(ctx context.Context) (rows, documents int64, err error) {
	if documents, err = s.sink.Count(ctx); err != nil {
		return 0, 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	if rows, err = s.source.size(ctx); err != nil {
		return 0, 0, databaseFault(ctx, "size of the source of "+s.name, err)
	}
	return rows, documents, nil
}

// ByVersionOnly implements Sides.
func (s *Index) ByVersionOnly(ctx context.Context) (string, error) { return s.sink.Altered(ctx) }

// Reader is where an Index reads; *elastic.Sink is the one in production.
type Reader interface {
	Search(ctx context.Context, ids []string) ([]elastic.Document, error)
	Newest(ctx context.Context, documents []elastic.Document) ([]*elastic.Document, error)
	Scan(ctx context.Context, page func([]elastic.Document) error) error
	Count(ctx context.Context) (int64, error)
	State(ctx context.Context) (string, error)
	Altered(ctx context.Context) (string, error)
}

// registeredQuery reads which table an outbox has the changes of.
const registeredQuery = `
select w.source, w.key_column, w.entity_type, greatest(c.reltuples::bigint, 0)
from weft_outbox w left join pg_class c on c.oid = to_regclass(w.source)
where w.table_name = $1`

// registered is an outbox's source, as weft_outbox has it.
type registered struct {
	table, key, entityType string
	rows                   int64
}

func readRegistered(ctx context.Context, pool Querier, outboxTable string) (r registered, err error) {
	rows, err := pool.Query(ctx, registeredQuery, outboxTable)
	if err != nil {
		return r, err
	}
	r, err = pgx.CollectOneRow(rows, func(row pgx.CollectableRow) (r registered, err error) {
		return r, row.Scan(&r.table, &r.key, &r.entityType, &r.rows)
	})
	if errors.Is(err, pgx.ErrNoRows) {
		err = fmt.Errorf("outbox table %s was not made by `weft outbox create`, so its source is not known", outboxTable)
	}
	return r, err
}

// entitiesQuery reads a page of such a table.
const entitiesQuery = `select s.{key}::{entity} from {source} s where {after} order by s.{key} limit $1`

func (s *declaredSource) entities(ctx context.Context, after outbox.Key, n int) ([]outbox.Key, error) {
	r, err := readRegistered(ctx, s.pool, s.declaration.Table)
	if err != nil {
		return nil, err
	}
	shape, err := s.known(ctx)
	if err != nil {
		return nil, err
	}
	key := pgx.Identifier{r.key}.Sanitize()
	from, args := "true", []any{n}
	if !after.ID.IsZero() {
		from, args = "s."+key+" > $2", append(args, &after.ID)
	}
	sql := strings.NewReplacer("{key}", key, "{entity}", shape.entity.String(), "{source}", r.table, "{after}", from).Replace(entitiesQuery)
	rows, err := s.pool.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (k outbox.Key, err error) {
		k.Type = r.entityType
		return k, row.Scan(&k.ID)
	})
}

func (s *declaredSource) entityOf(ctx context.Context) (func(string) outbox.Key, error) {
	r, err := readRegistered(ctx, s.pool, s.declaration.Table)
	if err != nil {
		return nil, err
	}
	shape, err := s.known(ctx)
	if err != nil {
		return nil, err
	}
	return func(id string) outbox.Key {
		parsed, err := outbox.ParseID(shape.entity, id)
		if err != nil || parsed.String() != id { // as 007 for 7
			return outbox.Key{}
		}
		return outbox.Key{Type: r.entityType, ID: parsed}
	}, nil
}

func (s *declaredSource) size(ctx context.Context) (int64, error) {
	r, err := readRegistered(ctx, s.pool, s.declaration.Table)
	return r.rows, err
}

// searchEntities reads a page of search_index.
const searchEntities = `
select entity_type, entity_id from search_index
where (entity_type, entity_id) > ($2, $3) order by entity_type, entity_id limit $1`

func (s searchSource) entities(ctx context.Context, after outbox.Key, n int) ([]outbox.Key, error) {
	u, _ := after.ID.UUID()
	rows, err := s.pool.Query(ctx, searchEntities, n, after.Type, u)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (k outbox.Key, err error) { return k, row.Scan(&k.Type, &k.ID) })
}

func (searchSource) entityOf(context.Context) (func(string) outbox.Key, error) {
	return func(id string) outbox.Key {
		kind, text, _ := strings.Cut(id, ":")
		parsed, err := outbox.ParseID(outbox.KindUUID, text)
		if err != nil || parsed.String() != text {
			return outbox.Key{}
		}
		return outbox.Key{Type: kind, ID: parsed}
	}, nil
}

func (s searchSource) size(ctx context.Context) (n int64, err error) {
	rows, err := s.pool.Query(ctx, `select greatest(reltuples::bigint, 0) from pg_class where oid = 'search_index'::regclass`)
	if err != nil {
		return 0, err
	}
	return pgx.CollectOneRow(rows, pgx.RowTo[int64])
}
