package faults

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
)

// LongSnapshot names the fault that lasts beside others.
const LongSnapshot = "long-snapshot"

const (
	strangerRows = 20
	strangerWait = 5 * time.Second // for rows to be there
)

func databases() []Fault {
	return []Fault{
		{
			Name: "stranger-lock", About: "somebody else holds row locks on pending events",
			Share: 1, Draw: lasts(second, 4*second), Inject: lockRows, Heal: disconnect,
		},
		{
			Name: LongSnapshot, About: "a snapshot stays open, up to ten minutes, while other faults go on",
			Share: 1, Lasting: true, Draw: func(_ *Dice, p *Params) { p.Hold = 10 * time.Minute },
			Inject: openSnapshot, Heal: disconnect,
		},
	}
}

func (i *Injection) connect(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, rig.QueryTimeout)
	defer cancel()
	if i.conn, err = pgx.Connect(ctx, i.DatabaseURL); err != nil {
		return fmt.Errorf("connect as a stranger: %w", err)
	}
	return nil
}

// disconnect ends the session and with it its transaction.
func disconnect(ctx context.Context, i *Injection) error {
	if i.conn == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, rig.QueryTimeout)
	defer cancel()
	_ = i.conn.Close(ctx) // a server that was restarted has ended it
	i.conn = nil
	return nil
}

// lockRows locks pending events in a session that weft knows nothing of.
func lockRows(ctx context.Context, i *Injection) error {
	if err := i.connect(ctx); err != nil {
		return err
	}
	if _, err := i.conn.Exec(ctx, "begin"); err != nil {
		return fmt.Errorf("begin as a stranger: %w", err)
	}
	for until := time.Now().Add(strangerWait); time.Now().Before(until); {
		tag, err := i.conn.Exec(ctx, fmt.Sprintf(`select from %s where status = 'pending' limit %d for update skip locked`, i.Outbox, strangerRows))
		if err != nil {
			return fmt.Errorf("lock as a stranger: %w", err)
		}
		if n := tag.RowsAffected(); n > 0 {
			i.Note, i.At = fmt.Sprintf(", %d rows", n), time.Now()
			return nil
		}
	}
	return Skip("no event was pending when it was looked")
}

// openSnapshot keeps vacuum from everything that the transaction could see. A restart of the
// server ends it early.
func openSnapshot(ctx context.Context, i *Injection) error {
	if err := i.connect(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, rig.QueryTimeout)
	defer cancel()
	// The first query takes the snapshot. Without arguments both are one message.
	if _, err := i.conn.Exec(ctx, "begin isolation level repeatable read; select count(*) from weft_leader"); err != nil {
		return fmt.Errorf("open snapshot: %w", err)
	}
	return nil
}

// Alive reports whether a lasting fault still goes on.
func (i *Injection) Alive(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, rig.QueryTimeout)
	defer cancel()
	return i.conn != nil && i.conn.Ping(ctx) == nil && time.Since(i.At) < i.Hold
}
