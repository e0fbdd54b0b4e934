package demo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/samuelhu324-dev/weft/internal/testenv/history"
	"github.com/samuelhu324-dev/weft/outbox"
)

const (
	outboxTable = "search_outbox_events"
	loadBatch   = 500
	loadWriters = 2
	txTimeout   = 20 * time.Second
)

// source is the application: it changes search_index and writes the event of each
// change in the same transaction. It is safe for concurrent use.
type source struct {
	pool  *pgxpool.Pool
	clock versions

	mu           sync.Mutex
	acknowledged []history.Enqueued
}

// versions hands out event versions: microseconds of the wall clock, and never one
// twice. A version must be taken under the lock of its entity; then versions of one
// entity grow in the order of commit.
type versions struct {
	mu   sync.Mutex
	last int64
	now  func() time.Time // time.Now when nil
}

func (v *versions) next() int64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	now := v.now
	if now == nil {
		now = time.Now
	}
	v.last = max(v.last+1, now().UnixMicro())
	return v.last
}

// produced returns how many events are committed.
func (s *source) produced() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.acknowledged)
}

// ledger returns the committed events.
func (s *source) ledger() []history.Enqueued {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.acknowledged)
}

// load inserts docs, which must not be there yet.
func (s *source) load(ctx context.Context, docs []Document) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(loadWriters)
	for batch := range slices.Chunk(docs, loadBatch) {
		g.Go(func() error {
			n, err := s.create(ctx, batch)
			if err == nil && n != len(batch) {
				err = fmt.Errorf("%d of %d documents are there already", len(batch)-n, len(batch))
			}
			if err != nil {
				return fmt.Errorf("load documents: %w", err)
			}
			return nil
		})
	}
	return g.Wait()
}

// The rows are written in the order of their keys, in every transaction, so that two
// of them never wait for each other.
const (
	insertRows = `
insert into search_index (id, entity_type, entity_id, library_id, text, snippet, rank_score, event_version, created_at, updated_at)
select gen_random_uuid(), entity_type, entity_id, library_id, text, snippet, rank_score, 0, clock_timestamp(), clock_timestamp()
from unnest($1::text[], $2::uuid[], $3::uuid[], $4::text[], $5::text[], $6::float8[])
  as t(entity_type, entity_id, library_id, text, snippet, rank_score)
order by entity_type, entity_id
on conflict (entity_type, entity_id) do nothing
returning entity_type, entity_id`

	setVersions = `
update search_index s set event_version = t.version
from unnest($1::text[], $2::uuid[], $3::bigint[]) as t(entity_type, entity_id, version)
where s.entity_type = t.entity_type and s.entity_id = t.entity_id`

	lockRows = `
select s.entity_type, s.entity_id
from search_index s
join unnest($1::text[], $2::uuid[]) as t(entity_type, entity_id) using (entity_type, entity_id)
order by s.entity_type, s.entity_id
for update of s`

	updateRows = `
update search_index s
set text = t.text, snippet = t.snippet, event_version = t.version, updated_at = clock_timestamp()
from unnest($1::text[], $2::uuid[], $3::bigint[], $4::text[], $5::text[]) as t(entity_type, entity_id, version, text, snippet)
where s.entity_type = t.entity_type and s.entity_id = t.entity_id`

	deleteRows = `
delete from search_index s
using unnest($1::text[], $2::uuid[]) as t(entity_type, entity_id)
where s.entity_type = t.entity_type and s.entity_id = t.entity_id`
)

// create inserts those of docs that are not there and returns how many. The insert
// is the lock: a version taken before it could be older than that of a delete which
// the insert waited for.
func (s *source) create(ctx context.Context, docs []Document) (int, error) {
	return s.change(ctx, outbox.Upsert, docs, func(tx pgx.Tx) ([]outbox.Key, error) {
		types, ids := columns(docs)
		libraries := make([][16]byte, len(docs))
		texts, snippets, ranks := make([]string, len(docs)), make([]string, len(docs)), make([]float64, len(docs))
		for i, d := range docs {
			libraries[i], texts[i], snippets[i], ranks[i] = d.LibraryID, d.Text, snippet(d.Text), d.RankScore
		}
		return keys(ctx, tx, insertRows, types, ids, libraries, texts, snippets, ranks)
	}, func(tx pgx.Tx, changed []Document, versions []int64) (int64, error) {
		types, ids := columns(changed)
		tag, err := tx.Exec(ctx, setVersions, types, ids, versions)
		return tag.RowsAffected(), err
	})
}

