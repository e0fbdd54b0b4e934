package bench

import (
	"context"
	"errors"
	"fmt"
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

// sample is what one side did in one round.
type sample struct {
	EPS                 float64 // events per second
	P50MS, P99MS, MaxMS float64 // lease → acknowledgement, or commit → commit
	RSSMB               float64
	CPU                 cpu
	Allocs              float64 // per event, as all that follow
	WALBytes            float64
	RoundTrips          float64
	Retries             float64              // in all: above 0, more than the work was measured
	Vacuum              float64              // CPU µs of PostgreSQL for the vacuum after it
	Claims              verdict.Distribution // milliseconds, of leases and lists
	Lists               verdict.Distribution

	IdleLeader, IdleStandby float64 // per cent of a core
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
	place      *place
	pool       *pgxpool.Pool // of the schema; it leaves no trace in the log
	fleet      *rig.Fleet
	logged     int64 // offset in the server's log
	table      string
	shards     []string // their schemas
}

// newSite makes the tables of w with binary's own migrations, empty, and its index.
func (b *bench) newSite(ctx context.Context, binary string, w workload) (s *site, err error) {
	s = &site{place: b.place, table: w.outbox()}
	b.place.schemas++
	if s.Place, err = b.place.Corner(ctx, fmt.Sprintf("bench_%d", b.place.schemas), weftIndex, group, 1); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close(ctx))
		}
	}()
	url, err := quiet(s.DatabaseURL)
	if err != nil {
		return s, err
	}
	if s.pool, err = rig.OpenPool(ctx, url, trickleWriters+2); err != nil {
		return s, err
	}
	env := append(s.Settings(), "WEFT_PROJECTIONS=search_index_to_elastic")
	if w.declared {
		file, err := writeDeclaration(b.dir, s.Index, false)
		if err != nil {
			return s, err
		}
		env = append(s.Settings(), "WEFT_PROJECTIONS="+declaredName, "WEFT_CONFIG="+file)
	}
	if w.finished != "" {
		env = append(env, "OUTBOX_FINISHED="+w.finished)
	}
	if w.gzip {
		env = append(env, "ELASTIC_GZIP=true")
	}
	if w.traced {
		env = append(env, "WORDLOOM_TRACING_ENABLED=true", "OTEL_TRACES_SAMPLER=traceidratio", "OTEL_TRACES_SAMPLER_ARG=0.01",
			"OTEL_EXPORTER_OTLP_PROTOCOL=grpc", "OTEL_EXPORTER_OTLP_ENDPOINT="+b.place.collector.GRPC)
	}
	if w.shards > 0 {
		env = append(env, s.shardSettings(w.shards)...)
	}
	s.fleet = &rig.Fleet{Binary: binary, Dir: b.dir, Env: rig.Environment(b.opts.Environ, false, env...)}
	if err := s.makeTables(ctx, w); err != nil {
		return s, err
	}
	return s, s.makeIndex(ctx)
}

// makeTables leaves the migrations to the binary under test.
func (s *site) makeTables(ctx context.Context, w workload) error {
	if w.adopted {
		conn, err := s.pool.Acquire(ctx)
		if err != nil {
			return fmt.Errorf("connect: %w", err)
		}
		defer conn.Release()
		if err := legacy.Create(ctx, conn.Conn()); err != nil {
			return err
		}
	}
	if w.shards > 0 {
		return s.fleet.Run(ctx, "shards", "create", strconv.Itoa(w.shards), "--by", "weftlab bench")
	}
	if err := s.fleet.Run(ctx, "migrate", "up"); err != nil || !w.declared {
		return err
	}
	return s.makeOutbox(ctx)
}

// makeIndex has a worker make its index while there are no events. The first leader of
// all would begin with an outage, until the index is there.
func (s *site) makeIndex(ctx context.Context) error {
	i, err := s.fleet.Start(ctx, "first")
	if err != nil {
		return err
	}
	if err := i.Ready(ctx); err != nil {
		return err
	}
	return i.Terminate(ctx)
}

