package rig

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/internal/testenv/history"
)

// Outbox is the outbox table of search_index, which programs write to unless they say otherwise.
const Outbox = "search_outbox_events"

const (
	pollPeriod = 20 * time.Millisecond
	// settleTimeout bounds a takeover; the slowest is that of a frozen leader.
	settleTimeout = 2 * time.Minute
	rested        = 1500 * time.Millisecond
	freshBeat     = 2500 * time.Millisecond
)

// Leadership is the row of weft_leader.
type Leadership struct {
	Epoch    int64 // 0: nobody has led yet
	Instance string
	Released bool
	Beat     time.Duration // since the last heartbeat
	Term     time.Duration // since the lock was won
}

// String returns how a status line says it.
func (l Leadership) String() string {
	if l.Epoch == 0 || l.Released {
		return "nobody leads"
	}
	return fmt.Sprintf("%s leads (epoch %d)", l.Instance, l.Epoch)
}

// Rested returns an error unless somebody leads, has sent a heartbeat lately and has led for a
// while. The loser of the term before rests for a heartbeat before it competes again: a fault
// in that time would meet a group of one.
func (l Leadership) Rested() error {
	switch {
	case l.Epoch == 0 || l.Released:
		return errors.New("nobody leads")
	case l.Beat > freshBeat:
		return fmt.Errorf("the last heartbeat of %s is %v old", l.Instance, l.Beat)
	case l.Term < rested:
		return fmt.Errorf("the term of %s is %v old", l.Instance, l.Term)
	default:
		return nil
	}
}

// Leader reads who leads the place's group.
func (p *Place) Leader(ctx context.Context) (Leadership, error) { return p.LeaderOf(ctx, p.Group) }

// LeaderOf reads who leads a group.
func (p *Place) LeaderOf(ctx context.Context, group string) (l Leadership, err error) {
	err = p.Row(ctx, "read leader", `
select epoch, instance, released_at is not null, clock_timestamp() - renewed_at, clock_timestamp() - acquired_at
from weft_leader where group_name = $1`, group).Scan(&l.Epoch, &l.Instance, &l.Released, &l.Beat, &l.Term)
	if errors.Is(err, pgx.ErrNoRows) {
		err = nil
	}
	return l, err
}

// Now reads the database's clock.
func (p *Place) Now(ctx context.Context) (at time.Time, err error) {
	err = p.Row(ctx, "read the database's clock", "select clock_timestamp()").Scan(&at)
	return at, err
}

// Holds returns nil when a query says true.
func (p *Place) Holds(ctx context.Context, sql string, args ...any) error {
	var ok bool
	err := p.Row(ctx, "ask the database", sql, args...).Scan(&ok)
	return Want(err, ok, "not yet so: %s", strings.Join(strings.Fields(sql), " "))
}

// Record installs the history of the outbox, and of the rows of search_index if it is theirs; weft
// must have migrated.
func (p *Place) Record(ctx context.Context) error {
	if err := history.Install(ctx, p.Pool, p.Outbox); err != nil || p.Outbox != Outbox {
		return err
	}
	return history.InstallSource(ctx, p.Pool)
}

// Position is the place in the record behind which the next change will be.
func (p *Place) Position(ctx context.Context) (seq int64, err error) {
	err = Await(ctx, settleTimeout, pollPeriod, "position of the record", func(ctx context.Context) (err error) {
		ctx, cancel := context.WithTimeout(ctx, QueryTimeout)
		defer cancel()
		seq, err = history.Position(ctx, p.Pool)
		return err
	})
	return seq, err
}

// Succeeded waits for a newer term than that of epoch and its first settled event.
func (p *Place) Succeeded(ctx context.Context, epoch int64) error {
	err := Await(ctx, settleTimeout, pollPeriod, "successor", func(ctx context.Context) error {
		l, err := p.Leader(ctx)
		return Want(err, l.Epoch > epoch, "epoch %d is still the newest", l.Epoch)
	})
	if err != nil {
		return err
	}
	return p.Settles(ctx, epoch+1)
}

// Settles waits for one more event to become done under epoch or a later one.
func (p *Place) Settles(ctx context.Context, epoch int64) error {
	position, err := p.Position(ctx)
	if err != nil {
		return err
	}
	return Await(ctx, settleTimeout, pollPeriod, "settled event", func(ctx context.Context) error {
		log, err := history.Since(ctx, p.Pool, p.Outbox, p.Group, position)
		if err != nil {
			return err
		}
		_, ok := log.FirstDone(epoch)
		return Want(nil, ok, "no event is settled under epoch %d or later", epoch)
	})
}

// Drained waits until every event is done or failed. check, unless nil, is called beside each
// look; its error ends the wait if [Stop] has made it.
func (p *Place) Drained(ctx context.Context, bound time.Duration, check func(context.Context) error) error {
	return Await(ctx, bound, pollPeriod, "drained outbox", func(ctx context.Context) error {
		if check != nil {
			if err := check(ctx); err != nil {
				return err
			}
		}
		var left *string
		err := p.Row(ctx, "count the open events", `
select string_agg(t.line, ', ') from (
  select format('%s %s%s%s', count(*), status, ' by ' || owner, ' for ' || error_reason) as line
  from `+p.Outbox+`_live where status in ('pending', 'processing')
  group by status, owner, error_reason order by count(*) desc limit 8) t`).Scan(&left)
		if err == nil && left != nil {
			err = errors.New("left are " + *left)
		}
		return err
	})
}

// Abreast returns an error unless at most so many events are in flight or could be.
func (p *Place) Abreast(ctx context.Context, most int) error {
	var n int
	err := p.Row(ctx, "count the backlog", `
select (select count(*) from `+p.Outbox+` where status = 'pending' and next_retry_at is null)
     + (select count(*) from `+p.Outbox+` where status = 'pending' and next_retry_at <= now())
     + (select count(*) from `+p.Outbox+` where status = 'processing')`).Scan(&n)
	return Want(err, n <= most, "%d events are in flight or could be", n)
}

// Unsettled counts the events that are neither done nor failed, and those that failed.
func (p *Place) Unsettled(ctx context.Context) (waiting, failed int, err error) {
	err = p.Row(ctx, "count events", `
select (select count(*) from `+p.Outbox+` where status = 'pending') + (select count(*) from `+p.Outbox+` where status = 'processing'),
       (select count(*) from `+p.Outbox+` where status = 'failed')`).Scan(&waiting, &failed)
	return waiting, failed, err
}
