package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/lab/verdict"
	"github.com/samuelhu324-dev/weft/internal/testenv/legacy"
)

const (
	drainTimeout = 30 * time.Minute
	stallTimeout = time.Minute // without any event going on
	// firstPoll is for the time until the first events are taken.
	firstPoll = 20 * time.Millisecond
	poll      = 100 * time.Millisecond
	// pollShare bounds the time that looking takes from what is looked at.
	pollShare = 20
)

// sample is what one side did in one round, or a [Result] of all of them.
type sample struct {
	EPS     float64 `json:"weft_eps"` // events per second
	P50MS   float64 `json:"p50_ms"`   // lease → acknowledgement, without those that are deleted; for trickle commit → commit
	P99MS   float64 `json:"p99_ms"`
	MaxMS   float64 `json:"max_ms"`  // of all rounds
	RSSMB   float64 `json:"rss_mb"`  // the peak, of all rounds
	Retries float64 `json:"retries"` // in all: above 0, more than the work was measured; the most of a round

	CPU        cpu     `json:"cpu_us_per_event"`
	Vacuum     float64 `json:"postgres_vacuum_us_per_event,omitempty"` // CPU of PostgreSQL for the vacuum after it
	Allocs     float64 `json:"allocs_per_event"`
	WALBytes   float64 `json:"wal_bytes_per_event"`
	RoundTrips float64 `json:"round_trips_per_event"`

	IdleLeader  float64 `json:"idle_leader_cpu_percent,omitempty"` // of a core
	IdleStandby float64 `json:"idle_standby_cpu_percent,omitempty"`

	Claims verdict.Distribution `json:"-"` // milliseconds, of leases and lists
	Lists  verdict.Distribution `json:"-"`
}

// cpu is in microseconds per event.
type cpu struct {
	Weft          float64 `json:"weft"`
	Postgres      float64 `json:"postgres"`
	Elasticsearch float64 `json:"elasticsearch"`
}

func perEvent(of, events float64) float64 {
	if events <= 0 {
		return 0
	}
	return of / events
}

// site is a schema with a worker's tables and an index, and what is needed to run workers on
// them.
type site struct {
	*rig.Place // the corner
	*bench
	pool   *pgxpool.Pool // of the schema; it leaves no trace in the log
	fleet  *rig.Fleet
	logged int64 // offset in the server's log
	table  string
	shards []string // their schemas
}

// corner makes the next schema.
func (b *bench) corner() *rig.Place {
	return rig.Try(b.place.Corner(b.Ctx, "bench_"+rig.Suffix(), weftIndex, group, 1)).Must(b)
}

// onSite calls do with a site, which is gone afterwards.
func (b *bench) onSite(binary string, w workload, do func(s *site)) {
	s := &site{Place: b.corner(), bench: b, table: w.outbox()}
	defer s.close()
	s.prepare(binary, w)
	do(s)
}

// prepare makes the tables of w with binary's own migrations, empty, and its index.
func (s *site) prepare(binary string, w workload) {
	url := rig.Try(quiet(s.DatabaseURL)).Must(s)
	s.pool = rig.Try(rig.OpenPool(s.Ctx, url, trickleWriters+2)).Must(s)
	env := append(s.Settings(), "WEFT_PROJECTIONS=search_index_to_elastic")
	if w.declared {
		env = append(s.Settings(), "WEFT_PROJECTIONS="+declaredName, "WEFT_CONFIG="+s.declare(false))
	}
	if w.finished != "" {
		env = append(env, "OUTBOX_FINISHED="+w.finished)
	}
	if w.gzip {
		env = append(env, "ELASTIC_GZIP=true")
	}
	if w.traced {
		env = append(env, "WORDLOOM_TRACING_ENABLED=true", "OTEL_TRACES_SAMPLER=traceidratio", "OTEL_TRACES_SAMPLER_ARG=0.01",
			"OTEL_EXPORTER_OTLP_PROTOCOL=grpc", "OTEL_EXPORTER_OTLP_ENDPOINT="+s.place.collector.GRPC)
	}
	if w.shards > 0 {
		env = append(env, s.shardSettings(w.shards)...)
	}
	s.fleet = &rig.Fleet{Binary: binary, Dir: s.dir, Env: rig.Environment(s.opts.Environ, false, env...)}
	s.makeTables(w)
	s.makeIndex()
}