func (s *site) close(ctx context.Context) error {
	var errs []error
	if s.fleet != nil {
		errs = append(errs, s.fleet.Stop())
	}
	if s.pool != nil {
		s.pool.Close()
	}
	errs = append(errs, s.dropShards(ctx), s.Place.Close(ctx))
	return errors.Join(errs...)
}

// start starts a worker on servers at rest.
func (s *site) start(ctx context.Context, name string) (*rig.Instance, error) {
	if err := s.place.rest(ctx); err != nil {
		return nil, err
	}
	var err error
	if s.logged, err = logSize(s.place.log); err != nil {
		return nil, err
	}
	return s.fleet.Start(ctx, name)
}

// drain lets binary carry the backlog w, as often as w says, and returns the middle of
// the figures, with all claims.
func (b *bench) drain(ctx context.Context, binary string, w workload, progress func(share float64)) (sample, error) {
	var all []sample
	for n := range w.drains {
		s, err := b.drainOnce(ctx, binary, w, func(share float64) { progress((float64(n) + share) / float64(w.drains)) })
		if err != nil {
			return sample{}, err
		}
		all = append(all, s)
	}
	return middle(all), nil
}

func (b *bench) drainOnce(ctx context.Context, binary string, w workload, progress func(share float64)) (out sample, err error) {
	s, err := b.newSite(ctx, binary, w)
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, s.close(ctx)) }()
	if err := w.fill(ctx, s.pool); err != nil {
		return out, err
	}
	if w.loads {
		if _, err := writeDeclaration(b.dir, s.Index, true); err != nil {
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
	ctx, cancel := context.WithTimeoutCause(ctx, drainTimeout, fmt.Errorf("%d events were not drained within %v", w.events, drainTimeout))
	defer cancel()
	i, err := s.start(ctx, "w")
	if err != nil {
		return out, err
	}
	from, to, err := s.watch(ctx, i, w, progress)
	if err != nil {
		return out, err
	}
	return s.sum(ctx, i, w, from, to)
}

// holdSnapshot keeps what is dead from now on from being removed.
func (s *site) holdSnapshot(ctx context.Context) (release func(), err error) {
	tx, err := s.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		return nil, fmt.Errorf("hold a snapshot: %w", err)
	}
	release = func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }
	if _, err := tx.Exec(ctx, "select count(*) from weft_leader"); err != nil {
		release()
		return nil, fmt.Errorf("hold a snapshot: %w", err)
	}
	return release, nil
}

// watch returns the moments when the first events were on their way and when the last
// was settled. Where there is little between the two, the first is that of the start,
// with all that a worker does before its first event.
func (s *site) watch(ctx context.Context, i *rig.Instance, w workload, progress func(float64)) (from, to mark, err error) {
	if from, err = s.place.mark(ctx, nil); err != nil {
		return from, to, err
	}
	moving, version, moved := false, int64(firstVersion), time.Now()
	lowest := version // of the backlog; that of triggers begins anywhere
	for pause := firstPoll; ; {
		began := time.Now()
		next, found, err := s.head(ctx, version)
		if err != nil {
			return from, to, err
		}
		if found && next > version {
			version, moved = next, time.Now()
			if w.declared && lowest == firstVersion {
				lowest = next
			}
		}
		if !found {
			done, err := s.drained(ctx, w)
			if err != nil {
				return from, to, err
			}
			if done {
				break
			}
			version = firstVersion // what was released is below
		}
		if !moving && (!found && !w.loads || version > lowest) {
			m, err := s.place.mark(ctx, i)
			if err != nil {
				return from, to, err
			}
			if m.events < float64(w.events)/2 {
				from = m
			}
			moving, pause = true, poll
		}
		if found && version > firstVersion {
			progress(min(float64(version-firstVersion)/float64(w.events), 1))
		}
		if i.HasEnded() {
			return from, to, i.Ending()
		}
		if !w.loads && time.Since(moved) > stallTimeout {
			return from, to, fmt.Errorf("no event has gone on for %v", stallTimeout)
		}
		if err := rig.Sleep(ctx, max(pause, pollShare*time.Since(began))); err != nil {
			return from, to, err
		}
	}
	to, err = s.place.mark(ctx, i)
	return from, to, err
}

