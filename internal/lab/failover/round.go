package failover

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samuelhu324-dev/weft/internal/lab/producer"
	"github.com/samuelhu324-dev/weft/internal/testenv/history"
	"github.com/samuelhu324-dev/weft/internal/testenv/stack"
	"github.com/samuelhu324-dev/weft/outbox"
)

// Round is one loss of the primary. Times are in milliseconds.
type Round struct {
	Fault     string  `json:"fault"`      // sigkill, immediate
	StopMS    float64 `json:"stop_ms"`    // until the primary's processes were gone
	PromoteMS float64 `json:"promote_ms"` // from the order to promote until the replica took writes
	LeadMS    float64 `json:"lead_ms"`    // … until the epoch of the next term committed
	SettleMS  float64 `json:"settle_ms"`  // … until the first event settled
	OutageMS  float64 `json:"outage_ms"`  // the producer had no commit answered
	Instance  string  `json:"instance"`   // that led then
	Epoch     int64   `json:"epoch"`

	Lost  int `json:"lost"`  // events the producer saw committed and the new primary never had
	Ahead int `json:"ahead"` // documents that were newer than anything the new primary knew
	Named int `json:"named"` // of these, by weft's alarm
}

// String returns the round as one line.
func (r *Round) String() string {
	s := fmt.Sprintf("%s; promoted in %.0f ms; %s leads after %.0f ms, first event settled after %.0f ms; the producer waited %.0f ms",
		r.Fault, r.PromoteMS, r.Instance, r.LeadMS, r.SettleMS, r.OutageMS)
	if r.Lost+r.Ahead > 0 {
		s += fmt.Sprintf("; %d events lost with the primary, %d documents ahead, %d named", r.Lost, r.Ahead, r.Named)
	}
	return s
}

const (
	faultKill      = "sigkill"
	faultImmediate = "immediate"
)

func (r *run) round(ctx context.Context) (*Round, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, 3*bound, fmt.Errorf("round not over within %v", 3*bound))
	defer cancel()
	round := &Round{Fault: faultKill}
	end := r.servers.KillServer
	if r.random.IntN(2) == 0 {
		round.Fault, end = faultImmediate, r.servers.StopServerImmediately
	}
	if r.opts.Replication == stack.Asynchronous {
		if err := r.cutOff(ctx); err != nil {
			return nil, err
		}
	}
	began := time.Now()
	if err := end(ctx, r.primary); err != nil {
		return nil, err
	}
	promoted := time.Now()
	if err := r.servers.Promote(ctx, r.replica); err != nil {
		return nil, err
	}
	round.StopMS, round.PromoteMS = millis(promoted.Sub(began)), millis(time.Since(promoted))
	r.primary, r.replica = r.replica, r.primary
	if err := r.open(ctx); err != nil {
		return nil, err
	}
	if err := r.resumed(ctx, round, promoted); err != nil {
		return nil, err
	}
	waited, err := r.writer.Outage(ctx, promoted)
	if err != nil {
		return nil, err
	}
	round.OutageMS = millis(waited)
	if err := r.examine(ctx, round); err != nil {
		return nil, err
	}
	if err := r.servers.MakeReplica(ctx, r.replica, r.opts.Replication); err != nil {
		return nil, err
	}
	return round, nil
}

// cutOff stops the replica from receiving, for as long as it is to lag behind.
func (r *run) cutOff(ctx context.Context) error {
	pool, err := pgxpool.New(ctx, r.servers.URL(r.replica))
	if err != nil {
		return fmt.Errorf("cut the replica off: %w", err)
	}
	defer pool.Close()
	for _, statement := range []string{"alter system set primary_conninfo = ''", "select pg_reload_conf()"} {
		if _, err := pool.Exec(ctx, statement); err != nil {
			return fmt.Errorf("cut the replica off: %w", err)
		}
	}
	err = r.await(ctx, "the replica is cut off", func(ctx context.Context) (ok bool, err error) {
		err = pool.QueryRow(ctx, `select not exists (select from pg_stat_wal_receiver)`).Scan(&ok)
		return ok, err
	})
	if err != nil {
		return err
	}
	// One of each kind reaches Elasticsearch and will be unknown to the new primary.
	doomed := []producer.Change{producer.Upsert(producer.Entity(edited)), producer.Delete(producer.Entity(removed)), producer.Upsert(producer.Entity(created))}
	if err := r.writer.Write(ctx, doomed); err != nil {
		return err
	}
	if err := r.awaitSettled(ctx, doomed); err != nil {
		return err
	}
	select {
	case <-time.After(r.opts.Lag):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// awaitSettled is for entities that nobody else changes.
func (r *run) awaitSettled(ctx context.Context, changes []producer.Change) error {
	ids := outbox.IDs(changes, func(c *producer.Change) *outbox.ID { return &c.Key.ID })
	return r.awaitQuery(ctx, "the last changes are settled", `
		select not exists (select from search_outbox_events where entity_id = any($1) and status <> 'done')`, ids)
}

// recent is more changes than there can be between the promotion and the next look.
const recent = 20_000

// resumed waits for the first event that the new primary saw settled. No commit of it
// is older than the promotion.
func (r *run) resumed(ctx context.Context, round *Round, promoted time.Time) error {
	position, err := history.Position(ctx, r.pool)
	if err != nil {
		return err
	}
	return r.await(ctx, "an event is settled after the promotion", func(ctx context.Context) (bool, error) {
		log, err := history.Since(ctx, r.pool, producer.Table, group, position-recent)
		if err != nil {
			return false, err
		}
		for _, c := range log.Changes {
			if !c.Done() || !c.Settles() || c.At.Before(promoted) {
				continue
			}
			round.SettleMS, round.Instance, round.Epoch = millis(c.At.Sub(promoted)), c.Owner, c.Epoch
			for _, t := range log.Terms {
				if t.Epoch == c.Epoch && !t.At.Before(promoted) {
					round.LeadMS, round.Instance = millis(t.At.Sub(promoted)), t.Instance
				}
			}
			return true, nil
		}
		return false, nil
	})
}

func millis(d time.Duration) float64 {
	return float64(d.Round(100*time.Microsecond)) / float64(time.Millisecond)
}