// makeTables leaves the migrations to the binary under test.
func (s *site) makeTables(w workload) {
	if w.adopted {
		conn := rig.Try(s.pool.Acquire(s.Ctx)).MustDo(s, "connect")
		defer conn.Release()
		s.Must(legacy.Create(s.Ctx, conn.Conn()))
	}
	if w.shards > 0 {
		s.Must(s.fleet.Run(s.Ctx, "shards", "create", strconv.Itoa(w.shards), "--by", "weftlab bench"))
		return
	}
	s.Must(s.fleet.Run(s.Ctx, "migrate", "up"))
	if w.declared {
		s.makeOutbox()
	}
}

// makeIndex has a worker make its index while there are no events. The first leader of
// all would begin with an outage, until the index is there.
func (s *site) makeIndex() {
	i := rig.Try(s.fleet.Start(s.Ctx, "first")).Must(s)
	s.Must(i.Ready(s.Ctx))
	s.Must(i.Terminate(s.Ctx))
}

func (s *site) close() {
	var errs []error
	if s.fleet != nil {
		errs = append(errs, s.fleet.Stop())
	}
	if s.pool != nil {
		s.pool.Close()
	}
	s.Must(errors.Join(append(errs, s.dropShards(), s.Place.Close(s.Ctx))...))
}

// start starts a worker on servers at rest.
func (s *site) start(name string) *rig.Instance {
	s.rest()
	info := rig.Try(os.Stat(s.place.log)).MustDo(s, "log of PostgreSQL")
	s.logged = info.Size() // where it ends now
	return rig.Try(s.fleet.Start(s.Ctx, name)).Must(s)
}

func (s *site) ask(noun, sql string, args []any, into ...any) {
	ctx, cancel := context.WithTimeout(s.Ctx, queryTimeout)
	defer cancel()
	s.MustDo(noun, s.pool.QueryRow(ctx, sql, args...).Scan(into...))
}

// drain lets binary carry the backlog w, as often as w says, and returns the middle of
// the figures, with all claims.
func (b *bench) drain(binary string, w workload) sample {
	var all []sample
	for range w.drains {
		all = append(all, b.drainOnce(binary, w))
	}
	return middle(all)
}

func (b *bench) drainOnce(binary string, w workload) (out sample) {
	b.onSite(binary, w, func(s *site) {
		s.fill(w)
		if w.loads {
			s.declare(true)
		}
		if w.snapshot {
			defer s.holdSnapshot()()
		}
		s.Part(fmt.Sprintf("drain of %d events", w.events), drainTimeout, func() {
			i := s.start("w")
			from, to := s.watch(i, w)
			out = s.sum(i, w, from, to)
		})
	})
	return out
}

// holdSnapshot keeps what is dead from now on from being removed.
func (s *site) holdSnapshot() (release func()) {
	tx := rig.Try(s.pool.BeginTx(s.Ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})).MustDo(s, "hold a snapshot")
	release = func() { _ = tx.Rollback(context.WithoutCancel(s.Ctx)) }
	_, err := tx.Exec(s.Ctx, "select count(*) from weft_leader")
	if err != nil {
		release()
	}
	s.MustDo("hold a snapshot", err)
	return release
}

// watch returns the moments when the first events were on their way and when the last
// was settled. Where there is little between the two, the first is that of the start,
// with all that a worker does before its first event.
func (s *site) watch(i *rig.Instance, w workload) (from, to mark) {
	from = s.mark(nil)
	moving, version, moved := false, int64(firstVersion), time.Now()
	lowest := version // of the backlog; that of triggers begins anywhere
	for pause := firstPoll; ; {
		began := time.Now()
		next := s.head(version)
		found := next != nil
		if found && *next > version {
			version, moved = *next, time.Now()
			if w.declared && lowest == firstVersion {
				lowest = version
			}
		}
		if !found {
			done := rig.Try(s.drained(s.Ctx, w)).Must(s)
			if done {
				break
			}
			version = firstVersion // what was released is below
		}
		if !moving && (!found && !w.loads || version > lowest) {
			if m := s.mark(i); m.events < float64(w.events)/2 {
				from = m
			}
			moving, pause = true, poll
		}
		s.Must(s.fleet.Alive(s.Ctx))
		s.Expect(w.loads || time.Since(moved) <= stallTimeout, "no event has gone on for %v", stallTimeout)
		s.Pause(max(pause, pollShare*time.Since(began)))
	}
	return from, s.mark(i)
}

