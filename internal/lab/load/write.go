package load

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samuelhu324-dev/weft/outbox"
)

const (
	// Table is the outbox that is written to.
	Table = "search_outbox_events"

	entityType = "block"
	opBound    = 15 * time.Second
	// known is how many entities there are to be changed, unless each is to be removed.
	known     = 1000
	hot       = 10
	fillBatch = 200
)

// The version is taken in a statement of its own, when the row is locked: what waits for
// somebody else would bring a version from before that.
const (
	insertRow = `
insert into search_index (id, entity_type, entity_id, text, snippet, rank_score, event_version, created_at, updated_at)
values (gen_random_uuid(), $1, $2, '', '', 0, 0, clock_timestamp(), clock_timestamp())
on conflict (entity_type, entity_id) do nothing`

	updateRow = `
update search_index
set text = $3::text, snippet = left($3::text, 80), rank_score = $4, updated_at = clock_timestamp(),
    event_version = greatest(event_version + 1, (extract(epoch from clock_timestamp()) * 1000000)::bigint)
where entity_type = $1 and entity_id = $2
returning event_version`

	deleteRow = `
delete from search_index where entity_type = $1 and entity_id = $2
returning greatest(event_version + 1, (extract(epoch from clock_timestamp()) * 1000000)::bigint)`
)

// writer carries out operations. Its fields do not change.
type writer struct {
	Settings
	pool     *pgxpool.Pool
	entities []outbox.Key
}

// prepare makes the entities that the scenario changes.
func (w *writer) prepare(ctx context.Context, made func(int)) error {
	n := 0
	switch w.Scenario {
	case Create:
	case Delete:
		n = w.Ops
	default:
		n = known
	}
	for len(w.entities) < n {
		batch := make([]outbox.Key, min(fillBatch, n-len(w.entities)))
		for i := range batch {
			batch[i] = outbox.Key{Type: entityType, ID: outbox.UUID(uuid.New())}
		}
		random := rand.New(rand.NewPCG(w.Seed, uint64(len(w.entities))))
		_, err := w.transact(ctx, func(ctx context.Context, tx pgx.Tx) ([]outbox.NewEvent, error) {
			var events []outbox.NewEvent
			for _, key := range batch {
				e, err := w.upsert(ctx, tx, key, random)
				if err != nil {
					return nil, err
				}
				events = append(events, *e)
			}
			return events, nil
		})
		if err != nil {
			return fmt.Errorf("make the entities: %w", err)
		}
		w.entities = append(w.entities, batch...)
		made(len(w.entities))
	}
	return nil
}

// operation n is the same for a seed, apart from what others do to its entity.
func (w *writer) operation(ctx context.Context, n int) ([]outbox.NewEvent, error) {
	random := rand.New(rand.NewPCG(w.Seed, uint64(n)|1<<63))
	scenario := w.Scenario
	if scenario == Mixed {
		switch d := random.IntN(10); {
		case d < 3:
			scenario = Create
		case d < 8:
			scenario = Update
		default:
			scenario = Delete
		}
	}
	var key outbox.Key
	switch {
	case scenario == Create:
		key = outbox.Key{Type: entityType, ID: outbox.UUID(uuid.New())}
	case w.Scenario == Delete:
		key = w.entities[n]
	case w.Scenario == Hot && random.IntN(5) > 0:
		key = w.entities[random.IntN(hot)]
	default:
		key = w.entities[random.IntN(len(w.entities))]
	}
	return w.transact(ctx, func(ctx context.Context, tx pgx.Tx) ([]outbox.NewEvent, error) {
		var e *outbox.NewEvent
		var err error
		if scenario == Delete {
			e, err = w.remove(ctx, tx, key)
		}
		if e == nil && err == nil { // a mixed load has removed it before: it comes back
			e, err = w.upsert(ctx, tx, key, random)
		}
		if err != nil {
			return nil, err
		}
		return []outbox.NewEvent{*e}, nil
	})
}

func (w *writer) upsert(ctx context.Context, tx pgx.Tx, key outbox.Key, random *rand.Rand) (*outbox.NewEvent, error) {
	text := words(random, w.Bytes)
	for {
		if _, err := tx.Exec(ctx, insertRow, key.Type, &key.ID); err != nil {
			return nil, err
		}
		var version int64
		err := tx.QueryRow(ctx, updateRow, key.Type, &key.ID, text, random.Float64()).Scan(&version)
		if errors.Is(err, pgx.ErrNoRows) {
			continue // removed between the two
		}
		return &outbox.NewEvent{ID: outbox.UUID(uuid.New()), Key: key, Op: outbox.Upsert, Version: version}, err
	}
}

// remove returns nil when the row is not there.
func (w *writer) remove(ctx context.Context, tx pgx.Tx, key outbox.Key) (*outbox.NewEvent, error) {
	var version int64
	err := tx.QueryRow(ctx, deleteRow, key.Type, &key.ID).Scan(&version)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	return &outbox.NewEvent{ID: outbox.UUID(uuid.New()), Key: key, Op: outbox.Delete, Version: version}, err
}

// transact changes rows and enqueues their events in one transaction.
func (w *writer) transact(ctx context.Context, change func(context.Context, pgx.Tx) ([]outbox.NewEvent, error)) (events []outbox.NewEvent, err error) {
	ctx, cancel := context.WithTimeout(ctx, opBound)
	defer cancel()
	err = pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
		if events, err = change(ctx, tx); err != nil {
			return err
		}
		return outbox.Enqueue(ctx, tx, Table, events...)
	})
	return events, err
}

// words is a text of n bytes.
func words(random *rand.Rand, n int) string {
	var b strings.Builder
	for b.Len() < n {
		fmt.Fprintf(&b, "%07x ", random.Uint32()>>4)
	}
	return b.String()[:n]
}
