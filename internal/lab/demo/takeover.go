package demo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/samuelhu324-dev/weft/internal/testenv/history"
)

const (
	kills = 3
	// streamBetween is how long the stream runs undisturbed before each kill.
	streamBetween   = 1500 * time.Millisecond
	takeoverTimeout = 15 * time.Second
	watchPoll       = 20 * time.Millisecond
	// claimedTimeout bounds the wait for a moment at which events are claimed.
	claimedTimeout = 300 * time.Millisecond
)

// leadership is the row of weft_leader.
type leadership struct {
	epoch    int64
	instance string
	released bool
}

// String returns how the row reads in a status line.
func (l leadership) String() string {
	switch {
	case l.epoch == 0 || l.released:
		return "nobody leads"
	default:
		return fmt.Sprintf("%s leads (epoch %d)", l.instance, l.epoch)
	}
}

func (r *run) leader(ctx context.Context) (l leadership, err error) {
	ctx, cancel := context.WithTimeout(ctx, txTimeout)
	defer cancel()
	rows, err := r.pool.Query(ctx, `select epoch, instance, released_at is not null from weft_leader where group_name = $1`, r.place.group)
	if err != nil {
		return l, fmt.Errorf("read leader: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		if err := rows.Scan(&l.epoch, &l.instance, &l.released); err != nil {
			return l, fmt.Errorf("read leader: %w", err)
		}
	}
	return l, rows.Err()
}

// takeover is one kill of the leader and what followed.
type takeover struct {
	From, To leadership
	Claimed  int           // events that the killed leader held
	Lead     time.Duration // SIGKILL to the commit of the new epoch
	Settle   time.Duration // SIGKILL to the commit of the first settled event
}

// kill ends the leader in mid-stream, waits for the other one's first settled event,
// and starts the killed one again as the standby.
func (r *run) kill(ctx context.Context) (t takeover, err error) {
	if t.From, err = r.leader(ctx); err != nil {
		return t, err
	}
	victim, other := r.instances[t.From.instance], ""
	for name := range r.instances {
		if name != t.From.instance {
			other = name
		}
	}
	if victim == nil || victim.HasEnded() {
		return t, fmt.Errorf("the leader %q is not a running instance", t.From.instance)
	}
	if err := r.instances[other].Ready(ctx); err != nil {
		return t, err
	}
	before, err := history.Position(ctx, r.pool)
	if err != nil {
		return t, err
	}
	if err := r.someClaimed(ctx); err != nil {
		return t, err
	}
	r.killed[victim] = true
	at, err := victim.Kill()
	if err != nil {
		return t, err
	}
	if err := r.pool.QueryRow(ctx, `select count(*) from `+outboxTable+` where status = 'processing' and epoch = $1`, t.From.epoch).Scan(&t.Claimed); err != nil {
		return t, fmt.Errorf("count claimed events: %w", err)
	}
	if err := r.followed(ctx, before, at, &t); err != nil {
		return t, err
	}
	<-victim.Ended()
	again, err := r.fleet.Start(ctx, victim.Name)
	if err != nil {
		return t, err
	}
	r.instances[victim.Name] = again
	return t, again.Ready(ctx)
}

// someClaimed waits for a moment at which the leader holds events, so that the kill
// leaves some; a quiet moment is no error.
func (r *run) someClaimed(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, txTimeout)
	defer cancel()
	for deadline := time.Now().Add(claimedTimeout); time.Now().Before(deadline); {
		var some bool
		err := r.pool.QueryRow(ctx, `select exists (select from `+outboxTable+` where status = 'processing')`).Scan(&some)
		if err != nil {
			return fmt.Errorf("look for claimed events: %w", err)
		}
		if some {
			return nil
		}
	}
	return nil
}

// followed waits until an event was settled under a newer epoch than t.From's, and
// fills t from the record behind position.
func (r *run) followed(ctx context.Context, position int64, killed time.Time, t *takeover) error {
	ctx, cancel := context.WithTimeoutCause(ctx, takeoverTimeout, errors.New("no takeover in time"))
	defer cancel()
	for {
		log, err := history.Since(ctx, r.pool, outboxTable, r.place.group, position)
		if err != nil {
			return errors.Join(err, context.Cause(ctx))
		}
		next := history.Takeovers(log, []history.FaultMark{{At: killed, Epoch: t.From.epoch}})[0]
		if next.Happened() {
			t.To = leadership{epoch: next.Epoch, instance: next.Instance}
			t.Lead, t.Settle = next.Lead(), next.Settle()
			return nil
		}
		if err := r.healthy(); err != nil {
			return err
		}
		if err := sleep(ctx, watchPoll); err != nil {
			return fmt.Errorf("after the kill of %s: %w", t.From.instance, err)
		}
	}
}

// sleep waits for d or the end of ctx, whose cause it returns.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}
