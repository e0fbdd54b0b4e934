package projections

import (
	"context"
	"fmt"
	"strings"

	"github.com/google/uuid"

	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections/elastic"
)

// chronicleType is the entity type of events that weft itself writes.
const chronicleType = "chronicle_event"

// Entities implements Sides.
func (c *Chronicle) Entities(ctx context.Context, after outbox.Key, n int) ([]outbox.Key, error) {
	keys, err := c.page(ctx, "chronicle_events", after, n)
	if err != nil {
		return nil, databaseFault(ctx, "chronicle events", err)
	}
	return keys, nil
}

func (c *Chronicle) page(ctx context.Context, table string, after outbox.Key, n int) (keys []outbox.Key, err error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	sql, args := pageOf(table, after, n)
	k := outbox.Key{Type: chronicleType}
	err = each(ctx, c.pool, sql, args, []any{&k.ID}, func() { keys = append(keys, k) })
	return keys, err
}

// pageOf returns the statement for ids after one. The first page has another: a condition that may be
// off makes each page read all before it.
func pageOf(table string, after outbox.Key, n int) (sql string, args []any) {
	if after.ID.IsZero() {
		return "select id from " + table + " order by id limit $1", []any{n}
	}
	return "select id from " + table + " where id > $2 order by id limit $1", []any{n, &after.ID}
}

// entryFields are what an entry takes over, as JSON.
const entryFields = `jsonb_build_object('event_type', e.event_type, 'book_id', e.book_id, 'block_id', e.block_id, 'actor_id', e.actor_id,
  'occurred_at', e.occurred_at, 'created_at', e.created_at, 'payload', e.payload, 'summary', {summary})::text`

// entriesOf reads entries by their ids, as they are to be or as they are.
func entriesOf(table, summary, version string) string {
	return "select e.id, " + strings.Replace(entryFields, "{summary}", summary, 1) + ", " + version + " from " + table + " e where e.id = any ($1)"
}

// entries reads rows of a statement by their ids.
func (c *Chronicle) entries(ctx context.Context, sql string, keys []outbox.Key) (out []Held, err error) {
	limited, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	var h Held
	ids := outbox.IDs(keys, func(k *outbox.Key) *outbox.ID { return &k.ID })
	err = each(limited, c.pool, sql, []any{ids}, []any{&h.Key.ID, &h.Document, &h.Version}, func() {
		h.Key.Type, h.ID = chronicleType, h.Key.ID.String()
		out = append(out, h)
	})
	if err != nil {
		return nil, databaseFault(ctx, "chronicle entries", err)
	}
	return out, nil
}

// Wanted implements Sides.
func (c *Chronicle) Wanted(ctx context.Context, keys []outbox.Key) ([]Wanted, error) {
	found, err := c.entries(ctx, entriesOf("chronicle_events", summary, "0"), keys)
	if err != nil {
		return nil, err
	}
	of := make(map[outbox.ID][]byte, len(found))
	for i := range found {
		of[found[i].Key.ID] = found[i].Document
	}
	out := make([]Wanted, len(keys))
	for i, k := range keys {
		if document, ok := of[k.ID]; ok {
			out[i] = Wanted{Found: true, Version: int64(c.version), Document: document}
		}
	}
	return out, nil
}

// Held implements Sides.
func (c *Chronicle) Held(ctx context.Context, keys []outbox.Key, _ bool) ([]Held, error) {
	return c.entries(ctx, entriesOf("chronicle_entries", "e.summary", "e.projection_version"), keys)
}

// entriesPage is how many entries one statement reads.
const entriesPage = 5000

// Documents implements Sides.
func (c *Chronicle) Documents(ctx context.Context, from string) (page []Held, next string, err error) {
	var after outbox.Key
	if from != "" {
		if after.ID, err = outbox.ParseID(outbox.KindUUID, from); err != nil {
			return nil, "", elastic.ErrOtherIndex
		}
	}
	keys, err := c.page(ctx, "chronicle_entries", after, entriesPage)
	if err != nil {
		return nil, "", databaseFault(ctx, "chronicle entries", err)
	}
	for _, k := range keys {
		page, next = append(page, Held{Key: k, ID: k.ID.String()}), k.ID.String()
	}
	return page, next, nil
}

// Known implements Sides.
func (c *Chronicle) Known(ctx context.Context, keys []outbox.Key) ([]bool, error) {
	found, err := c.entries(ctx, "select id, null, 0 from chronicle_events where id = any ($1)", keys)
	if err != nil {
		return nil, err
	}
	of := make(map[outbox.ID]bool, len(found))
	for i := range found {
		of[found[i].Key.ID] = true
	}
	out := make([]bool, len(keys))
	for i, k := range keys {
		out[i] = of[k.ID]
	}
	return out, nil
}

// State implements Sides: nothing cheap tells whether a table was written to.
func (c *Chronicle) State(context.Context) (string, error) { return uuid.NewString(), nil }

// Size implements Sides.
func (c *Chronicle) Size(ctx context.Context) (rows, documents int64, err error) {
	limited, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	err = each(limited, c.pool, `
select (select greatest(reltuples::bigint, 0) from pg_class where oid = 'chronicle_events'::regclass),
       (select greatest(reltuples::bigint, 0) from pg_class where oid = 'chronicle_entries'::regclass)`, nil, []any{&rows, &documents}, nil)
	if err != nil {
		return 0, 0, databaseFault(ctx, "size of the chronicle", fmt.Errorf("estimates: %w", err))
	}
	return rows, documents, nil
}

// ByVersionOnly implements Sides.
func (c *Chronicle) ByVersionOnly(context.Context) (string, error) { return "", nil }
