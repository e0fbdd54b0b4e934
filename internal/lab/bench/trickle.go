package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/lab/traffic"
	"github.com/samuelhu324-dev/weft/internal/lab/verdict"
)

const (
	trickleRate    = 500 // events per second
	trickleWriters = 16
	idleTime       = 20 * time.Second
	quietTime      = 2 * time.Second // before the idle time begins
)

// trickle writes single events at a steady rate, without waiting for weft, and then measures
// a leader and a standby that have nothing to do.
func (b *bench) trickle(ctx context.Context, binary string, w workload, progress func(share float64)) (out sample, err error) {
	s, err := b.newSite(ctx, binary, w)
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, s.close(ctx)) }()
	if w.before > 0 {
		earlier := workload{events: w.before, entities: w.before, text: w.text}
		if err := earlier.fill(ctx, s.pool); err != nil {
			return out, err
		}
	}
	if w.snapshot {
		release, err := s.holdSnapshot(ctx)
		if err != nil {
			return out, err
		}
		defer release()
	}
	leader, err := s.start(ctx, "leader")
	if err != nil {
		return out, err
	}
	if err := leader.Ready(ctx); err != nil {
		return out, err
	}
	if err := s.settled(ctx, leader); err != nil {
		return out, err
	}
	standby, err := s.fleet.Start(ctx, "standby")
	if err != nil {
		return out, err
	}
	if err := standby.Ready(ctx); err != nil {
		return out, err
	}
	from, err := s.place.mark(ctx, leader)
	if err != nil {
		return out, err
	}
	wrote, err := s.write(ctx, w, func(share float64) { progress(share / 2) })
	if err != nil {
		return out, err
	}
	if err := s.settled(ctx, leader); err != nil {
		return out, err
	}
	to, err := s.place.mark(ctx, leader)
	if err != nil {
		return out, err
	}
	out.cost(from, to)
	latencies, err := s.latencies(ctx, wrote)
	if err != nil {
		return out, err
	}
	out.P50MS, out.P99MS, out.MaxMS = latencies.Percentile(50), latencies.Percentile(99), latencies.Max()
	out.EPS = float64(w.events) / wrote.took.Seconds()
	idle := min(idleTime, time.Duration(w.events)*time.Second/trickleRate)
	if err := rig.Sleep(ctx, min(quietTime, idle)); err != nil {
		return out, err
	}
	shares, err := idleShare(ctx, []*rig.Instance{leader, standby}, idle, func(share float64) { progress((1 + share) / 2) })
	if err != nil {
		return out, err
	}
	out.IdleLeader, out.IdleStandby = shares[0], shares[1]
	if out.RSSMB, err = peakRSS(leader.PID); err != nil {
		return out, err
	}
	return out, errors.Join(standby.Terminate(ctx), s.sumTrickle(ctx, leader, w, to.bulks-from.bulks, &out))
}

// sumTrickle ends the worker and reads what it logged.
func (s *site) sumTrickle(ctx context.Context, leader *rig.Instance, w workload, bulks float64, out *sample) error {
	if err := leader.Terminate(ctx); err != nil {
		return err
	}
	qctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	var first, last time.Time
	err := s.pool.QueryRow(qctx, `select min(processing_started_at), max(processed_at) from `+outboxTable+` where event_version >= $1`,
		w.trickleVersion(0)).Scan(&first, &last)
	if err != nil {
		return fmt.Errorf("times of the events: %w", err)
	}
	log, err := readLog(s.place.log, s.logged, first, last)
	if err != nil {
		return err
	}
	out.Claims, out.Lists = log.claims, log.lists
	out.RoundTrips = perEvent(float64(log.roundTrips)+bulks, float64(w.events))
	return s.place.expect(ctx, weftIndex, w.before+w.events)
}

// written are events with the transactions that committed them.
type written struct {
	ids          [][16]byte
	transactions []string
	took         time.Duration
}

