package traffic

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samuelhu324-dev/weft/internal/testenv/history"
	"github.com/samuelhu324-dev/weft/outbox"
)

// Clock hands out event versions: microseconds of the wall clock, each once. Its methods are
// safe for concurrent use.
type Clock struct {
	mu   sync.Mutex
	last int64
	now  func() time.Time // nil: time.Now
}

// Next returns a version higher than all before.
func (c *Clock) Next() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now
	if c.now != nil {
		now = c.now
	}
	c.last = max(c.last+1, now().UnixMicro())
	return c.last
}

// SkipTo makes later versions higher than version.
func (c *Clock) SkipTo(version int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = max(c.last, version)
}

// Ledger is what the application knows of its own commits. Its methods are safe for concurrent
// use.
type Ledger struct {
	mu           sync.Mutex
	acknowledged []history.Enqueued
	answers      []answer
	unknown      int // events of transactions whose commit got no answer
	refused      int // transactions that ended in an error
}

// answer is a transaction that the application saw committed.
type answer struct{ began, at time.Time }

func (l *Ledger) acknowledge(began time.Time, events []outbox.NewEvent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range events {
		e := &events[i]
		l.acknowledged = append(l.acknowledged, history.Enqueued{Event: e.ID, Key: e.Key, Version: e.Version})
	}
	l.answers = append(l.answers, answer{began, time.Now()})
}

const defaultTimeout = 15 * time.Second

// transact runs one transaction to its end, whatever becomes of ctx, and enters the events that
// work has written. A timeout of 0 is 15 s.
func (l *Ledger) transact(ctx context.Context, pool *pgxpool.Pool, timeout time.Duration,
	work func(context.Context, pgx.Tx) ([]outbox.NewEvent, error),
) (events []outbox.NewEvent, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cmp.Or(timeout, defaultTimeout))
	defer cancel()
	began := time.Now()
	tx, err := pool.Begin(ctx)
	if err != nil {
		l.refuse(0)
		return nil, fmt.Errorf("begin: %w", err)
	}
	defer func() { _ = tx.Rollback(ctx) }()
	if events, err = work(ctx, tx); err != nil {
		l.refuse(0)
		return nil, err
	}
	if err := tx.Commit(ctx); err != nil {
		l.refuse(len(events))
		return nil, fmt.Errorf("commit: %w", err)
	}
	l.acknowledge(began, events)
	return events, nil
}

// refuse notes a transaction that failed, with the events of a commit without an answer.
func (l *Ledger) refuse(unknown int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refused++
	l.unknown += unknown
}

func look[V any](l *Ledger, at func() V) V {
	l.mu.Lock()
	defer l.mu.Unlock()
	return at()
}

// Acknowledged returns the events that the application saw committed.
func (l *Ledger) Acknowledged() []history.Enqueued {
	return look(l, func() []history.Enqueued { return slices.Clone(l.acknowledged) })
}

// Produced returns how many events the application saw committed.
func (l *Ledger) Produced() int { return look(l, func() int { return len(l.acknowledged) }) }

// Unknown returns how many events were in transactions whose commit got no answer.
func (l *Ledger) Unknown() int { return look(l, func() int { return l.unknown }) }

// Refused returns how many transactions ended in an error.
func (l *Ledger) Refused() int { return look(l, func() int { return l.refused }) }

// Answers returns when the application saw transactions committed that began after at, the
// earliest first.
func (l *Ledger) Answers(at time.Time) (answered []time.Time) {
	for _, a := range look(l, func() []answer { return l.answers }) {
		if a.began.After(at) {
			answered = append(answered, a.at)
		}
	}
	return answered
}
