package move

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/leader"
	"github.com/samuelhu324-dev/weft/migrations"
)

// askEvery is the pause between two looks whom to ask to hand over.
const askEvery = 200 * time.Millisecond

// groups returns the groups that have led the shard, and the one of the settings.
func groups(ctx context.Context, conn *pgx.Conn, own string) ([]string, error) {
	rows, err := conn.Query(ctx, "select group_name::text from weft_leader union select $1::text order by 1", own)
	if err != nil {
		return nil, fmt.Errorf("groups of the shard: %w", err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("groups of the shard: %w", err)
	}
	return all, nil
}

// takeLead makes the session hold the lock of a group, as its next holder: it queues for the lock before
// it asks the leader to hand over, so that no instance gets in between.
func takeLead(ctx context.Context, conn *pgx.Conn, url, group string, o Options) error {
	ctx, cancel := context.WithTimeoutCause(ctx, o.Wait+connectTimeout, context.DeadlineExceeded)
	defer cancel()
	asker, err := connect(ctx, url)
	if err != nil {
		return err
	}
	defer closeSession(ctx, asker)
	if _, err := conn.Exec(ctx, "select set_config('lock_timeout', $1, false)", strconv.FormatInt(max(1, o.Wait.Milliseconds()), 10)); err != nil {
		return fmt.Errorf("lock of group %s: %w", group, err)
	}
	locked := make(chan error, 1)
	start := time.Now()
	go func() {
		_, err := conn.Exec(ctx, "select pg_advisory_lock($1)", leader.Key(group))
		locked <- err
	}()
	err = askToHandOver(ctx, asker, group, o, locked)
	if blocked(err) {
		return &LockError{What: "the lock of group " + group, Waited: time.Since(start), Holder: lockHolder(ctx, asker, group)}
	}
	if err != nil {
		return fmt.Errorf("lock of group %s: %w", group, err)
	}
	if _, err := conn.Exec(ctx, "select set_config('lock_timeout', $1, false)", strconv.FormatInt(lockTry.Milliseconds(), 10)); err != nil {
		return fmt.Errorf("lock of group %s: %w", group, err)
	}
	return nil
}

// askToHandOver asks each leader of the group once, until the lock is had.
func askToHandOver(ctx context.Context, asker *pgx.Conn, group string, o Options, locked <-chan error) error {
	tick := time.NewTicker(askEvery)
	defer tick.Stop()
	var asked int64
	for {
		select {
		case err := <-locked:
			return err
		case <-tick.C:
		}
		st, err := leader.ReadState(ctx, asker, group)
		if err == nil && st.Led() && st.Epoch != asked {
			asked = st.Epoch
			_, err = leader.Resign(ctx, asker, group, leader.Resignation{Epoch: st.Epoch, By: o.By, Why: o.Why})
			if errors.Is(err, leader.ErrNoTerm) {
				err = nil // it has ended by itself
			}
		}
		if err != nil && ctx.Err() == nil && asker.IsClosed() {
			return errors.Join(err, <-locked)
		}
	}
}

func lockHolder(ctx context.Context, asker *pgx.Conn, group string) (h migrations.Holder) {
	if st, err := leader.ReadState(ctx, asker, group); err == nil && st.LockHeld {
		h = migrations.Holder{PID: int(st.LockPID), Application: st.LockApp, User: st.LockUser, State: "its leader"}
	}
	return h
}

// epochLeap is added to the newest epoch of the source: an instance that was not told may begin a few
// more terms there, and no number is given out twice.
const epochLeap = 1000

// readEpochs returns the newest epoch of each group.
func readEpochs(ctx context.Context, db pgx.Tx) (map[string]int64, error) {
	rows, err := db.Query(ctx, `select group_name::text, max(epoch) from
		(select group_name, epoch from weft_leader union all select group_name, epoch from weft_term) e group by 1`)
	if err != nil {
		return nil, fmt.Errorf("epochs: %w", err)
	}
	defer rows.Close()
	out := map[string]int64{}
	for rows.Next() {
		var group string
		var epoch int64
		if err := rows.Scan(&group, &epoch); err != nil {
			return nil, fmt.Errorf("epochs: %w", err)
		}
		out[group] = epoch
	}
	return out, rows.Err()
}

// leapSQL has the next term of group $1 come after epoch $2, and after all that were given here.
const leapSQL = `
insert into weft_leader as w (group_name, epoch, instance, acquired_at, renewed_at, released_at)
values ($1, $2, $3, clock_timestamp(), clock_timestamp(), clock_timestamp())
on conflict (group_name) do update
   set epoch = greatest(w.epoch + 1, excluded.epoch), instance = excluded.instance, lock_backend_pid = null, lock_backend_start = null,
       acquired_at = excluded.acquired_at, renewed_at = excluded.renewed_at, released_at = excluded.released_at
returning epoch`