const writeOne = `
with event as (select $1::uuid as id, $2::uuid as entity_id, $3::bigint as version),
source as (
  insert into search_index (id, entity_type, entity_id, text, snippet, rank_score, created_at, updated_at, event_version)
  select gen_random_uuid(), 'block', entity_id, $4, left($4, 40), 0.5, now(), now(), version from event)
insert into ` + outboxTable + ` (id, entity_type, entity_id, op, event_version, created_at, status, attempts, updated_at, replay_count)
select id, 'block', entity_id, 'upsert', version, now(), 'pending', 0, now(), 0 from event
returning pg_current_xact_id()::text`

// trickleVersion is that of event i, after those that were drained before.
func (w workload) trickleVersion(i int) int64 { return firstVersion + int64(w.before+i) }

// write commits w.events events at a steady rate, an open loop: a late one does not make the
// next ones late.
func (s *site) write(ctx context.Context, w workload, progress func(share float64)) (*written, error) {
	text := make([]byte, 0, w.text+10)
	for i := 0; len(text) < w.text; i++ {
		text = fmt.Appendf(text, "word%d ", i*104729%5000)
	}
	// The time to connect is nobody's latency.
	conns := make([]*pgxpool.Conn, trickleWriters)
	for i := range conns {
		var err error
		if conns[i], err = s.pool.Acquire(ctx); err != nil {
			return nil, fmt.Errorf("connect: %w", err)
		}
		defer conns[i].Release()
	}
	free := make(chan *pgxpool.Conn, trickleWriters)
	for _, c := range conns {
		free <- c
	}
	out := &written{ids: make([][16]byte, w.events), transactions: make([]string, w.events)}
	began := time.Now()
	err := traffic.Loop{Ops: w.events, Rate: trickleRate, Concurrency: trickleWriters}.Run(ctx, func(ctx context.Context, i int, _ time.Time) error {
		conn := <-free
		defer func() { free <- conn }()
		ctx, cancel := context.WithTimeout(ctx, queryTimeout)
		defer cancel()
		progress(float64(i) / float64(w.events))
		out.ids[i] = uuid.New()
		err := conn.QueryRow(ctx, writeOne, out.ids[i], [16]byte(uuid.New()), w.trickleVersion(i), string(text)).Scan(&out.transactions[i])
		if err != nil {
			return fmt.Errorf("write an event: %w", err)
		}
		return nil
	})
	out.took = time.Since(began)
	return out, errors.Join(err, ctx.Err())
}

// settled waits until weft has settled all events.
func (s *site) settled(ctx context.Context, i *rig.Instance) error {
	return rig.Await(ctx, drainTimeout, poll, "end of the events", func(ctx context.Context) error {
		done, err := s.drained(ctx, workload{})
		switch {
		case err != nil:
			return rig.Stop(err)
		case done:
			return nil
		case i.HasEnded():
			return rig.Stop(i.Ending())
		default:
			return errors.New("some are on their way")
		}
	})
}

// latencies are from the commit of each event to that of its settle: xmin is the
// transaction that wrote the row's last version.
func (s *site) latencies(ctx context.Context, wrote *written) (verdict.Distribution, error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	rows, err := s.pool.Query(ctx, `
select 1000 * extract(epoch from pg_xact_commit_timestamp(o.xmin) - pg_xact_commit_timestamp(t.x::text::xid))::float8
from unnest($1::uuid[], $2::text[]) as t(id, x) join `+outboxTable+` o on o.id = t.id
where o.status = 'done'`, wrote.ids, wrote.transactions)
	if err != nil {
		return nil, fmt.Errorf("latencies: %w", err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[float64])
	if err == nil && len(all) != len(wrote.ids) {
		err = fmt.Errorf("%d of %d events are done", len(all), len(wrote.ids))
	}
	if err != nil {
		return nil, fmt.Errorf("latencies: %w", err)
	}
	return all, nil
}
