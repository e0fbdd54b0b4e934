package failover

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/samuelhu324-dev/weft/internal/lab/history"
	"github.com/samuelhu324-dev/weft/outbox"
)

const (
	outboxTable = "search_outbox_events"

	writers = 4
	// writerPause is that of one writer between two transactions of one to three events:
	// some three hundred events a second in all.
	writerPause = 25 * time.Millisecond
	entities    = 600
	txTimeout   = 3 * time.Second
)

// answer is a transaction that the producer saw committed.
type answer struct {
	began, at time.Time
}

// writer is the application. It goes on whatever the database does. Each of its
// goroutines has entities of its own, so that versions grow in the order of commit.
type writer struct {
	pool *pgxpool.Pool
	seed uint64
	gate sync.RWMutex // held for reading by a transaction under way, for writing by a pause

	mu           sync.Mutex
	last         int64 // version
	acknowledged []history.Enqueued
	answers      []answer
	refused      int           // transactions that ended in an error
	answered     chan struct{} // closed and replaced by each answer
}

func newWriter(ctx context.Context, url string, seed uint64) (*writer, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("writer: %w", err)
	}
	cfg.MaxConns = writers + 1
	cfg.ConnConfig.ConnectTimeout = time.Second
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("writer: %w", err)
	}
	return &writer{pool: pool, seed: seed, answered: make(chan struct{})}, nil
}

// run writes until ctx ends.
func (w *writer) run(ctx context.Context) {
	var all sync.WaitGroup
	for n := range uint64(writers) {
		all.Go(func() {
			random := rand.New(rand.NewPCG(w.seed, n))
			tick := time.NewTicker(writerPause)
			defer tick.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
				var changes []change
				for _, i := range random.Perm(entities / writers)[:1+random.IntN(3)] {
					op := outbox.Upsert
					if random.IntN(8) == 0 {
						op = outbox.Delete
					}
					changes = append(changes, change{entity(uint64(i)*writers + n), op})
				}
				_ = w.pausable(context.WithoutCancel(ctx), changes) // counted; a writer goes on
			}
		})
	}
	all.Wait()
}

func entity(n uint64) outbox.Key {
	k := outbox.Key{Type: "block"}
	copy(k.ID[:], "failover")
	binary.BigEndian.PutUint64(k.ID[8:], n)
	return k
}

type change struct {
	key outbox.Key
	op  outbox.Op
}

// Entities that the writer leaves alone: what is done to them while the replica is cut
// off is lost for certain.
const (
	edited = entities + iota
	removed
	created
)

func (w *writer) pausable(ctx context.Context, changes []change) error {
	w.gate.RLock()
	defer w.gate.RUnlock()
	return w.write(ctx, changes)
}

// write commits the changes of entities that nobody else changes meanwhile.
func (w *writer) write(ctx context.Context, changes []change) error {
	ctx, cancel := context.WithTimeout(ctx, txTimeout)
	defer cancel()
	began := time.Now()
	// In the order of the keys, so that no two transactions wait for each other.
	slices.SortFunc(changes, func(a, b change) int { return slices.Compare(a.key.ID[:], b.key.ID[:]) })
	var written []history.Enqueued
	err := pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
		for _, c := range changes {
			e := outbox.NewEvent{ID: uuid.New(), Key: c.key, Op: c.op, Version: w.version()}
			var err error
			if c.op == outbox.Delete {
				_, err = tx.Exec(ctx, `delete from search_index where entity_type = $1 and entity_id = $2`, c.key.Type, [16]byte(c.key.ID))
			} else {
				_, err = tx.Exec(ctx, upsertRow, c.key.Type, [16]byte(c.key.ID), fmt.Sprintf("text of version %d", e.Version), e.Version)
			}
			if err == nil {
				err = outbox.Enqueue(ctx, tx, outboxTable, e)
			}
			if err != nil {
				return err
			}
			written = append(written, history.Enqueued{Event: e.ID, Key: e.Key, Version: e.Version})
		}
		return nil
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		w.refused++
		return fmt.Errorf("write: %w", err)
	}
	w.acknowledged = append(w.acknowledged, written...)
	w.answers = append(w.answers, answer{began, time.Now()})
	close(w.answered)
	w.answered = make(chan struct{})
	return nil
}

const upsertRow = `
insert into search_index (id, entity_type, entity_id, text, snippet, rank_score, event_version, created_at, updated_at)
values (gen_random_uuid(), $1, $2, $3, left($3, 20), 0.5, $4, clock_timestamp(), clock_timestamp())
on conflict (entity_type, entity_id) do update
   set text = excluded.text, snippet = excluded.snippet, event_version = excluded.event_version, updated_at = excluded.updated_at`

// version is the wall clock's microsecond, and never one twice.
func (w *writer) version() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last = max(w.last+1, time.Now().UnixMicro())
	return w.last
}

// pause returns when no transaction is under way; none begins before resume.
func (w *writer) pause()  { w.gate.Lock() }
func (w *writer) resume() { w.gate.Unlock() }

func (w *writer) ledger() []history.Enqueued {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.acknowledged)
}

func (w *writer) refusals() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.refused
}

// outage waits for the first answer to a transaction that began after at, and returns
// how long the producer had been without one then.
func (w *writer) outage(ctx context.Context, at time.Time) (time.Duration, error) {
	for {
		w.mu.Lock()
		answers, more := w.answers, w.answered
		w.mu.Unlock()
		i := slices.IndexFunc(answers, func(a answer) bool { return a.began.After(at) })
		if i > 0 {
			return answers[i].at.Sub(answers[i-1].at), nil
		}
		select {
		case <-more:
		case <-ctx.Done():
			return 0, fmt.Errorf("writer had no answer: %w", context.Cause(ctx))
		}
	}
}

// renew gives each entity a new version: an edit where there is a row, a delete where not.
func (w *writer) renew(ctx context.Context, keys []outbox.Key, exists map[outbox.Key]bool) error {
	var group errgroup.Group
	group.SetLimit(writers)
	for part := range slices.Chunk(keys, 20) {
		group.Go(func() error {
			var changes []change
			for _, k := range part {
				op := outbox.Delete
				if exists[k] {
					op = outbox.Upsert
				}
				changes = append(changes, change{k, op})
			}
			return w.write(ctx, changes)
		})
	}
	if err := group.Wait(); err != nil {
		return errors.Join(errors.New("renew entities"), err)
	}
	return nil
}
