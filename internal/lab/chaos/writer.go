package chaos

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/samuelhu324-dev/weft/outbox"

	"github.com/samuelhu324-dev/weft/internal/lab/await"
)

const (
	outboxTable = "search_outbox_events"
	group       = "weft"

	writers = 8
	// perTransaction is how many events a transaction has on average; the writers'
	// pace follows from it and the rate.
	perTransaction = 2.0
	entities       = 600
	hotEntities    = 60 // get every other change, so that several events of one entity meet
	txTimeout      = 15 * time.Second
	writerPause    = 50 * time.Millisecond // after a transaction that failed
)

// writer is the application. Most entities it changes under the lock of their row, as
// it should. Every third one it also updates without: the version is taken first, the
// transaction stays open for a while, and the row, which never goes back, is written
// last; so versions of such an entity are committed out of order, the late ones for a
// row that is newer or gone.
type writer struct {
	pool   *pgxpool.Pool
	seed   uint64
	rate   int // events per second
	clock  versions
	ledger ledger
}

// run writes until ctx ends, which is no error. Servers that are away are none either.
func (w *writer) run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for n := range writers {
		g.Go(func() error { return w.write(ctx, rand.New(rand.NewPCG(w.seed, uint64(n)+1))) })
	}
	return g.Wait()
}

func (w *writer) write(ctx context.Context, random *rand.Rand) error {
	tick := time.NewTicker(time.Duration(float64(time.Second) * writers * perTransaction / float64(w.rate)))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		// What has begun is brought to its end: a commit that is cut off has an unknown fate.
		err := w.transact(context.WithoutCancel(ctx), func(ctx context.Context, tx pgx.Tx) ([]outbox.NewEvent, error) {
			if key := pick(random); careless(key) && random.IntN(3) > 0 {
				return w.carelessly(ctx, tx, random, key)
			}
			return w.carefully(ctx, tx, random)
		})
		if err != nil {
			if !away(err) {
				return fmt.Errorf("writer: %w", err)
			}
			_ = await.Sleep(ctx, writerPause)
		}
	}
}

// away reports whether err is trouble that a writer lives with: anything but the
// server's judgement on what it was asked.
func away(err error) bool {
	return !outbox.Refused(err) && !errors.Is(err, errWriter)
}

// errWriter marks a fault of the writer itself.
var errWriter = errors.New("the writer is wrong")

// transact runs one transaction and enters its events into the ledger.
func (w *writer) transact(ctx context.Context, change func(context.Context, pgx.Tx) ([]outbox.NewEvent, error)) error {
	ctx, cancel := context.WithTimeout(ctx, txTimeout)
	defer cancel()
	tx, err := w.pool.Begin(ctx)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer func() { _ = tx.Rollback(ctx) }()
	events, err := change(ctx, tx)
	if err == nil {
		err = outbox.Enqueue(ctx, tx, outboxTable, events...)
	}
	if err != nil {
		w.ledger.refuse()
		return err
	}
	if len(events) == 0 {
		return nil
	}
	if err := tx.Commit(ctx); err != nil {
		w.ledger.doubt(len(events))
		return fmt.Errorf("commit: %w", err)
	}
	w.ledger.acknowledge(events)
	return nil
}

const (
	lockRow = `select event_version from search_index where entity_type = $1 and entity_id = $2 for update`

	// The insert is the lock: the version is taken after it.
	insertRow = `
insert into search_index (id, entity_type, entity_id, text, snippet, rank_score, event_version, created_at, updated_at)
values (gen_random_uuid(), $1, $2, $3::text, left($3::text, 80), $4, 0, clock_timestamp(), clock_timestamp())
on conflict (entity_type, entity_id) do nothing`

	// A row never goes back, whoever writes it.
	updateRow = `
update search_index set text = $3::text, snippet = left($3::text, 80), rank_score = $4, event_version = $5, updated_at = clock_timestamp()
where entity_type = $1 and entity_id = $2 and event_version < $5`

	deleteRow = `delete from search_index where entity_type = $1 and entity_id = $2`

	newerRow = `select event_version from search_index where entity_type = $1 and entity_id = $2 and event_version > $3`
)

