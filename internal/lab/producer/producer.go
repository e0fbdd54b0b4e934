package producer

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

	"github.com/samuelhu324-dev/weft/internal/testenv/history"
	"github.com/samuelhu324-dev/weft/outbox"
)

const (
	// Table is the outbox table that is written to.
	Table = "search_outbox_events"

	writers = 4
	// pause is that of one writer between two transactions of one to three events:
	// some three hundred events a second in all.
	pause     = 25 * time.Millisecond
	txTimeout = 3 * time.Second

	// Entities is how many Run changes: those from 0 on. Others are the caller's.
	Entities = 600
)

// answer is a transaction that the producer saw committed.
type answer struct {
	began, at time.Time
}

// Producer is the application. Its methods are safe for concurrent use.
type Producer struct {
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

// New returns a producer that has not begun to write, to be closed. The seed says what
// it will write.
func New(ctx context.Context, url string, seed uint64) (*Producer, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("producer: %w", err)
	}
	cfg.MaxConns = writers + 1
	cfg.ConnConfig.ConnectTimeout = time.Second
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("producer: %w", err)
	}
	return &Producer{pool: pool, seed: seed, answered: make(chan struct{})}, nil
}

// Close ends the connections. No method may be under way or called afterwards.
func (p *Producer) Close() { p.pool.Close() }

// Pool is the way to the database that it writes through.
func (p *Producer) Pool() *pgxpool.Pool { return p.pool }

// Run writes until ctx ends.
func (p *Producer) Run(ctx context.Context) {
	var all sync.WaitGroup
	for n := range uint64(writers) {
		all.Go(func() {
			random := rand.New(rand.NewPCG(p.seed, n))
			tick := time.NewTicker(pause)
			defer tick.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
				var changes []Change
				for _, i := range random.Perm(Entities / writers)[:1+random.IntN(3)] {
					op := outbox.Upsert
					if random.IntN(8) == 0 {
						op = outbox.Delete
					}
					changes = append(changes, Change{Key: Entity(uint64(i)*writers + n), Op: op})
				}
				_ = p.pausable(context.WithoutCancel(ctx), changes) // counted; it goes on
			}
		})
	}
	all.Wait()
}

// Entity returns the n-th entity.
func Entity(n uint64) outbox.Key {
	k := outbox.Key{Type: "block"}
	var id uuid.UUID
	copy(id[:], "failover")
	binary.BigEndian.PutUint64(id[8:], n)
	k.ID = outbox.UUID(id)
	return k
}

// Change is one of an entity, with its event.
type Change struct {
	Key outbox.Key
	Op  outbox.Op
}

func (p *Producer) pausable(ctx context.Context, changes []Change) error {
	p.gate.RLock()
	defer p.gate.RUnlock()
	return p.Write(ctx, changes)
}

// Write commits the changes of Entities that nobody else changes meanwhile.
func (p *Producer) Write(ctx context.Context, changes []Change) error {
	ctx, cancel := context.WithTimeout(ctx, txTimeout)
	defer cancel()
	began := time.Now()
	// In the order of the keys, so that no two transactions wait for each other.
	slices.SortFunc(changes, func(a, b Change) int { return a.Key.ID.Compare(b.Key.ID) })
	var written []history.Enqueued
	err := pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) error {
		for _, c := range changes {
			e := outbox.NewEvent{ID: outbox.UUID(uuid.New()), Key: c.Key, Op: c.Op, Version: p.version()}
			var err error
			if c.Op == outbox.Delete {
				_, err = tx.Exec(ctx, `delete from search_index where entity_type = $1 and entity_id = $2`, c.Key.Type, &c.Key.ID)
			} else {
				_, err = tx.Exec(ctx, upsertRow, c.Key.Type, &c.Key.ID, fmt.Sprintf("text of version %d", e.Version), e.Version)
			}
			if err == nil {
				err = outbox.Enqueue(ctx, tx, Table, e)
			}
			if err != nil {
				return err
			}
			written = append(written, history.Enqueued{Event: e.ID, Key: e.Key, Version: e.Version})
		}
		return nil
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.refused++
		return fmt.Errorf("write: %w", err)
	}
	p.acknowledged = append(p.acknowledged, written...)
	p.answers = append(p.answers, answer{began, time.Now()})
	close(p.answered)
	p.answered = make(chan struct{})
	return nil
}

const upsertRow = `
insert into search_index (id, entity_type, entity_id, text, snippet, rank_score, event_version, created_at, updated_at)
values (gen_random_uuid(), $1, $2, $3, left($3, 20), 0.5, $4, clock_timestamp(), clock_timestamp())
on conflict (entity_type, entity_id) do update
   set text = excluded.text, snippet = excluded.snippet, event_version = excluded.event_version, updated_at = excluded.updated_at`

// version is the wall clock's microsecond, and never one twice.
func (p *Producer) version() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = max(p.last+1, time.Now().UnixMicro())
	return p.last
}

// SkipTo makes later versions higher than version.
func (p *Producer) SkipTo(version int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = max(p.last, version)
}

// Upsert is a change that writes the entity's row.
func Upsert(k outbox.Key) Change { return Change{Key: k, Op: outbox.Upsert} }

// Delete is a change that removes the entity's row.
func Delete(k outbox.Key) Change { return Change{Key: k, Op: outbox.Delete} }

// Pause returns when no transaction of Run is under way; none begins before Resume.
func (p *Producer) Pause() { p.gate.Lock() }

// Resume ends a pause.
func (p *Producer) Resume() { p.gate.Unlock() }

// Ledger returns the events that it saw committed.
func (p *Producer) Ledger() []history.Enqueued {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.acknowledged)
}

// Refusals returns how many transactions it saw fail.
func (p *Producer) Refusals() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.refused
}

// Outage waits for the first answer to a transaction that began after at, and returns
// how long the producer had been without one then.
func (p *Producer) Outage(ctx context.Context, at time.Time) (time.Duration, error) {
	for {
		p.mu.Lock()
		answers, more := p.answers, p.answered
		p.mu.Unlock()
		i := slices.IndexFunc(answers, func(a answer) bool { return a.began.After(at) })
		if i > 0 {
			return answers[i].at.Sub(answers[i-1].at), nil
		}
		select {
		case <-more:
		case <-ctx.Done():
			return 0, fmt.Errorf("producer had no answer: %w", context.Cause(ctx))
		}
	}
}

// Renew gives each entity a new version: an edit where there is a row, a delete where not.
func (p *Producer) Renew(ctx context.Context, keys []outbox.Key, exists map[outbox.Key]bool) error {
	var group errgroup.Group
	group.SetLimit(writers)
	for part := range slices.Chunk(keys, 20) {
		group.Go(func() error {
			var changes []Change
			for _, k := range part {
				op := outbox.Delete
				if exists[k] {
					op = outbox.Upsert
				}
				changes = append(changes, Change{Key: k, Op: op})
			}
			return p.Write(ctx, changes)
		})
	}
	if err := group.Wait(); err != nil {
		return errors.Join(errors.New("renew Entities"), err)
	}
	return nil
}
