package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
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
func (b *bench) trickle(binary string, w workload) (out sample) {
	b.onSite(binary, w, func(s *site) {
		if w.before > 0 {
			earlier := workload{events: w.before, entities: w.before, text: w.text}
			s.fill(earlier)
		}
		if w.snapshot {
			defer s.holdSnapshot()()
		}
		leader := s.start("leader")
		s.Must(leader.Ready(s.Ctx))
		s.settled()
		standby := rig.Try(s.fleet.Start(s.Ctx, "standby")).Must(s)
		s.Must(standby.Ready(s.Ctx))
		from := s.mark(leader)
		wrote := s.write(w)
		s.settled()
		to := s.mark(leader)
		out.cost(from, to)
		latencies := s.latencies(wrote)
		out.P50MS, out.P99MS, out.MaxMS = latencies.Percentile(50), latencies.Percentile(99), latencies.Max()
		out.EPS = float64(w.events) / wrote.took.Seconds()
		idle := min(idleTime, time.Duration(w.events)*time.Second/trickleRate)
		s.Pause(min(quietTime, idle))
		shares := s.idleShare([]*rig.Instance{leader, standby}, idle)
		out.IdleLeader, out.IdleStandby = shares[0], shares[1]
		out.RSSMB = s.peakRSS(leader)
		s.Must(standby.Terminate(s.Ctx))
		s.sumTrickle(leader, w, to.bulks-from.bulks, &out)
	})
	return out
}

// sumTrickle ends the worker and reads what it logged.
func (s *site) sumTrickle(leader *rig.Instance, w workload, bulks float64, out *sample) {
	s.Must(leader.Terminate(s.Ctx))
	var first, last time.Time
	s.ask("times of the events", `select min(processing_started_at), max(processed_at) from `+outboxTable+` where event_version >= $1`,
		[]any{w.trickleVersion(0)}, &first, &last)
	log := rig.Try(readLog(s.place.log, s.logged, first, last)).Must(s)
	out.Claims, out.Lists = log.claims, log.lists
	out.RoundTrips = perEvent(float64(log.roundTrips)+bulks, float64(w.events))
	s.expect(weftIndex, w.before+w.events)
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
func (s *site) write(w workload) *written {
	text := make([]byte, 0, w.text+10)
	for i := 0; len(text) < w.text; i++ {
		text = fmt.Appendf(text, "word%d ", i*104729%5000)
	}
	// The time to connect is nobody's latency.
	free := make(chan *pgxpool.Conn, trickleWriters)
	for range trickleWriters {
		conn := rig.Try(s.pool.Acquire(s.Ctx)).MustDo(s, "connect")
		defer conn.Release()
		free <- conn
	}
	out := &written{ids: make([][16]byte, w.events), transactions: make([]string, w.events)}
	began := time.Now()
	err := traffic.Loop{Ops: w.events, Rate: trickleRate, Concurrency: trickleWriters}.Run(s.Ctx, func(ctx context.Context, i int, _ time.Time) error {
		conn := <-free
		defer func() { free <- conn }()
		ctx, cancel := context.WithTimeout(ctx, queryTimeout)
		defer cancel()
		out.ids[i] = uuid.New()
		return conn.QueryRow(ctx, writeOne, out.ids[i], [16]byte(uuid.New()), w.trickleVersion(i), string(text)).Scan(&out.transactions[i])
	})
	out.took = time.Since(began)
	s.MustDo("write events", errors.Join(err, s.Ctx.Err()))
	return out
}

// settled waits until weft has settled all events.
func (s *site) settled() {
	s.Must(s.fleet.Await(s.Ctx, drainTimeout, poll, "end of the events", func(ctx context.Context) error {
		done, err := s.drained(ctx, workload{})
		switch {
		case err != nil:
			return rig.Stop(err)
		case !done:
			return errors.New("some are on their way")
		default:
			return nil
		}
	}))
}

// latencies are from the commit of each event to that of its settle: xmin is the
// transaction that wrote the row's last version.
func (s *site) latencies(wrote *written) (all verdict.Distribution) {
	s.ask("latencies", `
select coalesce(array_agg(1000 * extract(epoch from pg_xact_commit_timestamp(o.xmin) - pg_xact_commit_timestamp(t.x::text::xid))::float8), '{}')
from unnest($1::uuid[], $2::text[]) as t(id, x) join `+outboxTable+` o on o.id = t.id
where o.status = 'done'`, []any{wrote.ids, wrote.transactions}, &all)
	s.Expect(len(all) == len(wrote.ids), "latencies: %d of %d events are done", len(all), len(wrote.ids))
	return all
}