// head returns the lowest version, from one on, of what is ready to be claimed; nil for none. The
// bound spares it the dead entries before it.
func (s *site) head(from int64) (version *int64) {
	s.ask("look at the backlog", `select (select event_version from `+s.table+`
where status = 'pending' and next_retry_at is null and event_version >= $1 order by event_version limit 1)`, []any{from}, &version)
	return version
}

// drained reports whether nothing is on its way; what was waiting from the start may.
func (s *site) drained(ctx context.Context, w workload) (done bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	err = s.pool.QueryRow(ctx, `select not exists (select from `+s.table+` where status = 'processing')
and not exists (select from `+s.table+` where status = 'pending' and next_retry_at is null and event_version >= $1)
and not exists (select from `+s.table+` where status = 'pending' and next_retry_at < now() + interval '1 hour' and event_version >= $1)`,
		int64(firstVersion)).Scan(&done)
	if err == nil && done && w.loads {
		err = s.pool.QueryRow(ctx, "select exists (select from weft_progress where table_name = $1 and loaded_at is not null)", s.table).Scan(&done)
	}
	return done, rig.Wrap("look at the backlog", err)
}

// sum ends the worker and adds up.
func (s *site) sum(i *rig.Instance, w workload, from, to mark) (out sample) {
	out.RSSMB = s.peakRSS(i)
	s.Must(i.Terminate(s.Ctx))
	done, first, last := s.times(w, &out)
	s.Expect(done == w.events, "%d of %d events are done", done, w.events)
	var documents int
	s.ask("entities", "select count(*) from search_index", nil, &documents)
	s.expect(weftIndex, documents)
	log := rig.Try(readLog(s.place.log, s.logged, first, last)).Must(s)
	if w.finished == finishedDelete {
		first, last = log.first, log.last
	}
	out.EPS = perEvent(float64(w.events), last.Sub(first).Seconds())
	out.Claims, out.Lists = log.claims, log.lists
	out.cost(from, to)
	out.RoundTrips = perEvent(float64(log.roundTrips)+to.bulks, float64(w.events))
	out.Vacuum = s.vacuum(w)
	return out
}

// times counts the events that are done, and returns when the first was leased and the last
// acknowledged; of a load, the rows. Of events that were deleted there are no times.
func (s *site) times(w workload, out *sample) (done int, first, last time.Time) {
	if w.loads {
		s.ask("times of the load", `select filled, began_at, finished_at from weft_rebuild where load`, nil, &done, &first, &last)
		return done, first, last
	}
	table := s.table
	switch w.finished {
	case finishedArchive:
		table = historyTable
	case finishedDelete:
		s.ask("count events", `select $1 - count(*) from `+outboxTable+` where event_version >= $2`, []any{w.events, int64(firstVersion)}, &done)
		return done, first, last
	}
	s.ask("times of the events", `
select count(*), min(processing_started_at), max(processed_at),
       1000 * percentile_disc(0.5) within group (order by took), 1000 * percentile_disc(0.99) within group (order by took), 1000 * max(took)
from (select *, extract(epoch from processed_at - processing_started_at)::float8 as took from `+table+` where status = 'done') done`, nil,
		&done, &first, &last, &out.P50MS, &out.P99MS, &out.MaxMS)
	return done, first, last
}

// vacuum removes what the drain has left dead, and returns what that cost PostgreSQL for
// each event.
func (s *site) vacuum(w workload) float64 {
	ctx, cancel := context.WithTimeout(s.Ctx, loadTimeout)
	defer cancel()
	before := s.serversCPU()
	rig.Try(s.pool.Exec(ctx, "vacuum (analyze) "+s.table)).MustDo(s, "vacuum")
	return 1e6 * perEvent(s.serversCPU().postgres-before.postgres, float64(w.events))
}

// cost is what was spent between two moments, per event between them.
func (s *sample) cost(from, to mark) {
	n := to.events - from.events
	s.CPU = cpu{
		Weft:          1e6 * perEvent(to.weft-from.weft, n),
		Postgres:      1e6 * perEvent(to.servers.postgres-from.servers.postgres, n),
		Elasticsearch: 1e6 * perEvent(to.servers.elastic-from.servers.elastic, n),
	}
	s.Allocs = perEvent(to.mallocs-from.mallocs, n)
	s.Retries = to.retries - from.retries
	s.WALBytes = perEvent(to.wal-from.wal, n)
}