// carefully changes one to three entities, each once or twice, under their locks.
func (w *writer) carefully(ctx context.Context, tx pgx.Tx, random *rand.Rand) ([]outbox.NewEvent, error) {
	keys := []outbox.Key{pick(random)}
	for range random.IntN(3) {
		keys = append(keys, pick(random))
	}
	slices.SortFunc(keys, func(a, b outbox.Key) int { return cmp.Compare(a.ID.String(), b.ID.String()) })
	var events []outbox.NewEvent
	for _, key := range slices.Compact(keys) {
		there, err := exists(ctx, tx, lockRow, key)
		if err != nil {
			return nil, err
		}
		for range 1 + random.IntN(5)/4 {
			event, err := w.step(ctx, tx, random, key, &there)
			if err != nil {
				return nil, err
			}
			if event != nil {
				events = append(events, *event)
			}
		}
	}
	if random.IntN(4) == 0 {
		return events, await.Sleep(ctx, time.Duration(random.IntN(40))*time.Millisecond)
	}
	return events, nil
}

// step is one change of an entity whose row, if there is one, is locked.
func (w *writer) step(ctx context.Context, tx pgx.Tx, random *rand.Rand, key outbox.Key, there *bool) (*outbox.NewEvent, error) {
	if *there && random.IntN(6) == 0 {
		if _, err := tx.Exec(ctx, deleteRow, key.Type, &key.ID); err != nil {
			return nil, err
		}
		*there = false
		return w.event(key, outbox.Delete, w.clock.next()), nil
	}
	if !*there {
		tag, err := tx.Exec(ctx, insertRow, key.Type, &key.ID, words(random), random.Float64())
		if err != nil || tag.RowsAffected() == 0 {
			return nil, err // somebody else was faster
		}
		*there = true
	}
	version := w.clock.next()
	tag, err := tx.Exec(ctx, updateRow, key.Type, &key.ID, words(random), random.Float64(), version)
	if err == nil && tag.RowsAffected() != 1 {
		err = fmt.Errorf("%w: version %d of locked %s written to %d rows", errWriter, version, key, tag.RowsAffected())
	}
	return w.event(key, outbox.Upsert, version), err
}

// carelessly updates one entity without a lock. A row that is newer stays, and the
// event is written nevertheless.
func (w *writer) carelessly(ctx context.Context, tx pgx.Tx, random *rand.Rand, key outbox.Key) ([]outbox.NewEvent, error) {
	version := w.clock.next()
	if err := await.Sleep(ctx, time.Duration(random.IntN(250))*time.Millisecond); err != nil {
		return nil, err
	}
	tag, err := tx.Exec(ctx, updateRow, key.Type, &key.ID, words(random), random.Float64(), version)
	if err != nil {
		return nil, err
	}
	if tag.RowsAffected() == 0 {
		newer, err := exists(ctx, tx, newerRow, key, version)
		if err != nil || !newer {
			return nil, err // no row, or one that was committed this moment: the change is dropped
		}
	}
	return []outbox.NewEvent{*w.event(key, outbox.Upsert, version)}, nil
}

// again writes one more event for an entity, as an application does after its newest
// one ended in the dead letter.
func (w *writer) again(ctx context.Context, key outbox.Key) error {
	return w.transact(ctx, func(ctx context.Context, tx pgx.Tx) ([]outbox.NewEvent, error) {
		there, err := exists(ctx, tx, lockRow, key)
		if err != nil {
			return nil, err
		}
		version := w.clock.next()
		if !there {
			return []outbox.NewEvent{*w.event(key, outbox.Delete, version)}, nil
		}
		_, err = tx.Exec(ctx, updateRow, key.Type, &key.ID, "written again", 1.0, version)
		return []outbox.NewEvent{*w.event(key, outbox.Upsert, version)}, err
	})
}

func (w *writer) event(key outbox.Key, op outbox.Op, version int64) *outbox.NewEvent {
	return &outbox.NewEvent{ID: outbox.UUID(uuid.New()), Key: key, Op: op, Version: version}
}

func exists(ctx context.Context, tx pgx.Tx, sql string, key outbox.Key, args ...any) (bool, error) {
	var version int64
	err := tx.QueryRow(ctx, sql, append([]any{key.Type, &key.ID}, args...)...).Scan(&version)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

func pick(random *rand.Rand) outbox.Key {
	n := random.IntN(entities)
	if random.IntN(2) == 0 {
		n = random.IntN(hotEntities)
	}
	var id uuid.UUID
	id[0], id[14], id[15] = 0xc0, byte(n>>8), byte(n)
	return outbox.Key{Type: "block", ID: outbox.UUID(id)}
}

func careless(key outbox.Key) bool {
	id, _ := key.ID.UUID()
	return id[15]%3 == 0
}

// words is a text of 20 to some 2,000 bytes, short ones being more frequent.
func words(random *rand.Rand) string {
	var b strings.Builder
	for range 2 + random.IntN(1+random.IntN(200)) {
		fmt.Fprintf(&b, "%08x ", random.Uint32())
	}
	return b.String()
}