// update gives those of docs that are there their text and returns how many.
func (s *source) update(ctx context.Context, docs []Document) (int, error) {
	return s.change(ctx, outbox.Upsert, docs, s.lock(ctx, docs), func(tx pgx.Tx, changed []Document, versions []int64) (int64, error) {
		types, ids := columns(changed)
		texts, snippets := make([]string, len(changed)), make([]string, len(changed))
		for i, d := range changed {
			texts[i], snippets[i] = d.Text, snippet(d.Text)
		}
		tag, err := tx.Exec(ctx, updateRows, types, ids, versions, texts, snippets)
		return tag.RowsAffected(), err
	})
}

// remove deletes those of docs that are there and returns how many.
func (s *source) remove(ctx context.Context, docs []Document) (int, error) {
	return s.change(ctx, outbox.Delete, docs, s.lock(ctx, docs), func(tx pgx.Tx, changed []Document, _ []int64) (int64, error) {
		types, ids := columns(changed)
		tag, err := tx.Exec(ctx, deleteRows, types, ids)
		return tag.RowsAffected(), err
	})
}

func (s *source) lock(ctx context.Context, docs []Document) func(pgx.Tx) ([]outbox.Key, error) {
	return func(tx pgx.Tx) ([]outbox.Key, error) {
		types, ids := columns(docs)
		return keys(ctx, tx, lockRows, types, ids)
	}
}

// change runs one transaction: lock returns the keys it now holds, write changes
// their rows, and the events follow.
func (s *source) change(ctx context.Context, op outbox.Op, docs []Document,
	lock func(pgx.Tx) ([]outbox.Key, error),
	write func(pgx.Tx, []Document, []int64) (int64, error),
) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, txTimeout)
	defer cancel()
	var written []history.Enqueued
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		held, err := lock(tx)
		if err != nil || len(held) == 0 {
			return err
		}
		changed := make([]Document, 0, len(held))
		versions := make([]int64, 0, len(held))
		events := make([]outbox.NewEvent, 0, len(held))
		for _, d := range docs {
			if !slices.Contains(held, d.Key) {
				continue
			}
			e := outbox.NewEvent{ID: outbox.UUID(uuid.New()), Key: d.Key, Op: op, Version: s.clock.next()}
			changed, versions, events = append(changed, d), append(versions, e.Version), append(events, e)
			written = append(written, history.Enqueued{Event: e.ID, Key: e.Key, Version: e.Version})
		}
		n, err := write(tx, changed, versions)
		if err != nil {
			return err
		}
		if n != int64(len(held)) {
			return fmt.Errorf("%d of %d locked rows written", n, len(held))
		}
		return outbox.Enqueue(ctx, tx, outboxTable, events...)
	})
	if err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.acknowledged = append(s.acknowledged, written...)
	return len(written), nil
}

func columns(docs []Document) (types []string, ids any) {
	types = make([]string, len(docs))
	for i, d := range docs {
		types[i] = d.Key.Type
	}
	return types, outbox.IDs(docs, func(d *Document) *outbox.ID { return &d.Key.ID })
}

func keys(ctx context.Context, tx pgx.Tx, sql string, args ...any) ([]outbox.Key, error) {
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (k outbox.Key, err error) {
		err = row.Scan(&k.Type, &k.ID)
		return k, err
	})
}

// counts is the state of the outbox table.
type counts struct {
	Total, Done, Failed int
}

func (c counts) lag() int { return c.Total - c.Done - c.Failed }

func (s *source) counts(ctx context.Context) (c counts, err error) {
	ctx, cancel := context.WithTimeout(ctx, txTimeout)
	defer cancel()
	err = s.pool.QueryRow(ctx, `
select count(*), count(*) filter (where status = 'done'), count(*) filter (where status = 'failed')
from `+outboxTable).Scan(&c.Total, &c.Done, &c.Failed)
	return c, err
}

// left says what is not done, for the message of a drain that took too long.
func (s *source) left(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, txTimeout)
	defer cancel()
	rows, err := s.pool.Query(ctx, `
select format('%s %s%s%s', count(*), status, ' by ' || owner, ' for ' || error_reason)
from `+outboxTable+`
where status <> 'done' group by status, owner, error_reason order by count(*) desc limit 8`)
	if err != nil {
		return "", err
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err == nil && len(lines) == 0 {
		err = errors.New("nothing is left")
	}
	return strings.Join(lines, ", "), err
}