// head returns the lowest version, from one on, of what is ready to be claimed. The
// bound spares it the dead entries before it.
func (s *site) head(ctx context.Context, from int64) (version int64, found bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	err = s.pool.QueryRow(ctx, `select event_version from `+s.table+`
where status = 'pending' and next_retry_at is null and event_version >= $1 order by event_version limit 1`, from).Scan(&version)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, fmt.Errorf("look at the backlog: %w", err)
	}
	return version, true, nil
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
	if err != nil {
		return false, fmt.Errorf("look at the backlog: %w", err)
	}
	return done, nil
}

// sum ends the worker and adds up.
func (s *site) sum(ctx context.Context, i *rig.Instance, w workload, from, to mark) (out sample, err error) {
	if out.RSSMB, err = peakRSS(i.PID); err != nil {
		return out, err
	}
	if err := i.Terminate(ctx); err != nil {
		return out, err
	}
	qctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	done, first, last, err := s.times(qctx, w, &out)
	if err != nil {
		return out, err
	}
	if done != w.events {
		return out, fmt.Errorf("%d of %d events are done", done, w.events)
	}
	var documents int
	if err := s.pool.QueryRow(qctx, "select count(*) from search_index").Scan(&documents); err != nil {
		return out, fmt.Errorf("entities: %w", err)
	}
	if err := s.place.expect(ctx, weftIndex, documents); err != nil {
		return out, err
	}
	log, err := readLog(s.place.log, s.logged, first, last)
	if err != nil {
		return out, err
	}
	if w.finished == finishedDelete {
		first, last = log.first, log.last
	}
	out.EPS = perEvent(float64(w.events), last.Sub(first).Seconds())
	out.Claims, out.Lists = log.claims, log.lists
	out.cost(from, to)
	out.RoundTrips = perEvent(float64(log.roundTrips)+to.bulks, float64(w.events))
	out.Vacuum, err = s.vacuum(ctx, w)
	return out, err
}

// times counts the events that are done, and returns when the first was leased and the last
// acknowledged; of a load, the rows. Of events that were deleted there are no times.
func (s *site) times(ctx context.Context, w workload, out *sample) (done int, first, last time.Time, err error) {
	if w.loads {
		err = s.pool.QueryRow(ctx, `select filled, began_at, finished_at from weft_rebuild where load`).Scan(&done, &first, &last)
		if err != nil {
			err = fmt.Errorf("times of the load: %w", err)
		}
		return done, first, last, err
	}
	table := s.table
	switch w.finished {
	case finishedArchive:
		table = historyTable
	case finishedDelete:
		err = s.pool.QueryRow(ctx, `select $1 - count(*) from `+outboxTable+` where event_version >= $2`, w.events, int64(firstVersion)).Scan(&done)
		if err != nil {
			err = fmt.Errorf("count events: %w", err)
		}
		return done, first, last, err
	}
	err = s.pool.QueryRow(ctx, `
select count(*), min(processing_started_at), max(processed_at),
       1000 * percentile_disc(0.5) within group (order by took), 1000 * percentile_disc(0.99) within group (order by took), 1000 * max(took)
from (select *, extract(epoch from processed_at - processing_started_at)::float8 as took from `+table+` where status = 'done') done`).
		Scan(&done, &first, &last, &out.P50MS, &out.P99MS, &out.MaxMS)
	if err != nil {
		return 0, first, last, fmt.Errorf("times of the events: %w", err)
	}
	return done, first, last, nil
}

// vacuum removes what the drain has left dead, and returns what that cost PostgreSQL for
// each event.
func (s *site) vacuum(ctx context.Context, w workload) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, loadTimeout)
	defer cancel()
	before, err := s.place.serversCPU()
	if err != nil {
		return 0, err
	}
	if _, err := s.pool.Exec(ctx, "vacuum (analyze) "+s.table); err != nil {
		return 0, fmt.Errorf("vacuum: %w", err)
	}
	after, err := s.place.serversCPU()
	return 1e6 * perEvent(after.postgres-before.postgres, float64(w.events)), err
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
